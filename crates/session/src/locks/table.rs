//! The state behind [`LockTable`](super::LockTable), changed under its one lock.
//!
//! Who waits for whom is a graph of owners, worked out when it is needed: from an owner with waiting requests to every
//! holder of a conflicting lock (a *held* edge) and to the owner of every earlier conflicting request for the same file (a
//! *queue* edge, which exists only for fairness).

use super::{
    ByteRange, HeldLock, LockClient, LockCounts, LockError, LockHolder, LockLimits, LockOwner, LockProtocol,
    LockRequest, ShareMode, offices::Shared, segments::Segments,
};
use firn_vfs::FileHandle;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::oneshot;

pub(super) struct Table {
    pub(super) in_grace: bool,
    limits: LockLimits,
    /// File systems that several offices lock.
    pub(super) shared: BTreeMap<u64, Shared>,
    pub(super) files: BTreeMap<FileHandle, File>,
    /// By number, which is the order of arrival.
    pub(super) waiting: BTreeMap<u64, Waiting>,
    waiting_by_owner: BTreeMap<LockOwner, BTreeSet<u64>>,
    clients: BTreeMap<LockClient, Client>,
    next_number: u64,
    locks: usize,
}

#[derive(Default)]
pub(super) struct File {
    pub(super) held: BTreeMap<LockOwner, Segments>,
    shares: BTreeMap<LockOwner, ShareMode>,
    pub(super) queue: BTreeSet<u64>,
}

impl File {
    fn is_unused(&self) -> bool {
        self.held.is_empty() && self.shares.is_empty() && self.queue.is_empty()
    }
}

/// What a client uses; kept so that its limits and its release need no search.
#[derive(Default)]
struct Client {
    /// Ranges and shares by file.
    locks_by_file: BTreeMap<FileHandle, usize>,
    locks: usize,
    waiting: BTreeSet<u64>,
}

pub(super) struct Waiting {
    pub(super) request: LockRequest,
    granted: oneshot::Sender<()>,
}

/// Where a blocking request stands.
pub(super) enum Place {
    Granted,
    AlreadyWaiting,
    Queued(u64),
}

/// Which edges of the graph of owners count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edges {
    Held,
    HeldAndQueue,
}

fn conflict(a: &LockRequest, b: &LockRequest) -> bool {
    a.file == b.file && a.owner != b.owner && (a.exclusive || b.exclusive) && a.range.overlaps(b.range)
}

impl Table {
    pub(super) fn new(limits: LockLimits) -> Self {
        Self {
            in_grace: false,
            limits,
            shared: BTreeMap::new(),
            files: BTreeMap::new(),
            waiting: BTreeMap::new(),
            waiting_by_owner: BTreeMap::new(),
            clients: BTreeMap::new(),
            next_number: 0,
            locks: 0,
        }
    }

    pub(super) fn test(&mut self, request: &LockRequest) -> Result<(), LockError> {
        self.check_served(false)?;
        self.check_granting(request)?;
        self.check_held(request)
    }

    pub(super) fn lock(&mut self, request: &LockRequest) -> Result<(), LockError> {
        self.check_served(false)?;
        self.check_granting(request)?;
        self.lock_at_once(request)
    }

    pub(super) fn reclaim(&mut self, request: &LockRequest) -> Result<(), LockError> {
        if !self.in_grace && self.holds(request) {
            // Its client was told that locks were broken, and this one was not.
            return Ok(());
        }
        self.check_served(true)?;
        self.check_reclaim(request)?;
        self.lock_at_once(request)
    }

    fn lock_at_once(&mut self, request: &LockRequest) -> Result<(), LockError> {
        self.check_held(request)?;
        self.check_lock_limits(&request.owner.client)?;
        self.check_office_limits(request.file.file_system)?;
        self.take_and_serve(request);
        Ok(())
    }

