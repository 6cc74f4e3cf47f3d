//! The judge of a history: every root that the table has shown, in its order, with the arenas of that moment.

use super::{
    Places, Told, Where,
    office::{contents, names_in},
};
use crate::{
    by_inode::offices::{patient, start},
    world::World,
};
use firn_anchor::{Anchor, Arena, LeaseRange, MemberNumber, OwnerId, VolumeTuple};
use firn_env::sim::Simulation;
use firn_format::{
    Checkpoint, INODE_MAP, Place, Pointer, TreeRoot, Uid, Version, checkpoint_place, decode_object,
};
use firn_store::ObjectKey;
use firn_table::{Condition, ItemKey, MemoryTable, Table, Write};
use firn_vfs::{FileHandle, Vfs};
use firn_volume::{Parts, Volume};
use std::collections::{BTreeMap, BTreeSet};

/// What the table has shown.
#[derive(Default)]
pub struct Observed {
    arenas: BTreeMap<u64, Arena>,
    roots: Vec<(VolumeTuple, BTreeMap<u64, Arena>)>,
}

impl Observed {
    pub fn arena(&mut self, arena: Arena) {
        self.arenas.insert(arena.number(), arena);
    }

    pub fn root(&mut self, tuple: VolumeTuple) {
        let uid = |tuple: &VolumeTuple| tuple.root.as_ref().map(|root| root.uid);
        let last = self.roots.last().and_then(|(last, _)| uid(last));
        if uid(&tuple) != last {
            self.roots.push((tuple, self.arenas.clone()));
        }
    }
}

/// A root, as it is read.
#[derive(Default)]
struct Seen {
    version: Version,
    leaves: BTreeMap<u64, Uid>,
    contents: Vec<(Where, Vec<u64>)>,
}

/// Holds a history against the promises.
pub fn judge(
    simulation: &Simulation,
    world: &World,
    members: &[MemberNumber],
    observed: Observed,
    places: &Places,
    told: &Told,
) -> Result<(), String> {
    // Offices are named by their places; the one that formatted the volume was none.
    let member_of = |edge: OwnerId| {
        let place = usize::from(edge.0[0]).checked_sub(1)?;
        let is_office = edge == OwnerId([edge.0[0]; 16]);
        members.get(place).copied().filter(|_| is_office)
    };
    let mut before: Option<Seen> = None;
    let mut last = BTreeSet::new();
    for (tuple, arenas) in &observed.roots {
        if !tuple.by_inode {
            continue;
        }
        let seen = see(simulation, world, tuple, places)?;
        let committer = tuple.root.as_ref().and_then(|root| member_of(root.owner));
        if let Some(before) = &before {
            go_on(before, &seen)?;
            held(before, &seen, arenas, committer)?;
        }
        last = seen
            .contents
            .iter()
            .flat_map(|(_, numbers)| numbers.clone())
            .collect();
        before = Some(seen);
    }
    for number in told.acknowledged.keys() {
        if !last.contains(number) && !told.salvaged.contains(number) {
            return Err(format!("S2: change {number} was acknowledged and is nowhere"));
        }
    }
    Ok(())
}

/// S2, S4: each place goes on from what it was.
fn go_on(before: &Seen, seen: &Seen) -> Result<(), String> {
    for ((place, was), (_, is)) in before.contents.iter().zip(&seen.contents) {
        let goes_on = match place {
            Where::Cell(_) => is.starts_with(was),
            Where::Directory(_) => was.iter().all(|number| is.contains(number)),
        };
        let numbers: BTreeSet<_> = is.iter().collect();
        if !goes_on || numbers.len() != is.len() {
            return Err(format!(
                "S2: in version {} {place:?} is {is:?}, and was {was:?}",
                seen.version.0
            ));
        }
    }
    Ok(())
}

/// S1: what differs was held by who committed it.
fn held(
    before: &Seen,
    seen: &Seen,
    arenas: &BTreeMap<u64, Arena>,
    committer: Option<MemberNumber>,
) -> Result<(), String> {
    let all: BTreeSet<u64> = before.leaves.keys().chain(seen.leaves.keys()).copied().collect();
    for inode in all
        .into_iter()
        .filter(|inode| before.leaves.get(inode) != seen.leaves.get(inode))
    {
        let around = Arena::around(inode);
        let arena = arenas.get(&around.number()).unwrap_or(&around);
        let holder = arena.holder(LeaseRange::around(inode, 0).expect("the lowest level"));
        if holder != Ok(committer) {
            return Err(format!(
                "S1: in version {} {committer:?} commits inode {inode} of {holder:?}",
                seen.version.0
            ));
        }
    }
    Ok(())
}

