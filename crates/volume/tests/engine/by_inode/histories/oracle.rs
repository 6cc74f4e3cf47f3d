//! The judge of a history: every root that the table has shown, in its order, with the arenas of that moment.

use super::{
    Places, Told, Where,
    office::{contents, is_whole, names_in},
};
use crate::{
    by_inode::offices::{patient, start},
    world::World,
};
use firn_anchor::{Anchor, Arena, LeaseRange, MemberNumber, OwnerId, VolumeTuple};
use firn_env::sim::Simulation;
use firn_format::{
    Checkpoint, FamilyId, INODE_MAP, Place, Pointer, TreeRoot, Uid, Version, VolumeId, checkpoint_place,
    decode_object,
};
use firn_store::{ObjectKey, Store};
use firn_table::{Condition, ItemKey, MemoryTable, Table, Write};
use firn_vfs::{FileHandle, Vfs};
use firn_volume::{Parts, Volume, file_system_id};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

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
    /// Changes of which everything is there.
    whole: BTreeSet<u64>,
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
    let mut all: Vec<Seen> = Vec::new();
    for (at, (tuple, arenas)) in observed.roots.iter().enumerate() {
        if !tuple.by_inode {
            continue;
        }
        let is_last = at + 1 == observed.roots.len();
        let seen = see(simulation, world, tuple, (places, is_last))?;
        let committer = tuple.root.as_ref().and_then(|root| member_of(root.owner));
        if let Some(before) = all.last() {
            go_on(before, &seen)?;
            held(before, &seen, arenas, committer)?;
        }
        all.push(seen);
    }
    let Some(last) = all.last() else {
        return Err("there is no root".into());
    };
    let mut found = last.whole.clone();
    for (clone, office) in &told.salvaged {
        let salvaged = see_clone(simulation, world, *clone, places)?;
        if !all
            .iter()
            .any(|ground| stands_on(&salvaged, ground, (*office, told)))
        {
            return Err(format!(
                "S2: what {office} salvaged stands on no root: {:?}",
                salvaged.contents
            ));
        }
        let own = |number: &&u64| told.begun_by.get(*number) == Some(office);
        found.extend(salvaged.whole.iter().filter(own));
    }
    match told.acknowledged.keys().find(|number| !found.contains(number)) {
        None => Ok(()),
        Some(lost) => Err(format!("S2: change {lost} was acknowledged and is nowhere")),
    }
}

/// Whether a clone is a root and, upon that, nothing but what one office began.
fn stands_on(clone: &Seen, ground: &Seen, (office, told): (MemberNumber, &Told)) -> bool {
    let mut places = ground.contents.iter().zip(&clone.contents);
    places.all(|((place, was), (_, is))| {
        let added: Option<Vec<u64>> = match place {
            Where::Cell(_) => is.strip_prefix(&was[..]).map(<[u64]>::to_vec),
            Where::Directory(_) => {
                let is_all = was.iter().all(|number| is.contains(number));
                let added = is.iter().copied().filter(|number| !was.contains(number));
                is_all.then(|| added.collect())
            }
        };
        let is_own = |number: &u64| told.begun_by.get(number) == Some(&office);
        added.is_some_and(|added| added.iter().all(is_own))
    })
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
fn see(
    simulation: &Simulation,
    world: &World,
    tuple: &VolumeTuple,
    (places, is_last): (&Places, bool),
) -> Result<Seen, String> {
    let machine = simulation.machine("observer");
    let env = machine.env();
    let parts = world.parts_in(&env);
    let table = MemoryTable::new();
    let client = table.connect(&env);
    let anchor = Anchor::new(client.clone(), env.clone(), parts.anchor.family());
    // What only older roots need may be deleted by now.
    let archive = world.archive().map(|archive| archive as Arc<dyn Store>);
    let store = match &archive {
        Some(archive) if !is_last => archive.clone(),
        Some(_) | None => parts.store.clone(),
    };
    let parts = Parts {
        anchor,
        store,
        ..parts
    };
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
        // Read at the places where they were put: who has no keys is led nowhere.
        let where_put = archive.unwrap_or_else(|| parts.store.clone());
        let leaves = leaves(&*where_put, parts.anchor.family(), (pointer, root.version)).await;
        let (contents, whole) = read(&opened, &places, is_last)
            .await
            .map_err(|why| format!("S2: version {}: {why}", root.version.0))?;
        are_a_tree(&opened, &places)
            .await
            .map_err(|why| format!("S1: version {}: {why}", root.version.0))?;
        Ok::<_, String>(Seen {
            version: root.version,
            leaves,
            contents,
            whole,
        })
    });
    machine.crash();
    seen.map_err(|error| error.to_string())?
}