    pub(super) fn lock_or_wait(
        &mut self,
        request: &LockRequest,
        granted: oneshot::Sender<()>,
    ) -> Result<Place, LockError> {
        self.check_served(false)?;
        self.check_lock_limits(&request.owner.client)?;
        if self.is_waiting(request) {
            return Ok(Place::AlreadyWaiting);
        }
        self.check_office_limits(request.file.file_system)?;
        if self.grants(request.file.file_system)
            && self.check_held(request).is_ok()
            && !self.must_queue(request, self.next_number)
        {
            self.take_and_serve(request);
            return Ok(Place::Granted);
        }
        self.check_waiter_limits(request)?;
        if let Some(circle) = self.circle(request, Edges::Held) {
            return Err(LockError::Deadlock { circle });
        }
        let closes_circle = self.circle(request, Edges::HeldAndQueue).is_some();
        let number = self.next_number;
        self.next_number += 1;
        self.enqueue(number, request.clone(), granted);
        if closes_circle {
            // It takes a place in a queue to close it, and that place gives way now.
            self.serve(self.files_with_waiters());
        }
        Ok(Place::Queued(number))
    }

    pub(super) fn cancel(&mut self, request: &LockRequest) -> bool {
        let Some(number) = self.number_of(request) else {
            return false;
        };
        self.dequeue(number);
        self.serve(BTreeSet::from([request.file]));
        true
    }

    pub(super) fn is_waiting(&self, request: &LockRequest) -> bool {
        self.number_of(request).is_some()
    }

    fn number_of(&self, request: &LockRequest) -> Option<u64> {
        let of_owner = self.waiting_by_owner.get(&request.owner);
        let mut numbers = of_owner.into_iter().flatten().copied();
        numbers.find(|number| self.waiting[number].request == *request)
    }

    /// A waiter was dropped: takes it out of the queue, or gives back what it got.
    pub(super) fn abandon(&mut self, number: u64, request: &LockRequest, was_granted: impl FnOnce() -> bool) {
        if self.waiting.contains_key(&number) {
            self.dequeue(number);
            self.serve(BTreeSet::from([request.file]));
        } else if was_granted() {
            self.unlock(request.file, &request.owner, request.range);
        }
    }

    pub(super) fn unlock(&mut self, file: FileHandle, owner: &LockOwner, range: ByteRange) {
        if self.set(file, owner, range, None) {
            self.serve(BTreeSet::from([file]));
        }
    }

    pub(super) fn share(
        &mut self,
        file: FileHandle,
        owner: &LockOwner,
        mode: ShareMode,
        reclaim: bool,
    ) -> Result<(), LockError> {
        self.check_served(reclaim)?;
        let shares = self.files.get(&file).map(|file| &file.shares);
        let in_the_way = shares
            .into_iter()
            .flatten()
            .find(|(other, share)| *other != owner && share.conflicts_with(mode));
        if let Some((other, share)) = in_the_way {
            return Err(LockError::Conflict(Box::new(LockHolder {
                owner: other.clone(),
                range: ByteRange::ALL,
                exclusive: share.write || share.deny_read,
            })));
        }
        self.check_lock_limits(&owner.client)?;
        let shares = &mut self.files.entry(file).or_default().shares;
        if shares.insert(owner.clone(), mode).is_none() {
            self.count(file, &owner.client, 0, 1);
        }
        Ok(())
    }

    pub(super) fn unshare(&mut self, file: FileHandle, owner: &LockOwner) -> bool {
        let shares = self.files.get_mut(&file).map(|file| &mut file.shares);
        let existed = shares.is_some_and(|shares| shares.remove(owner).is_some());
        if existed {
            self.count(file, &owner.client, 1, 0);
        }
        existed
    }

    pub(super) fn release_client(&mut self, client: &LockClient) {
        let Some(uses) = self.clients.get(client) else {
            return;
        };
        let mut files: BTreeSet<FileHandle> = uses.locks_by_file.keys().copied().collect();
        for number in uses.waiting.clone() {
            files.insert(self.waiting[&number].request.file);
            self.dequeue(number);
        }
        for file in &files {
            self.release_in_file(*file, client);
        }
        self.serve(files);
    }

    pub(super) fn break_locks(&mut self, file: FileHandle, client: &LockClient) -> Vec<LockOwner> {
        let owners = self.release_in_file(file, client);
        self.serve(BTreeSet::from([file]));
        owners
    }

