//! An office that was broken, comes back and judges its journal: what goes on, what is in the salvage clone, and a crash anywhere between.

use super::offices::{Machines, Started, connected, patient};
use crate::{
    files::{create, directory, look, name, read, write},
    world::root,
};
use firn_anchor::MemberNumber;
use firn_env::{mutants::planting, sim::Simulation};
use firn_vfs::Vfs;
use firn_volume::{MemberStartError, MemberStartReport, Volume};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Every path of a volume, with what the file there has; a directory's ends with a slash.
type Tree = BTreeMap<String, Vec<u8>>;

/// What the office that was broken changes while nobody hears it; the last tells the number of the inode it made last.
type Changes = fn(Arc<Volume>) -> futures::future::BoxFuture<'static, u64>;

/// What the other one does then, and publishes.
type Others = fn(Arc<Volume>) -> futures::future::BoxFuture<'static, ()>;

/// Two offices, of which the first is broken.
struct Offices {
    machines: Machines,
    number: MemberNumber,
    second: Arc<Volume>,
    last_made: u64,
}

/// What is there after a return.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    volume: Tree,
    /// Each salvage clone by its name.
    salvaged: BTreeMap<String, Tree>,
}

async fn tree(volume: &Volume) -> Tree {
    let (mut found, mut next) = (Tree::new(), vec![(String::from("/"), volume.root())]);
    while let Some((path, here)) = next.pop() {
        let names = super::histories::office::names_in(volume, here).await;
        for (text, handle) in names.expect("a directory") {
            let path = format!("{path}{text}");
            let attributes = volume.attributes(handle).await.expect("it is there");
            if attributes.kind == firn_vfs::FileKind::Directory {
                found.insert(format!("{path}/"), Vec::new());
                next.push((format!("{path}/"), handle));
                assert!(next.len() < 100, "directories are below each other");
            } else {
                let content = read(volume, handle, 0, attributes.size_bytes).await;
                found.insert(path, content.expect("it is read"));
            }
        }
    }
    found
}

impl Offices {
    /// The first changes things under what it holds while it is cut off, and is broken by the second.
    fn broken(seed: u64, changes: Changes, others: Others) -> Self {
        let machines = Machines::new(Simulation::new(seed));
        let (number, second, last_made) = machines.start(move |started: Started| async move {
            let (volume, second) = (Arc::new(started.first), Arc::new(started.second));
            let here = directory(&*volume, volume.root(), "here").await;
            let lost = directory(&*volume, volume.root(), "lost").await;
            create(&*volume, here, "kept").await;
            create(&*volume, lost, "file").await;
            for within in [here, lost] {
                let moved = directory(&*volume, within, "m").await;
                directory(&*volume, moved, "n").await;
            }
            // The shape lease is held from here on.
            let (from, to) = (name("m"), name("moved"));
            let renamed = volume.rename(&root(), here, &from, lost, &to).await;
            renamed.expect("it is moved");
            let renamed = volume.rename(&root(), lost, &to, here, &from).await;
            renamed.expect("it is moved back");
            volume.sync().await.expect("published");
            second.catch_up().await.expect("the root is read");
            started.table.set_outage(true);
            let last_made = changes(volume.clone()).await;
            others(second.clone()).await;
            second.sync().await.expect("published");
            (started.numbers[0], second, last_made)
        });
        machines.restart_first();
        Self {
            machines,
            number,
            second,
            last_made,
        }
    }

