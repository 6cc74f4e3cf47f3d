//! The judge: follows the engine with an executable model and knows what a crash may undo.
//!
//! The engine tells (through `Env::observe`) when it applies a change, under the same lock that orders its journal. At that
//! instant the judge makes the same call on the model, with the same clock; so it needs not guess the order of concurrent
//! calls from their replies. It then holds against the engine:
//!
//! - a change answers as the model did at the instant of the change; any other call as the model would at some instant
//!   between its beginning and its end;
//! - after a crash the file system is the model after the first k changes, for some k that covers every change that was
//!   acknowledged as stable (I6), and k is all of them after a clean stop;
//! - after a takeover, some k that covers everything committed (I8), and every change that a client was told at level 2: the machine may be
//!   lost with its disk.
//!
//! ```text
//! changes   0 ────────── cloud floor ────────── floor ────────── newest
//!                        committed              acknowledged     applied in memory
//!                        └ a takeover keeps      └ a crash keeps  └ a clean stop keeps
//! ```

mod answers;
mod calls;
mod fork;
mod snapshots;

pub use answers::{is_trouble, read_model};
pub use calls::{current_call, in_call};
pub use snapshots::Found;

use crate::{
    operation::Operation,
    outcome::{Outcome, Pairing, Reply, same, short},
    tree::Tree,
};
use answers::{answer, is_stable, listed};
use firn_env::{Env, Monotonic};
use firn_vfs::{
    Caller, CompletedRequest, Durability, FileHandle, MemoryOptions, MemorySnapshot, MemoryVfs, RequestId,
    Timestamp, Vfs, VfsError,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Acknowledged requests that a restarted server must still recognise: clients send again within seconds.
const REMEMBERED_REQUESTS: usize = 64;
/// How long an answered request is surely recognised: servers forget them after three minutes, when the next one comes.
const REQUESTS_KEPT: Duration = Duration::from_secs(150);

struct Pending {
    operation: Operation,
    caller: Caller,
    client: usize,
    /// The number of the change it made, and what the model answered.
    applied: Option<(usize, Outcome)>,
    /// What the model would have answered since it began, as long as it changes nothing, with the number of changes then.
    possible: Vec<(usize, Outcome)>,
    /// For a commit: the last write to its file before it began.
    covers: usize,
}

struct Change {
    /// The state after it.
    after: MemorySnapshot,
    request: Option<RequestId>,
    created: Option<u64>,
    /// The file it wrote data to.
    written: Option<u64>,
    /// Whose call made it; nobody's if the volume did by itself.
    client: Option<usize>,
    description: String,
}

/// Whether a stop may lose something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nothing: the stop was orderly.
    Clean,
    /// What was not acknowledged as stable.
    Crash,
    /// What was not committed: another edge took over.
    Takeover,
}

/// See the module.
pub struct Oracle {
    env: Env,
    model: MemoryVfs,
    pairing: Pairing,
    base: MemorySnapshot,
    changes: Vec<Change>,
    /// What happened to snapshots, with the number of the change.
    snapshots: Vec<(usize, snapshots::Event)>,
    /// Changes that must survive a crash.
    floor: usize,
    /// Changes that must survive a takeover.
    cloud_floor: usize,
    pending: BTreeMap<u64, Pending>,
    next_call: u64,
    /// Requests acknowledged as stable, oldest first, with the file they made, and when.
    acknowledged: Vec<(usize, RequestId, Option<u64>, Monotonic)>,
    /// Cleared when clocks jump or long times pass: what is remembered of requests then is not known.
    requests_remembered: bool,
    failures: Vec<String>,
    log: Option<Vec<String>>,
    counts: BTreeMap<&'static str, u64>,
}