    /// Releases what a client holds and has reserved in a file.
    fn release_in_file(&mut self, file: FileHandle, client: &LockClient) -> Vec<LockOwner> {
        let Some(locks) = self.files.get(&file) else {
            return Vec::new();
        };
        let holders = locks.held.keys().chain(locks.shares.keys());
        let is_asked = |owner: &&LockOwner| owner.client == *client;
        let owners: BTreeSet<LockOwner> = holders.filter(is_asked).cloned().collect();
        for owner in &owners {
            self.set(file, owner, ByteRange::ALL, None);
            self.unshare(file, owner);
        }
        owners.into_iter().collect()
    }

    pub(super) fn is_used_by(&self, client: &LockClient) -> bool {
        self.clients.contains_key(client)
    }

    pub(super) fn holders(&self, file: FileHandle) -> Vec<LockHolder> {
        let held = self.files.get(&file).map(|file| &file.held);
        held.into_iter()
            .flatten()
            .flat_map(|(owner, segments)| segments.iter().map(move |segment| (owner, segment)))
            .map(|(owner, segment)| LockHolder {
                owner: owner.clone(),
                range: segment.range,
                exclusive: segment.exclusive,
            })
            .collect()
    }

    pub(super) fn held_in(&self, file_system: u64, limit: usize) -> (Vec<HeldLock>, usize) {
        let of = |inode| FileHandle { file_system, inode };
        let (mut listed, mut all) = (Vec::new(), 0);
        for (file, locks) in self.files.range(of(0)..=of(u64::MAX)) {
            let held = locks.held.iter().flat_map(|(owner, segments)| {
                let segments = segments.iter();
                segments.map(move |segment| (owner, segment.range, segment.exclusive, None))
            });
            let shares = locks.shares.iter().map(|(owner, share)| {
                let denies = share.deny_read || share.deny_write;
                (owner, ByteRange::ALL, denies, Some(*share))
            });
            for (owner, range, exclusive, share) in held.chain(shares) {
                all += 1;
                if listed.len() < limit {
                    listed.push(HeldLock {
                        file: *file,
                        holder: LockHolder {
                            owner: owner.clone(),
                            range,
                            exclusive,
                        },
                        share,
                        waiting: locks.queue.len(),
                    });
                }
            }
        }
        (listed, all)
    }

    pub(super) fn counts(&self) -> LockCounts {
        LockCounts {
            locks: self.locks,
            waiters: self.waiting.len(),
            clients: self.clients.len(),
        }
    }

    pub(super) fn held_by(&self, protocol: LockProtocol) -> usize {
        let of_protocol = self
            .clients
            .iter()
            .filter(|(client, _)| client.protocol == protocol);
        of_protocol.map(|(_, client)| client.locks).sum()
    }

    /// One operation adds at most two ranges (the new one, and the rest of one it splits).
    fn check_lock_limits(&self, client: &LockClient) -> Result<(), LockError> {
        let of_client = self.clients.get(client).map_or(0, |client| client.locks);
        if self.locks + 2 > self.limits.locks || of_client + 2 > self.limits.locks_per_client {
            return Err(LockError::TooMany);
        }
        Ok(())
    }

    fn check_waiter_limits(&self, request: &LockRequest) -> Result<(), LockError> {
        let client = self.clients.get(&request.owner.client);
        let file = self.files.get(&request.file);
        let full = self.waiting.len() >= self.limits.waiters
            || client.map_or(0, |client| client.waiting.len()) >= self.limits.waiters_per_client
            || file.map_or(0, |file| file.queue.len()) >= self.limits.waiters_per_file;
        if full { Err(LockError::TooMany) } else { Ok(()) }
    }

