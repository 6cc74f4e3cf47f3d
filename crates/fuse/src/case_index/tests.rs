//! Tests of the index over the executable model of a file system.

use super::*;
use crate::indexed::IndexedVfs;
use firn_env::sim::Simulation;
use firn_vfs::{CreateMode, MemoryOptions, MemoryVfs, SetAttributes};

fn name(text: &str) -> Name {
    Name::new(Bytes::copy_from_slice(text.as_bytes())).expect("a name")
}

/// A model, its changes noted in an index of so much memory.
fn indexed(simulation: &Simulation, bytes_max: usize) -> (Arc<MemoryVfs>, Arc<CaseIndex>, IndexedVfs) {
    let model = Arc::new(MemoryVfs::new(&simulation.env(), MemoryOptions::default()));
    let index = Arc::new(CaseIndex::with_room(bytes_max));
    let vfs = IndexedVfs::new(model.clone(), index.clone());
    (model, index, vfs)
}

async fn create(vfs: &dyn Vfs, text: &str) -> bool {
    let caller = Caller::new(Credentials::root());
    let mode = CreateMode::Guarded(SetAttributes::default());
    vfs.create(&caller, vfs.root(), &name(text), mode).await.is_ok()
}

#[test]
fn a_directory_is_listed_once_however_many_names_are_asked_for_and_made() {
    let simulation = Simulation::new(1);
    let (_, index, vfs) = indexed(&simulation, BYTES_MAX);
    let work = async move {
        for number in 0..3000 {
            assert!(create(&vfs, &format!("File {number}.txt")).await);
        }
        let root = vfs.root();
        for number in 0..3000 {
            let asked = index.find(&vfs, root, &name(&format!("FILE {number}.TXT"))).await;
            assert_eq!(asked, Ok(Answer::Is(name(&format!("File {number}.txt")))));
            let asked = index.find(&vfs, root, &name(&format!("new {number}"))).await;
            assert_eq!(asked, Ok(Answer::None));
            assert!(create(&vfs, &format!("New {number}")).await);
            let asked = index.find(&vfs, root, &name(&format!("new {number}"))).await;
            assert_eq!(asked, Ok(Answer::Is(name(&format!("New {number}")))));
        }
        index.counts()
    };
    let counts = simulation.run(work).expect("it ends");
    assert_eq!(
        (counts.questions, counts.listings, counts.directories),
        (9000, 1, 1)
    );
    assert!(counts.bytes > 3000 * 20 && counts.bytes < 1 << 20, "{counts:?}");
}

#[test]
fn what_does_not_fit_is_not_told_and_what_fits_no_longer_is_evicted() {
    let simulation = Simulation::new(1);
    let (model, index, vfs) = indexed(&simulation, 3000);
    let work = async move {
        let caller = Caller::new(Credentials::root());
        let mut directories = Vec::new();
        for number in 0..10 {
            let made = model
                .make_directory(
                    &caller,
                    model.root(),
                    &name(&format!("d{number}")),
                    SetAttributes::default(),
                )
                .await
                .expect("made");
            for file in 0..if number == 9 { 300 } else { 50 } {
                let mode = CreateMode::Guarded(SetAttributes::default());
                let text = name(&format!("a file {file}"));
                model
                    .create(&caller, made.handle, &text, mode)
                    .await
                    .expect("made");
            }
            directories.push(made.handle);
        }
        for round in 0..3 {
            for directory in &directories[..9] {
                let asked = index.find(&vfs, *directory, &name("A FILE 7")).await;
                assert_eq!(asked, Ok(Answer::Is(name("a file 7"))), "round {round}");
                assert!(index.counts().bytes <= 3000, "{:?}", index.counts());
            }
        }
        let before = index.counts();
        assert!(before.listings > 9 && before.directories < 9, "{before:?}");
        for _ in 0..3 {
            assert_eq!(
                index.find(&vfs, directories[9], &name("x")).await,
                Ok(Answer::Unknown)
            );
        }
        assert_eq!(
            index.counts().listings,
            before.listings + 1,
            "it is not listed again"
        );
    };
    simulation.run(work).expect("it ends");
}

#[test]
fn random_histories_are_answered_as_a_listing_would() {
    for seed in 0..40 {
        let simulation = Simulation::new(seed);
        // Sometimes so little room that tables go all the time.
        let room = if seed % 2 == 0 { 1500 } else { BYTES_MAX };
        let (model, index, vfs) = indexed(&simulation, room);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let work = async move {
            let caller = Caller::new(Credentials::root());
            let root = vfs.root();
            let spelled = |random: &mut dyn FnMut(u64) -> u64| -> Name {
                let letters: String = (0..2)
                    .map(|_| {
                        let letter = ['a', 'ä', 'ж', 'σ'][random(4) as usize];
                        match random(2) {
                            0 => letter.to_uppercase().to_string(),
                            _ => letter.to_string(),
                        }
                    })
                    .collect();
                name(&letters)
            };
            for step in 0..600 {
                let (one, other) = (spelled(&mut random), spelled(&mut random));
                match random(8) {
                    0..3 => {
                        let mode = CreateMode::Guarded(SetAttributes::default());
                        let _ = vfs.create(&caller, root, &one, mode).await;
                    }
                    3 => {
                        let _ = vfs.remove(&caller, root, &one).await;
                    }
                    4 => {
                        let _ = vfs.rename(&caller, root, &one, root, &other).await;
                    }
                    5 => {
                        // By another protocol.
                        let mode = CreateMode::Guarded(SetAttributes::default());
                        let _ = model.create(&caller, root, &one, mode).await;
                        index.touched(root, &one);
                        let _ = model.remove(&caller, root, &other).await;
                    }
                    6 if random(20) == 0 => index.clear(),
                    _ => {}
                }
                let asked = spelled(&mut random);
                let page = model
                    .read_directory(&caller, root, 0, 1000, false)
                    .await
                    .expect("listed");
                let same: Vec<_> = page
                    .entries
                    .iter()
                    .filter(|entry| fold(&entry.name) == fold(asked.as_bytes()))
                    .map(|entry| entry.name.clone())
                    .collect();
                match index.find(&vfs, root, &asked).await.expect("an answer") {
                    Answer::Is(found) => assert!(
                        same.iter().any(|name| name[..] == *found.as_bytes()),
                        "seed {seed}, step {step}: {found:?} of {same:?}"
                    ),
                    Answer::None => assert!(same.is_empty(), "seed {seed}, step {step}: {same:?}"),
                    Answer::Unknown => panic!("seed {seed}, step {step}: so few fit"),
                }
            }
        };
        simulation.run(work).expect("it ends");
    }
}