    /// Starts the first until it serves, or its machine is down. `None`: it is down.
    fn come_back(&self) -> Option<(Volume, MemberStartReport)> {
        let (parts, _) = connected(&self.machines.world, &self.machines.first);
        let (env, number) = (parts.env.clone(), self.number);
        let starts = async move {
            loop {
                match Volume::open_by_inode(parts.clone(), patient(), number).await {
                    Ok(started) => return started,
                    Err(MemberStartError::Member(_)) => parts.env.sleep(Duration::from_secs(1)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let attempted = self
            .machines
            .simulation
            .run(async move { env.spawn("start", starts).await.ok() });
        let started = attempted.expect("the run ends");
        assert!(
            started.is_some() || !self.machines.first.is_running(),
            "the start panicked"
        );
        started
    }

    /// What the volume has after another start of the first, and what every clone has.
    fn outcome(&self) -> Outcome {
        self.machines.restart_first();
        let (volume, report) = self.come_back().expect("nothing crashes");
        assert_eq!(report.salvage, None, "it is done once");
        let (parts, second) = (self.machines.world.own_parts(), self.second.clone());
        let ran = self.machines.simulation.run(async move {
            volume.sync().await.expect("published");
            second.catch_up().await.expect("the root is read");
            let found = tree(&second).await;
            assert_eq!(tree(&volume).await, found, "both see the same");
            let volumes = parts.anchor.volumes().await.expect("it answers");
            let clones = volumes.into_iter().filter(|entry| entry.volume != parts.volume);
            (found, clones.collect::<Vec<_>>())
        });
        let (volume, clones) = ran.expect("the run ends");
        let salvaged = clones.into_iter().map(|entry| {
            let parts = self
                .machines
                .world
                .elsewhere(&self.machines.simulation, entry.volume);
            let read = self.machines.simulation.run(async move {
                let (clone, _) = Volume::open(parts, patient()).await.expect("it opens");
                tree(&clone).await
            });
            (entry.tuple.name, read.expect("the run ends"))
        });
        Outcome {
            volume,
            salvaged: salvaged.collect(),
        }
    }
}

/// What the first does: something of each kind.
fn changes(volume: Arc<Volume>) -> futures::future::BoxFuture<'static, u64> {
    Box::pin(async move {
        let within = async |path: &[&str]| look(&*volume, path).await.expect("it is there");
        let (here, lost) = (within(&["here"]).await, within(&["lost"]).await);
        write(&*volume, within(&["here", "kept"]).await, 0, vec![7; 9000]).await;
        let made = create(&*volume, here, "made").await;
        write(&*volume, made, 0, vec![1; 5]).await;
        // The file is not lost, though its directory is.
        write(&*volume, within(&["lost", "file"]).await, 0, vec![2; 5]).await;
        let below = directory(&*volume, lost, "below").await;
        create(&*volume, below, "deep").await;
        let carried = create(&*volume, here, "carried").await;
        write(&*volume, carried, 0, vec![3; 5]).await;
        write(&*volume, made, 5, vec![4; 5]).await;
        let same = name("carried");
        let renamed = volume.rename(&root(), here, &same, lost, &same).await;
        renamed.expect("it is moved");
        write(&*volume, carried, 5, vec![5; 5]).await;
        write(&*volume, made, 10, vec![6; 5]).await;
        // Stands on the rename.
        create(&*volume, here, "after").await.inode
    })
}

fn others(second: Arc<Volume>) -> futures::future::BoxFuture<'static, ()> {
    Box::pin(async move {
        let lost = look(&*second, &["lost"]).await.expect("it is there");
        let file = create(&*second, lost, "second").await;
        write(&*second, file, 0, vec![9; 5]).await;
    })
}

/// As [`others`], and what was taken is given home: nothing in the arenas tells of it.
fn others_and_gives_home(second: Arc<Volume>) -> futures::future::BoxFuture<'static, ()> {
    Box::pin(async move {
        others(second.clone()).await;
        second.sync().await.expect("published");
        let lost = look(&*second, &["lost"]).await.expect("it is there");
        let member = second.member_by_inode().expect("a member");
        let given = member.give_home(lost.inode).await;
        assert!(given.expect("it is given"), "it is another's home");
    })
}

fn tree_of(files: &[(&str, &[u8])]) -> Tree {
    let always = [
        "/here/",
        "/here/m/",
        "/here/m/n/",
        "/lost/",
        "/lost/m/",
        "/lost/m/n/",
    ];
    let files = files
        .iter()
        .map(|(path, bytes)| ((*path).to_owned(), bytes.to_vec()));
    always
        .map(|path| (path.to_owned(), Vec::new()))
        .into_iter()
        .chain(files)
        .collect()
}

/// What has to come of [`changes`].
fn expected(clone: &str) -> Outcome {
    let bytes = |some: &[u8]| some.iter().flat_map(|byte| [*byte; 5]).collect::<Vec<u8>>();
    let (made, kept) = (bytes(&[1, 4, 6]), vec![7; 9000]);
    let volume = tree_of(&[
        ("/here/kept", &kept),
        ("/here/made", &made),
        ("/here/carried", &bytes(&[3])),
        ("/lost/file", &bytes(&[2])),
        ("/lost/second", &bytes(&[9])),
    ]);
    let salvaged = tree_of(&[
        ("/here/kept", &kept),
        ("/here/made", &made),
        ("/here/after", &[]),
        ("/lost/file", &bytes(&[2])),
        ("/lost/below/", &[]),
        ("/lost/below/deep", &[]),
        ("/lost/carried", &bytes(&[3, 5])),
    ]);
    Outcome {
        volume,
        salvaged: BTreeMap::from([(clone.to_owned(), salvaged)]),
    }
}

/// Whether a broken member with a bug, which crashes at a fault point if one is given, does other than it has to.
fn is_noticed(bug: &'static str, others: Others, crash_at: Option<&'static str>) -> bool {
    let run = move || {
        let offices = Offices::broken(1, changes, others);
        if let Some(point) = crash_at {
            offices.machines.first.crash_at(point, 1);
            assert!(offices.come_back().is_none(), "{point} is passed");
            offices.machines.first.restart();
        }
        let (volume, report) = offices.come_back().expect("nothing crashes");
        let known = offices.last_made;
        let last_made = offices.machines.simulation.run(async move {
            // Any directory that is the first's for certain.
            let within = look(&volume, &["lost", "m"]).await.expect("it is there");
            let file = create(&volume, within, "new").await;
            let removed = volume.remove(&root(), within, &name("new")).await;
            removed.expect("it is removed");
            file.inode
        });
        assert!(
            last_made.expect("the run ends") > known,
            "a number is given out twice"
        );
        let outcome = offices.outcome();
        let names: Vec<_> = outcome.salvaged.keys().cloned().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(outcome, expected(&names[0]));
        // Told until the judgement has ended, the paths as long as nothing of it was published.
        let told = report.salvage.map(|salvage| (salvage.name, salvage.paths));
        let paths = [
            "/here/after",
            "/here/carried",
            "/lost/below",
            "/lost/below/deep",
            "/lost/carried",
        ];
        match crash_at {
            Some("by_inode.after_judged") => assert_eq!(told, None),
            Some("by_inode.before_judged") => assert_eq!(told, Some((names[0].clone(), Vec::new()))),
            Some(_) | None => assert_eq!(told, Some((names[0].clone(), paths.map(String::from).to_vec()))),
        }
    };
    planting(Some(bug), || std::panic::catch_unwind(run).is_err())
}

#[test]
fn what_stands_on_nothing_lost_goes_on_and_all_of_the_journal_is_in_a_clone() {
    // A bug that is none.
    assert!(!is_noticed("none", others, None));
    assert!(!is_noticed("none", others_and_gives_home, None));
    assert!(!is_noticed("none", others, Some("by_inode.before_judged")));
    assert!(!is_noticed("none", others, Some("by_inode.after_judged")));
}

#[test]
fn each_part_of_a_judgement_that_is_left_out_is_noticed() {
    for (bug, others, crash_at) in [
        ("volume.adopts_what_is_lost", others as Others, None),
        ("leases.tainted_goes_on", others, None),
        ("volume.lost_by_arenas_alone", others_and_gives_home, None),
        ("volume.drops_what_is_lost", others, None),
        ("volume.salvages_tainted_alone", others, None),
        ("volume.salvaged_stays_uncovered", others, None),
        ("volume.salvaged_numbers_given_again", others, None),
        (
            "volume.judged_before_published",
            others,
            Some("by_inode.after_judged"),
        ),
        (
            "volume.salvage_clone_drawn_anew",
            others,
            Some("by_inode.before_build"),
        ),
    ] {
        assert!(is_noticed(bug, others, crash_at), "{bug}");
    }
}

#[test]
fn a_return_that_crashes_anywhere_ends_as_one_that_does_not() {
    let mut crashes = 0;
    for hit in 1..1000 {
        let offices = Offices::broken(2, changes, others);
        offices.machines.first.crash_at_any(hit);
        if offices.come_back().is_some() {
            break;
        }
        crashes += 1;
        offices.machines.first.restart();
        let (_, report) = offices.come_back().expect("it crashes once");
        let salvage = report.salvage.map(|report| report.paths.len());
        assert!(
            salvage.is_none_or(|paths| paths == 5 || paths == 0),
            "hit {hit}: {salvage:?}"
        );
        let outcome = offices.outcome();
        let clone = outcome.salvaged.keys().next().cloned().unwrap_or_default();
        assert_eq!(outcome, expected(&clone), "hit {hit}");
    }
    println!("{crashes} crashes");
    assert!(crashes > 10, "{crashes}");
}

/// What is left of two moves that take directories below each other, of which one is in the journal of who was broken for the shape lease.
fn moves_below_each_other(bug: &str) -> Result<Vec<String>, String> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let told = found.clone();
    let run = move || {
        let machines = Machines::new(Simulation::new(3));
        let (number, second) = machines.start(move |started: Started| async move {
            let (volume, second) = (started.first, Arc::new(started.second));
            let nested = async |volume: &Volume, text: &str| {
                let within = directory(volume, volume.root(), text).await;
                let moved = directory(volume, within, "m").await;
                let below = directory(volume, moved, "n").await;
                volume.sync().await.expect("published");
                (within, below)
            };
            let (here, below_here) = nested(&volume, "here").await;
            second.catch_up().await.expect("the root is read");
            let (there, below_there) = nested(&second, "there").await;
            volume.catch_up().await.expect("the root is read");
            // Each holds what it moves into.
            create(&volume, below_there, "held").await;
            volume.sync().await.expect("published");
            second.catch_up().await.expect("the root is read");
            create(&*second, below_here, "held").await;
            second.sync().await.expect("published");
            // The shape lease is the first's.
            let moved = name("m");
            let renamed = volume.rename(&root(), here, &moved, below_there, &moved).await;
            renamed.expect("it is moved");
            let renamed = volume.rename(&root(), below_there, &moved, here, &moved).await;
            renamed.expect("it is moved back");
            volume.sync().await.expect("published");
            second.catch_up().await.expect("the root is read");
            started.table.set_outage(true);
            let renamed = volume.rename(&root(), here, &moved, below_there, &moved).await;
            renamed.expect("it is moved");
            let renamed = second.rename(&root(), there, &moved, below_here, &moved).await;
            renamed.expect("it is moved, under the shape lease that was taken");
            second.sync().await.expect("published");
            (started.numbers[0], second)
        });
        machines.restart_first();
        let offices = Offices {
            machines,
            number,
            second,
            last_made: 0,
        };
        offices.come_back().expect("nothing crashes");
        let outcome = offices.outcome();
        let directories = outcome.volume.into_keys().filter(|path| path.ends_with('/'));
        *told.lock().expect("no panic") = directories.collect();
    };
    let ran = planting(Some(bug), || std::panic::catch_unwind(run));
    ran.map_err(|_| String::from("a panic"))?;
    let found = found.lock().expect("no panic").clone();
    Ok(found)
}

