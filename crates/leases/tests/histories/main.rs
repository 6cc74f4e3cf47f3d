//! Random histories of members that change inodes under leases, over the anchor's real calls on a table that throttles, loses answers and lets requests land
//! late, with members that are cut off, die and come back.
//!
//! The content is a list of operations for each inode. What the table shows is the truth: each root, each arena and each member's record in the order in
//! which they were written. A history is sound if
//!
//! - **S1** each inode that differs between two roots is held, at that moment, by who committed;
//! - **S2** in each root an inode's operations go on from those of the root before; what was acknowledged is in the last root or in a salvage clone;
//! - **S3** an operation is done on all that was acknowledged as published before it began;
//! - **S4** an operation is committed on what it was done on;
//! - no member salvages anything unless it was broken; and once nothing fails any more, everything that was begun is done.

mod crowd;
mod fences;
mod files;
mod office;
mod slow_uplink;
mod world;

use firn_anchor::{Anchor, AnchorError, Arena, MemberNumber, MemberTuple, OwnerId, SHAPE_LEASE, VolumeTuple};
use firn_env::{Env, mutants::planting, sim::Simulation};
use firn_format::{FamilyId, Location, SegmentId, Uid, Version, VolumeId, WriterId};
use firn_table::{FaultRates, MemoryTable};
use office::Office;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use world::{Leaves, Shared, lock};

const FAMILY: FamilyId = FamilyId([1; 16]);
const VOLUME: VolumeId = VolumeId([7; 16]);
/// A number that an owner made before the volume was shared by inode: no member was ever drawn with its writer's number.
const HOME_OF_NO_MEMBER: u64 = 1000 << 32;

async fn prepare(
    anchor: &Anchor,
    env: &Env,
    world: &Shared,
    members: usize,
) -> Result<Vec<MemberNumber>, AnchorError> {
    anchor.create_family().await?;
    anchor.create_volume(VOLUME, "shared").await?;
    let mut owned = anchor.acquire(VOLUME, OwnerId([0xf; 16]), "first").await?;
    let segment = SegmentId {
        writer: WriterId(1),
        sequence: 1,
    };
    let location = Location {
        segment,
        offset: 0,
        length: 1,
    };
    let uid = Uid([1; 32]);
    lock(world).roots.insert(uid, Leaves::new());
    let root = owned.next_root(uid, location, Version(1), env.random_bytes(), 0);
    anchor.commit(&mut owned, root).await?;
    anchor.drain(&mut owned).await?;
    anchor.share_by_inode(VOLUME).await?;
    let mut numbers = Vec::new();
    for place in 0..members {
        let id = OwnerId([place as u8 + 1; 16]);
        let number = anchor.join_volume(VOLUME, id, "office").await?;
        lock(world).members.insert(id, number);
        numbers.push(number);
    }
    Ok(numbers)
}