impl Oracle {
    /// A judge of an empty file system whose root directory is born now.
    pub fn new(env: &Env, options: MemoryOptions) -> Self {
        let model = MemoryVfs::new(env, options);
        Self {
            env: env.clone(),
            base: model.snapshot(),
            model,
            pairing: Pairing::default(),
            changes: Vec::new(),
            snapshots: Vec::new(),
            floor: 0,
            cloud_floor: 0,
            pending: BTreeMap::new(),
            next_call: 0,
            acknowledged: Vec::new(),
            requests_remembered: true,
            failures: Vec::new(),
            log: None,
            counts: BTreeMap::new(),
        }
    }

    /// Keeps a log of everything, for the replay of one seed.
    pub fn keep_log(&mut self) {
        self.log = Some(Vec::new());
    }

    /// Hands over failures, counts and log, and begins new ones.
    pub fn take_findings(&mut self) -> (Vec<String>, BTreeMap<&'static str, u64>, Vec<String>) {
        let log = self.log.as_mut().map(std::mem::take).unwrap_or_default();
        (
            std::mem::take(&mut self.failures),
            std::mem::take(&mut self.counts),
            log,
        )
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            let now = self.env.now().0 as f64 / 1e9;
            log.push(format!("{now:>12.6}   {}", line()));
        }
    }

    /// Reports something wrong.
    pub fn fail(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.note(|| format!("FAILURE: {what}"));
        self.failures.push(what);
    }

    /// The model in its present state.
    pub fn model(&self) -> &MemoryVfs {
        &self.model
    }

    /// Inodes of the engine that clients know.
    pub fn known_inodes(&self) -> Vec<u64> {
        self.pairing.engine_inodes()
    }

    /// The model's file for one of the engine's.
    pub fn model_handle(&self, engine: FileHandle) -> Option<FileHandle> {
        let inode = self.pairing.model(engine.inode)?;
        Some(FileHandle {
            file_system: self.model.root().file_system,
            inode,
        })
    }

    /// A client begins a call; returns its number.
    pub fn begin(&mut self, client: usize, caller: &Caller, operation: &Operation) -> u64 {
        let id = self.next_call;
        self.next_call += 1;
        let outcome = self.would_answer(caller, operation);
        let covers = match operation {
            Operation::Commit { file } => self
                .pairing
                .model(file.inode)
                .and_then(|file| {
                    self.changes
                        .iter()
                        .rposition(|change| change.written == Some(file))
                })
                .map_or(0, |index| index + 1),
            _ => 0,
        };
        self.note(|| format!("call {id} of client {client}: {operation:?}"));
        self.pending.insert(
            id,
            Pending {
                operation: operation.clone(),
                caller: caller.clone(),
                client,
                applied: None,
                possible: vec![(self.changes.len(), outcome)],
                covers,
            },
        );
        id
    }

    fn on_model(&self, operation: &Operation) -> Result<Operation, VfsError> {
        operation
            .map_handles(|handle| self.model_handle(handle))
            .map_err(|_| VfsError::Stale)
    }

    /// What the model would answer now, without being changed by it.
    fn would_answer(&self, caller: &Caller, operation: &Operation) -> Outcome {
        let operation = self.on_model(operation)?;
        if operation.is_query() {
            return answer(&self.model, caller, &operation);
        }
        answer(&self.model.fork(), caller, &operation)
    }

    /// The engine applied a change within call `id` (or in a task of its own) at the instant `now`.
    pub fn applied(&mut self, id: Option<u64>, now: Timestamp) {
        let Some(id) = id else {
            // Housekeeping: nothing to be seen from outside.
            self.push_change(None, None, None, None, "housekeeping".into());
            return;
        };
        self.model.set_now(Some(now));
        let Some(pending) = self.pending.get(&id) else {
            self.fail(format!("call {id} changed something after its end"));
            return;
        };
        if pending.applied.is_some() {
            self.fail(format!("call {id} was applied twice: {:?}", pending.operation));
            return;
        }
        let (caller, operation) = (pending.caller.clone(), pending.operation.clone());
        let client = Some(pending.client);
        let outcome = match self.on_model(&operation) {
            Ok(operation) => answer(&self.model, &caller, &operation),
            Err(stale) => Err(stale),
        };
        let created = match (&outcome, &operation) {
            (Ok(reply), _) => reply.handle.map(|handle| handle.inode),
            (Err(error), _) => {
                self.fail(format!(
                    "call {id} changed something where the model answers {error:?}: {operation:?}"
                ));
                None
            }
        };
        let description = format!("call {id}: {operation:?}");
        self.note(|| format!("applied at {now:?}: {description}, answers {}", short(&outcome)));
        let written = match &operation {
            Operation::Write { file, .. } => self.pairing.model(file.inode),
            _ => None,
        };
        self.push_change(client, caller.request, created, written, description);
        let number = self.changes.len();
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.applied = Some((number, outcome));
        }
        // The others may now answer otherwise.
        let others: Vec<u64> = self
            .pending
            .keys()
            .copied()
            .filter(|other| *other != id)
            .collect();
        for other in others {
            let pending = &self.pending[&other];
            if pending.applied.is_some() {
                continue;
            }
            let outcome = self.would_answer(&pending.caller, &pending.operation);
            if let Some(pending) = self.pending.get_mut(&other)
                && pending.possible.last().map(|(_, last)| last) != Some(&outcome)
            {
                pending.possible.push((number, outcome));
            }
        }
    }

    fn push_change(
        &mut self,
        client: Option<usize>,
        request: Option<RequestId>,
        created: Option<u64>,
        written: Option<u64>,
        description: String,
    ) {
        self.changes.push(Change {
            after: self.model.snapshot(),
            request,
            created,
            written,
            client,
            description,
        });
    }

    /// Call `id` is about to answer, in the same instant: for calls that change only what is in memory.
    pub fn returned(&mut self, id: u64, outcome: &Outcome) {
        let Some(pending) = self.pending.get(&id) else {
            return;
        };
        let in_memory = matches!(
            pending.operation,
            Operation::Retain { .. } | Operation::Release { .. }
        );
        if in_memory && pending.applied.is_none() && outcome.is_ok() {
            let answered = match self.on_model(&pending.operation) {
                Ok(operation) => answer(&self.model, &pending.caller, &operation),
                Err(stale) => Err(stale),
            };
            if answered != Ok(Reply::default()) {
                self.fail(format!(
                    "call {id} succeeded, the model answers {}: {:?}",
                    short(&answered),
                    self.pending[&id].operation
                ));
            }
        }
    }

    /// The engine answered call `id`.
    pub fn end(&mut self, id: u64, outcome: &Outcome) {
        let Some(pending) = self.pending.remove(&id) else {
            return;
        };
        self.note(|| format!("call {id} answers {}", short(outcome)));
        let what = || format!("call {id} of client {} {:?}", pending.client, pending.operation);
        if let Err(error) = outcome
            && is_trouble(error)
        {
            // Told to come back, or the edge is out of order: whether a change was made is not known, but it is not promised.
            *self.counts.entry("not served").or_default() += 1;
            return;
        }
        *self.counts.entry("answered").or_default() += 1;
        if let Some((number, expected)) = &pending.applied {
            match same(outcome, expected, &mut self.pairing) {
                Err(difference) => self.fail(format!("{}: {difference}", what())),
                Ok(()) if is_stable(outcome) => self.acknowledge(*number, &pending),
                Ok(()) => {}
            }
            return;
        }
        let operation = &pending.operation;
        if let (Operation::List { .. }, Ok(_)) = (operation, outcome) {
            if let Err(difference) = listed(outcome, &pending.possible, &mut self.pairing) {
                self.fail(format!("{}: {difference}", what()));
            }
            return;
        }
        if matches!(operation, Operation::Retain { .. } | Operation::Release { .. }) && outcome.is_ok() {
            return; // Judged as it returned.
        }
        let mut nearest = None;
        for (_, possible) in &pending.possible {
            match same(outcome, possible, &mut self.pairing) {
                Ok(()) => {
                    if outcome.is_ok() {
                        self.promised_without_change(&pending, possible);
                    }
                    return;
                }
                Err(difference) => nearest = Some(difference),
            }
        }
        self.fail(format!(
            "{}: {} (of {} possible answers)",
            what(),
            nearest.unwrap_or_default(),
            pending.possible.len()
        ));
    }

    /// A change that found nothing to do: a commit promises the writes before it, a repeated creation the file.
    fn promised_without_change(&mut self, pending: &Pending, answered: &Outcome) {
        let promised = match (&pending.operation, answered) {
            (Operation::Commit { .. }, _) => pending.covers,
            (Operation::Create { .. }, Ok(reply)) => {
                let file = reply.handle.map(|handle| handle.inode);
                self.changes
                    .iter()
                    .rposition(|change| file.is_some() && change.created == file)
                    .map_or(0, |index| index + 1)
            }
            _ => 0,
        };
        self.promise(promised, pending);
    }

    /// Everything up to change `number` survives: a crash of the machine, and its loss if the client was answered at level 2.
    fn promise(&mut self, number: usize, pending: &Pending) {
        self.floor = self.floor.max(number);
        if pending.caller.durability == Durability::Cloud && number > self.cloud_floor {
            self.cloud_floor = number;
            *self.counts.entry("answered at level 2").or_default() += 1;
        }
    }

    fn acknowledge(&mut self, number: usize, pending: &Pending) {
        self.promise(number, pending);
        let created = self.changes[number - 1].created;
        // A release is no request of a client that could be sent again.
        if let Some(request) = pending.caller.request
            && !matches!(pending.operation, Operation::Release { .. })
        {
            let now = self.env.now();
            self.acknowledged.push((number, request, created, now));
        }
    }

    /// Servers remember requests for minutes only: those acknowledged until now need not be recognised any more.
    pub fn time_passes(&mut self) {
        self.acknowledged.clear();
    }

    /// From now on it is not known how long ago anything was, or the system remembers nothing anyway.
    pub fn clock_jumps(&mut self) {
        self.requests_remembered = false;
    }

    /// Changes applied so far.
    pub fn newest(&self) -> usize {
        self.changes.len()
    }

    /// Everything up to change `number` is in the cloud.
    pub fn committed(&mut self, number: usize) {
        self.note(|| format!("committed up to change {number}"));
        self.cloud_floor = self.cloud_floor.max(number);
        self.floor = self.floor.max(number);
    }

    /// Calls that have not ended can no longer: their machine is down.
    pub fn forget_pending(&mut self) {
        self.pending.clear();
    }

    /// Compares what is there after a stop, with its snapshots if they were read; goes on from it.
    pub fn recovered(
        &mut self,
        stop: Stop,
        found: &Tree,
        completed: &[CompletedRequest],
        snapshots: Option<&[Found]>,
    ) {
        self.forget_pending();
        let floor = match stop {
            Stop::Clean => self.changes.len(),
            Stop::Crash => self.floor,
            Stop::Takeover => self.cloud_floor,
        };
        let newest = self.changes.len();
        self.note(|| format!("recovered after {stop:?}: floor {floor} of {newest}"));
        let mut nearest: Option<(usize, Vec<String>)> = None;
        for kept in (floor..=self.changes.len()).rev() {
            let candidate = self.candidate(kept);
            let expected = read_model(&candidate);
            if found.equals(&expected) && self.are_snapshots_after(kept, snapshots) {
                self.adopt(kept, &candidate, found, &expected, stop, completed);
                self.check_snapshots(stop, snapshots);
                return;
            }
            let differences = found.differences(&expected, 12);
            if nearest
                .as_ref()
                .is_none_or(|(_, best)| differences.len() < best.len())
            {
                nearest = Some((kept, differences));
            }
        }
        let (kept, differences) = nearest.unwrap_or_default();
        // Was too much lost?
        let lost = (0..floor)
            .rev()
            .find(|kept| found.equals(&read_model(&self.candidate(*kept))));
        let verdict = match lost {
            Some(kept) => format!(
                "only {kept} changes survived, {floor} were promised; first lost: {}",
                self.changes[kept].description
            ),
            None => format!(
                "no prefix of the history with its snapshots; nearest is {kept} (of {floor}..={}):\n    {}",
                self.changes.len(),
                differences.join("\n    ")
            ),
        };
        self.fail(format!("after {stop:?}: {verdict}"));
    }

    /// The model after the first `kept` changes and a crash.
    fn candidate(&self, kept: usize) -> MemoryVfs {
        let snapshot = match kept {
            0 => &self.base,
            number => &self.changes[number - 1].after,
        };
        let candidate = self.model.fork();
        candidate.restore(snapshot);
        // Files that were only retained are gone; writes are kept or lost with the change that made them.
        candidate.crash(|_, writes| writes);
        candidate
    }

    fn adopt(
        &mut self,
        kept: usize,
        candidate: &MemoryVfs,
        found: &Tree,
        expected: &Tree,
        stop: Stop,
        completed: &[CompletedRequest],
    ) {
        self.check_completed(kept, stop, completed);
        let lost: BTreeSet<u64> = self.changes[kept..]
            .iter()
            .filter_map(|change| change.created)
            .collect();
        self.model.restore(&candidate.snapshot());
        let exists: BTreeSet<u64> = expected.nodes.values().map(|(handle, _)| handle.inode).collect();
        self.pairing
            .keep(|model| exists.contains(&model), |model| !lost.contains(&model));
        for (path, (engine, _)) in &found.nodes {
            let (model, _) = &expected.nodes[path];
            if let Err(conflict) = self.pairing.pair(engine.inode, model.inode) {
                let path = String::from_utf8_lossy(path).into_owned();
                self.fail(format!("after {stop:?}, {path}: {conflict}"));
            }
        }
        let survived = self.changes.len() - kept;
        self.note(|| format!("recovered {kept} changes, {survived} undone"));
        self.changes.truncate(kept);
        self.snapshots.retain(|(change, _)| *change <= kept);
        // What a restarted edge shows, it must not lose at the next stop: clients go on from it.
        self.floor = kept;
        if stop == Stop::Takeover {
            self.cloud_floor = kept;
            self.acknowledged.clear();
        }
        self.acknowledged.retain(|(number, ..)| *number <= kept);
    }

    /// Changes that must survive a crash.
    pub fn floor(&self) -> usize {
        self.floor
    }

    /// The newest acknowledged requests must be recognised if they are sent again.
    fn check_completed(&mut self, kept: usize, stop: Stop, completed: &[CompletedRequest]) {
        if stop == Stop::Takeover {
            return;
        }
        let remembered = self.requests_remembered;
        let known: BTreeMap<RequestId, Option<u64>> = completed
            .iter()
            .map(|done| (done.request, done.created.map(|handle| handle.inode)))
            .collect();
        let newest = self.acknowledged.len().saturating_sub(REMEMBERED_REQUESTS);
        let mut forgotten = Vec::new();
        let now = self.env.now();
        for (number, request, created, at) in &self.acknowledged[newest..] {
            if *number > kept || !remembered || now.since(*at) > REQUESTS_KEPT {
                continue;
            }
            match known.get(request) {
                None => forgotten.push(format!("request {request:?} is not recognised after {stop:?}")),
                Some(engine) => {
                    let engine = engine.and_then(|inode| self.pairing.model(inode));
                    if engine.is_some() && engine != *created {
                        forgotten.push(format!("request {request:?} made {created:?}, not {engine:?}"));
                    }
                }
            }
        }
        for what in forgotten {
            self.fail(what);
        }
        let undone: BTreeSet<RequestId> = self.changes[kept..]
            .iter()
            .filter_map(|change| change.request)
            .collect();
        if let Some(done) = completed.iter().find(|done| undone.contains(&done.request)) {
            let request = done.request;
            self.fail(format!(
                "request {request:?} was undone by {stop:?}, yet counts as done"
            ));
        }
    }
}