    /// The owners that hold a lock in the way, with the first such lock of each.
    pub(super) fn in_the_way<'a>(
        &'a self,
        request: &'a LockRequest,
    ) -> impl Iterator<Item = LockHolder> + 'a {
        let held = self.files.get(&request.file).map(|file| &file.held);
        held.into_iter()
            .flatten()
            .filter(|(owner, _)| **owner != request.owner)
            .filter_map(|(owner, segments)| {
                let segment = segments.first_overlap(request.range, !request.exclusive)?;
                Some(LockHolder {
                    owner: owner.clone(),
                    range: segment.range,
                    exclusive: segment.exclusive,
                })
            })
    }

    pub(super) fn check_held(&mut self, request: &LockRequest) -> Result<(), LockError> {
        let first = self
            .in_the_way(request)
            .min_by_key(|holder| (holder.range.first, holder.owner.clone()));
        match first {
            Some(holder) => {
                self.note_in_the_way(request.file.file_system, &holder.owner.client);
                Err(LockError::Conflict(Box::new(holder)))
            }
            None => Ok(()),
        }
    }

    /// The earlier requests that conflict with `request`, which has (or would get) `number`.
    fn ahead<'a>(
        &'a self,
        request: &'a LockRequest,
        number: u64,
    ) -> impl Iterator<Item = &'a LockRequest> + 'a {
        let queue = self.files.get(&request.file).map(|file| &file.queue);
        queue
            .into_iter()
            .flat_map(move |queue| queue.range(..number))
            .map(|earlier| &self.waiting[earlier].request)
            .filter(move |earlier| conflict(earlier, request))
    }

    /// Whether fairness makes `request` wait: there is an earlier one it conflicts with, whose owner does not itself wait
    /// for the owner of `request`.
    fn must_queue(&self, request: &LockRequest, number: u64) -> bool {
        self.ahead(request, number)
            .any(|earlier| !self.waits_for(&earlier.owner, &request.owner))
    }

    /// The owners that `request` waits (or would wait) for.
    fn waits_for_owners(&self, request: &LockRequest, number: u64, edges: Edges) -> Vec<LockOwner> {
        let mut owners: Vec<LockOwner> = self.in_the_way(request).map(|holder| holder.owner).collect();
        if edges == Edges::HeldAndQueue {
            owners.extend(self.ahead(request, number).map(|earlier| earlier.owner.clone()));
        }
        owners
    }

    fn waits_for(&self, from: &LockOwner, to: &LockOwner) -> bool {
        let mut seen = BTreeSet::from([from.clone()]);
        let mut open = vec![from.clone()];
        while let Some(owner) = open.pop() {
            for next in self.next_owners(&owner, Edges::HeldAndQueue) {
                if next == *to {
                    return true;
                }
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        false
    }

    fn next_owners(&self, owner: &LockOwner, edges: Edges) -> Vec<LockOwner> {
        if edges == Edges::Held && owner.client.protocol == LockProtocol::Office {
            // One of its clients waits, and it is another one that holds: no circle that anybody can see from here.
            return Vec::new();
        }
        let numbers = self.waiting_by_owner.get(owner);
        numbers
            .into_iter()
            .flatten()
            .flat_map(|number| self.waits_for_owners(&self.waiting[number].request, *number, edges))
            .collect()
    }

    /// The circle of owners that `request` would close by waiting, beginning with its own.
    fn circle(&self, request: &LockRequest, edges: Edges) -> Option<Vec<LockOwner>> {
        // Reached owner → from whom.
        let mut came_from: BTreeMap<LockOwner, LockOwner> = BTreeMap::new();
        let mut open = Vec::new();
        for owner in self.waits_for_owners(request, self.next_number, edges) {
            if came_from.insert(owner.clone(), request.owner.clone()).is_none() {
                open.push(owner);
            }
        }
        while let Some(owner) = open.pop() {
            for next in self.next_owners(&owner, edges) {
                if next == request.owner {
                    let mut circle = vec![owner];
                    while let Some(previous) = came_from.get(&circle[circle.len() - 1])
                        && *previous != request.owner
                    {
                        circle.push(previous.clone());
                    }
                    circle.push(next);
                    circle.reverse();
                    return Some(circle);
                }
                if !came_from.contains_key(&next) {
                    came_from.insert(next.clone(), owner.clone());
                    open.push(next);
                }
            }
        }
        None
    }

    /// Gives the lock; returns the files in which that may help others.
    fn take(&mut self, request: &LockRequest) -> BTreeSet<FileHandle> {
        let (file, owner) = (request.file, &request.owner);
        self.set(file, owner, request.range, Some(request.exclusive));
        if self.waiting_by_owner.contains_key(owner) {
            // Whoever now waits for this owner waits for what it waits for, in other files too: that may close a circle
            // in which a place in a queue has to give way.
            self.files_with_waiters()
        } else {
            BTreeSet::from([file])
        }
    }

    /// Changes what `owner` holds; whether it did hold anything in the file before.
    pub(super) fn set(
        &mut self,
        file: FileHandle,
        owner: &LockOwner,
        range: ByteRange,
        exclusive: Option<bool>,
    ) -> bool {
        let held = &mut self.files.entry(file).or_default().held;
        let segments = held.entry(owner.clone()).or_default();
        let before = segments.len();
        segments.set(range, exclusive);
        let after = segments.len();
        if segments.is_empty() {
            held.remove(owner);
        }
        self.count(file, &owner.client, before, after);
        before > 0
    }

    /// Keeps the counts and drops what is empty.
    fn count(&mut self, file: FileHandle, client: &LockClient, before: usize, after: usize) {
        self.note_change(file.file_system, client);
        let uses = self.clients.entry(client.clone()).or_default();
        let in_file = uses.locks_by_file.entry(file).or_default();
        *in_file = *in_file + after - before;
        if *in_file == 0 {
            uses.locks_by_file.remove(&file);
        }
        uses.locks = uses.locks + after - before;
        self.locks = self.locks + after - before;
        if uses.locks == 0 && uses.waiting.is_empty() {
            self.clients.remove(client);
        }
        if self.files.get(&file).is_some_and(File::is_unused) {
            self.files.remove(&file);
        }
    }

    /// Puts a request of another office at the end of its file's queue.
    pub(super) fn enqueue_of_office(&mut self, request: LockRequest) {
        let number = self.next_number;
        self.next_number += 1;
        self.enqueue(number, request, oneshot::channel().0);
    }

    fn enqueue(&mut self, number: u64, request: LockRequest, granted: oneshot::Sender<()>) {
        self.note_change(request.file.file_system, &request.owner.client);
        self.files.entry(request.file).or_default().queue.insert(number);
        let client = self.clients.entry(request.owner.client.clone()).or_default();
        client.waiting.insert(number);
        let of_owner = self.waiting_by_owner.entry(request.owner.clone()).or_default();
        of_owner.insert(number);
        self.waiting.insert(number, Waiting { request, granted });
    }

    pub(super) fn dequeue(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        let request = &waiting.request;
        if let Some(file) = self.files.get_mut(&request.file) {
            file.queue.remove(&number);
        }
        if let Some(client) = self.clients.get_mut(&request.owner.client) {
            client.waiting.remove(&number);
        }
        if let Some(of_owner) = self.waiting_by_owner.get_mut(&request.owner) {
            of_owner.remove(&number);
            if of_owner.is_empty() {
                self.waiting_by_owner.remove(&request.owner);
            }
        }
        self.count(request.file, &request.owner.client, 0, 0);
        Some(waiting)
    }

    /// Takes a lock for a request, and serves those whom that helps.
    fn take_and_serve(&mut self, request: &LockRequest) {
        let helped = self.take(request);
        self.serve(helped);
    }

    /// Grants what can be granted in `files`, in the order of arrival. A grant can help others (it frees bytes if it is a
    /// downgrade), so that queues are looked at again; each round takes a request out of a queue or a file out of `files`.
    pub(super) fn serve(&mut self, mut files: BTreeSet<FileHandle>) {
        while let Some(file) = files.first().copied() {
            let servable = self.first_servable(file);
            let Some(waiting) = servable.and_then(|number| self.dequeue(number)) else {
                files.remove(&file);
                continue;
            };
            files.extend(self.take(&waiting.request));
            self.note_served(&waiting.request);
            // If the waiter is just being dropped, it finds itself granted and gives the lock back.
            let _ = waiting.granted.send(());
        }
    }

    pub(super) fn files_with_waiters(&self) -> BTreeSet<FileHandle> {
        let waiting = self.waiting.values();
        waiting.map(|waiting| waiting.request.file).collect()
    }

    fn first_servable(&self, file: FileHandle) -> Option<u64> {
        // Other offices may wait from the beginning; what clients here take again comes first.
        if self.in_grace && !firn_env::planted!("session.grace_serves_other_offices") {
            return None;
        }
        if !self.grants(file.file_system) && !firn_env::planted!("session.unlock_serves_a_closed_table") {
            return None;
        }
        let queue = self.files.get(&file).map(|file| &file.queue)?;
        queue.iter().copied().find(|number| {
            let request = &self.waiting[number].request;
            self.in_the_way(request).next().is_none() && !self.must_queue(request, *number)
        })
    }
}