/// Reads a root on a table that knows nothing else.
fn see(simulation: &Simulation, world: &World, tuple: &VolumeTuple, places: &Places) -> Result<Seen, String> {
    let machine = simulation.machine("observer");
    let env = machine.env();
    let parts = world.parts_in(&env);
    let table = MemoryTable::new();
    let client = table.connect(&env);
    let anchor = Anchor::new(client.clone(), env.clone(), parts.anchor.family());
    let parts = Parts { anchor, ..parts };
    let (tuple, places) = (tuple.clone(), places.clone());
    let seen = simulation.run(async move {
        parts
            .anchor
            .create_family()
            .await
            .map_err(|error| error.to_string())?;
        let (family, volume) = (parts.anchor.family(), parts.volume);
        let write = Write::Put {
            key: ItemKey::new(format!("family/{family}"), format!("volume/{}", volume.hex())),
            value: tuple.to_bytes(),
            condition: Condition::Absent,
        };
        client
            .transact(vec![write])
            .await
            .map_err(|error| error.to_string())?;
        let joined = parts
            .anchor
            .join_volume(volume, OwnerId([0xff; 16]), "observer")
            .await;
        let number = joined.map_err(|error| error.to_string())?;
        let opened = start(&parts, number, &patient()).await;
        let root = tuple.root.as_ref().ok_or("a root is lost")?;
        let pointer = Pointer {
            uid: root.uid,
            location: root.location,
        };
        let leaves = leaves(&parts, pointer, root.version).await;
        let mut contents_seen = Vec::new();
        let cells = places.cells.iter().map(|cell| Where::Cell(*cell));
        let directories = places.directories.iter().chain(&places.moved);
        for place in cells.chain(directories.map(|within| Where::Directory(*within))) {
            let numbers = contents(&opened, place).await;
            let numbers =
                numbers.map_err(|error| format!("S2: version {}: {place:?}: {error}", root.version.0))?;
            contents_seen.push((place, numbers));
        }
        are_a_tree(&opened, &places)
            .await
            .map_err(|why| format!("S1: version {}: {why}", root.version.0))?;
        Ok::<_, String>(Seen {
            version: root.version,
            leaves,
            contents: contents_seen,
        })
    });
    machine.crash();
    seen.map_err(|error| error.to_string())?
}

/// Each directory is met once on the way from the root.
async fn are_a_tree(volume: &Volume, places: &Places) -> Result<(), String> {
    let (mut met, mut next) = (BTreeSet::new(), vec![volume.root()]);
    let known: BTreeSet<FileHandle> = places.directories.iter().chain(&places.moved).copied().collect();
    while let Some(here) = next.pop() {
        for (name, handle) in names_in(volume, here).await.map_err(|error| error.to_string())? {
            if known.contains(&handle) {
                if !met.insert(handle) {
                    return Err(format!("{name} has two names"));
                }
                next.push(handle);
            }
        }
    }
    match known.difference(&met).next() {
        None => Ok(()),
        Some(lost) => Err(format!("{lost:?} is below itself, or nowhere")),
    }
}

/// The leaves of a root's inode map, by a reader without keys.
async fn leaves(parts: &Parts, root: Pointer, version: Version) -> BTreeMap<u64, Uid> {
    let read = async |pointer: Pointer, place: Place| {
        let location = pointer.location;
        let key = ObjectKey::new(&location.segment.key(&parts.anchor.family()));
        let (offset, length) = (u64::from(location.offset), u64::from(location.length));
        let bytes = parts
            .store
            .get_range(&key, offset, length)
            .await
            .expect("it is there");
        let fetched = decode_object(bytes).expect("an object");
        fetched.verify(&pointer.uid, Some(place)).expect("the right one")
    };
    let head = read(root, checkpoint_place(version)).await;
    let head = Checkpoint::from_verified(&head).expect("a checkpoint");
    let mut found = BTreeMap::new();
    let mut next: Vec<(u8, u64, Pointer)> = head
        .inode_map
        .iter()
        .map(|TreeRoot { pointer, level }| (*level, 0, *pointer))
        .collect();
    while let Some((level, index, pointer)) = next.pop() {
        if level == 0 {
            found.insert(index, pointer.uid);
            continue;
        }
        let place = Place {
            inode: INODE_MAP,
            level,
            index,
        };
        for child in &read(pointer, place).await.header.children {
            next.push((level - 1, index << 7 | u64::from(child.slot), child.pointer));
        }
    }
    found
}