/// Runs one history: what it went through, or what is wrong with it.
fn history(seed: u64) -> Result<BTreeMap<&'static str, u64>, String> {
    let simulation = Simulation::new(seed);
    let world: Shared = Arc::default();
    let table = MemoryTable::new();
    let watched = world.clone();
    table.watch(move |key, value| {
        let Some(value) = value else { return };
        let mut world = lock(&watched);
        if key.sort.starts_with("arena/") {
            let (arena, _) = Arena::from_bytes(value).unwrap();
            world.arenas.insert(arena.number(), arena);
        } else if key.sort.starts_with("member/") {
            MemberTuple::from_bytes(value).unwrap();
        } else if key.sort.starts_with("volume/") {
            world.commit(&VolumeTuple::from_bytes(value).unwrap());
        }
    });
    let env = simulation.env();
    let setup = Anchor::new(table.connect(&env), env.clone(), FAMILY);
    let (of_setup, set_up) = (world.clone(), env.clone());
    let members = 2 + env.random_below(4) as usize;
    let numbers = simulation
        .run(async move { prepare(&setup, &set_up, &of_setup, members).await })
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())?;
    let home = |place: usize, offset: u64| (u64::from(numbers[place].0) << 32) + offset;
    let inodes = vec![
        SHAPE_LEASE,
        home(0, 0),
        home(0, 1),
        home(0, 2),
        home(1, 0),
        HOME_OF_NO_MEMBER,
    ];
    // Every eighth history has a slow uplink, over which an upload takes longer than others wait for a sign of life.
    let upload_ms = [300, 300, 300, 300, 300, 300, 300, 90_000][env.random_below(8) as usize];
    let duel = match env.random_below(2) {
        0 => inodes[1..4].to_vec(),
        _ => Vec::new(),
    };
    let rates = FaultRates {
        throttle_per_mille: env.random_below(60) as u32,
        lose_reply_per_mille: env.random_below(120) as u32,
        late_per_mille: env.random_below(120) as u32,
        late_requests: 1 + env.random_below(60),
        delay: Duration::from_millis(1)..=Duration::from_millis(30),
    };
    let offices: Vec<Office> = numbers
        .iter()
        .map(|number| {
            let env = simulation.machine("office").env();
            let client = table.connect(&env);
            client.set_rates(rates.clone());
            Office {
                anchor: Anchor::new(client.clone(), env.clone(), FAMILY),
                env,
                client,
                number: *number,
                world: world.clone(),
                inodes: inodes.clone(),
                upload_ms,
                duel: duel.clone(),
            }
        })
        .collect();
    let waiting = env.clone();
    let ended = simulation.run(async move {
        let lives: Vec<_> = offices
            .into_iter()
            .map(|office| {
                let env = office.env.clone();
                env.spawn("office", office.live())
            })
            .collect();
        let all = futures::future::join_all(lives);
        waiting.timeout(Duration::from_secs(100_000), all).await.is_ok()
    });
    table.settle();
    let world = std::mem::take(&mut *lock(&world));
    if let Some(violation) = world.violation {
        return Err(violation);
    }
    if !ended.map_err(|error| error.to_string())? {
        return Err("progress: not all members ended".into());
    }
    for number in &world.acknowledged {
        let is_in = world.head.values().any(|leaf| leaf.contains(number));
        let is_salvaged = world.salvaged.contains(number);
        if is_in == is_salvaged {
            return Err(format!(
                "S2: operation {number}: in the volume {is_in}, salvaged {is_salvaged}"
            ));
        }
    }
    Ok(world.counts)
}

const HISTORIES: u64 = 200;
/// Within so many each rule that is left out must be noticed.
const SEEDS_OF_A_BUG: u64 = 500;

#[test]
fn members_that_fail_keep_all_promises() {
    let mut sum = BTreeMap::new();
    for seed in 0..HISTORIES {
        let counts = history(seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        for (what, count) in counts {
            *sum.entry(what).or_insert(0) += count;
        }
    }
    println!("{HISTORIES} histories: {sum:?}");
    for what in [
        "operations",
        "commits",
        "crashes",
        "breaks",
        "departures",
        "salvaged",
        "given home",
    ] {
        assert!(sum.get(what).is_some_and(|count| *count > 5), "{what}: {sum:?}");
    }
}

/// With ranges of 128 numbers wherever they can be had, as in an arena that is nearly full.
#[test]
fn members_that_take_wide_ranges_keep_all_promises() {
    let mut sum = 0;
    planting(Some("leases.arenas_always_crowded"), || {
        for seed in 0..HISTORIES {
            let counts = history(seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            sum += counts.get("of wide ranges").copied().unwrap_or(0);
        }
    });
    println!("{sum} commits under wide ranges");
    assert!(sum > 100, "{sum}");
}

/// Requires that a rule that is left out is noticed.
fn is_noticed(bug: &str) {
    let found = planting(Some(bug), || {
        (0..SEEDS_OF_A_BUG).find_map(|seed| history(seed).err().map(|why| (seed, why)))
    });
    println!("{bug}: {found:?}");
    assert!(found.is_some(), "{bug}");
}

#[test]
fn a_lease_that_is_used_as_soon_as_it_is_seen_in_the_arena_is_noticed() {
    is_noticed("leases.used_before_adoption");
}

#[test]
fn a_lease_that_is_given_before_its_changes_are_published_is_noticed() {
    is_noticed("leases.given_unpublished");
}

#[test]
fn a_lapsed_lease_that_is_used_is_noticed() {
    is_noticed("leases.lapsed_lease_used");
}

#[test]
fn a_commit_in_doubt_that_counts_as_not_made_is_noticed() {
    is_noticed("leases.doubt_is_failure");
}

#[test]
fn a_newer_root_that_is_built_on_without_adoption_is_noticed() {
    is_noticed("leases.rebase_without_adoption");
}

#[test]
fn records_that_go_on_though_they_stand_on_salvaged_ones_are_noticed() {
    is_noticed("leases.tainted_goes_on");
}

#[test]
fn a_broken_members_loss_that_is_judged_by_who_holds_it_now_is_noticed() {
    is_noticed("leases.lost_by_arenas_alone");
}

#[test]
fn a_clone_that_has_what_is_salvaged_and_not_what_that_stands_on_is_noticed() {
    is_noticed("leases.tainted_alone_in_the_clone");
}