/// Reads a salvage clone, as its owner would.
fn see_clone(
    simulation: &Simulation,
    world: &World,
    clone: VolumeId,
    places: &Places,
) -> Result<Seen, String> {
    let machine = simulation.machine("owner of a clone");
    let parts = world.parts_in(&machine.env());
    let parts = Parts {
        volume: clone,
        ..parts
    };
    let here = |file: &FileHandle| FileHandle {
        file_system: file_system_id(clone),
        ..*file
    };
    let all = |files: &[FileHandle]| files.iter().map(here).collect::<Vec<_>>();
    let places = Places {
        cells: all(&places.cells),
        directories: all(&places.directories),
        moved: all(&places.moved),
    };
    let seen = simulation.run(async move {
        let opened = Volume::open(parts, patient()).await;
        let (opened, _) = opened.map_err(|error| error.to_string())?;
        are_a_tree(&opened, &places).await?;
        let (contents, whole) = read(&opened, &places, true).await?;
        Ok::<_, String>(Seen {
            contents,
            whole,
            ..Seen::default()
        })
    });
    machine.crash();
    let seen = seen.map_err(|error| error.to_string())?;
    seen.map_err(|why| format!("S2: a salvage clone: {why}"))
}

type Contents = Vec<(Where, Vec<u64>)>;

/// What each place has, and if that is asked which changes are there whole.
async fn read(volume: &Volume, places: &Places, wholly: bool) -> Result<(Contents, BTreeSet<u64>), String> {
    let (mut found, mut whole) = (Contents::new(), BTreeSet::new());
    let cells = places.cells.iter().map(|cell| Where::Cell(*cell));
    let directories = places.directories.iter().chain(&places.moved);
    for place in cells.chain(directories.map(|within| Where::Directory(*within))) {
        let unreadable = |error| format!("{place:?}: {error}");
        let numbers = contents(volume, place).await.map_err(unreadable)?;
        for number in numbers.iter().filter(|_| wholly) {
            let is_there = match place {
                Where::Cell(_) => true,
                Where::Directory(within) => is_whole(volume, within, *number).await.map_err(unreadable)?,
            };
            whole.extend(Some(*number).filter(|_| is_there));
        }
        found.push((place, numbers));
    }
    Ok((found, whole))
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
async fn leaves(
    store: &dyn Store,
    family: FamilyId,
    (root, version): (Pointer, Version),
) -> BTreeMap<u64, Uid> {
    let object = async |pointer: Pointer, place: Place| {
        let location = pointer.location;
        let key = ObjectKey::new(&location.segment.key(&family));
        let (offset, length) = (u64::from(location.offset), u64::from(location.length));
        let bytes = store.get_range(&key, offset, length).await.expect("it is there");
        let fetched = decode_object(bytes).expect("an object");
        fetched.verify(&pointer.uid, Some(place)).expect("the right one")
    };
    let head = object(root, checkpoint_place(version)).await;
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
        for child in &object(pointer, place).await.header.children {
            next.push((level - 1, index << 7 | u64::from(child.slot), child.pointer));
        }
    }
    found
}