#[test]
fn a_move_of_a_directory_under_a_shape_lease_that_was_lost_is_salvaged() {
    let all = [
        "/here/",
        "/here/m/",
        "/here/m/n/",
        "/here/m/n/m/",
        "/here/m/n/m/n/",
        "/there/",
    ];
    assert_eq!(moves_below_each_other("none"), Ok(all.map(String::from).to_vec()));
    let lost = moves_below_each_other("volume.shape_is_never_lost");
    assert_ne!(lost, Ok(all.map(String::from).to_vec()));
}

#[test]
fn what_nobody_took_goes_on_after_a_break() {
    fn takes_another(second: Arc<Volume>) -> futures::future::BoxFuture<'static, ()> {
        Box::pin(async move {
            // Nothing that the first has changed.
            let within = look(&*second, &["lost", "m"]).await.expect("it is there");
            create(&*second, within, "second").await;
        })
    }
    let offices = Offices::broken(4, changes, takes_another);
    let (_, report) = offices.come_back().expect("nothing crashes");
    assert_eq!((report.recovery.records, report.salvage), (13, None));
    let outcome = offices.outcome();
    assert!(outcome.salvaged.is_empty() && outcome.volume.contains_key("/lost/carried"));
    assert!(outcome.volume.contains_key("/lost/m/second"));
}
