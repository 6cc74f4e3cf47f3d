//! A disk with a journal, its nodes away.

use crate::nodes::*;
use bytes::Bytes;
use firn_blockd_disk::{
    Change, FlushPolicy, VirtualDisk, WritePolicy,
    journal::{Journal, JournalError, JournalOptions, JournalReader, Journaled},
};
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability};
use firn_env::{
    Env,
    sim::{Machine, Simulation},
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

const DISK: [u8; 16] = [3; 16];
const KEY: [u8; 32] = [4; 32];
const SECOND: Duration = Duration::from_secs(1);
/// Of the journals here: some forty writes of a block.
const JOURNAL_BYTES: u64 = 24_000;

fn options(env: &Env) -> JournalOptions {
    JournalOptions {
        file_bytes: 2000,
        after: Duration::from_millis(500),
        ..JournalOptions::new(env.clone(), "journals", JOURNAL_BYTES)
    }
}

/// The disk with its journal, claimed as attach `fence`.
async fn journaled(disk: VirtualDisk, options: JournalOptions, fence: u64) -> Journaled {
    let env = options.env.clone();
    let journal = Journal::claim(options, DISK, &KEY, fence)
        .await
        .expect("it can be used");
    assert_eq!(journal.salvaged, None);
    Journaled::new(&env, disk, FlushPolicy::Durable, Some(journal))
        .await
        .expect("the disk can be read")
}

/// A disk with its journal on a machine, and the nodes that it is on.
struct Rig {
    env: Env,
    cluster: Arc<Mutex<Cluster>>,
    disk: VirtualDisk,
    device: Journaled,
    /// Attaches so far.
    attaches: u64,
}

/// With nothing written yet; the journal belongs to attach 7.
async fn rig(machine: &Machine, kind: Kind) -> Rig {
    rig_with(machine, kind, options(&machine.env())).await
}

async fn rig_with(machine: &Machine, kind: Kind, options: JournalOptions) -> Rig {
    let (env, mut attaches) = (machine.env(), 1);
    let cluster = new_cluster(&env, kind).await;
    let disk = attach(&env, &cluster, kind, &mut attaches).await;
    let device = journaled(disk.clone(), options, 7).await;
    Rig {
        env,
        cluster,
        disk,
        device,
        attaches,
    }
}

/// Nodes go, and the journal begins with a write.
async fn begin_journaling(rig: &Rig) {
    away(&rig.cluster, true);
    write(&rig.device, 0, 1).await.unwrap();
    rig.env.sleep(SECOND * 2).await;
}

/// Waits until nodes have all that the journal had.
async fn settled(env: &Env, device: &Journaled) {
    let settled = env.timeout(SECOND * 600, device.settle()).await;
    settled.expect("nodes are back").unwrap();
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK_BYTES as usize])
}

async fn write(device: &Journaled, number: u64, byte: u8) -> Result<(), DeviceError> {
    device
        .write(
            number * u64::from(BLOCK_BYTES),
            block(byte),
            Durability::Acknowledged,
        )
        .await
}

fn away(cluster: &Arc<Mutex<Cluster>>, away: bool) {
    cluster.lock().unwrap().away = away;
}

/// In both kinds of fast modes, from some seeds.
fn on_a_machine<F: Future<Output = ()> + Send + 'static>(test: impl Fn(Machine, Kind) -> F) {
    for kind in [Kind::Striped(WritePolicy::Memory), Kind::Log] {
        for seed in 0..4 {
            let simulation = Simulation::new(seed);
            let machine = simulation.machine("client");
            simulation.run(test(machine, kind)).expect("the run ends");
        }
    }
}

/// Writes until nobody answers any more; how many were answered.
async fn fill(env: &Env, device: &Journaled) -> u64 {
    for number in 0.. {
        let write = write(device, number % BLOCKS, number as u8 + 1);
        match env.timeout(SECOND * 20, write).await {
            Ok(answer) => answer.expect("no write fails"),
            Err(_) => return number,
        }
    }
    unreachable!("there is a bound")
}

#[test]
fn writes_are_answered_without_nodes_up_to_the_bound_and_all_of_them_arrive() {
    on_a_machine(|machine, kind| async move {
        let Rig {
            env,
            cluster,
            disk,
            device,
            ..
        } = rig(&machine, kind).await;
        write(&device, 0, 1).await.unwrap();
        device.flush().await.unwrap();
        away(&cluster, true);
        let answered = fill(&env, &device).await;
        let status = device.status().expect("it has a journal");
        assert!(
            status.session.is_some() && status.used_bytes <= JOURNAL_BYTES + 4096 + 4096,
            "{status:?}"
        );
        assert!(answered > 24, "more than memory holds, which is 8: {answered}");
        let seen = content(&device).await;
        // What was written last is read, also what nobody has answered.
        assert_eq!(
            seen[((answered % BLOCKS) * u64::from(BLOCK_BYTES)) as usize],
            answered as u8 + 1
        );
        away(&cluster, false);
        settled(&env, &device).await;
        let status = device.status().expect("it has a journal");
        assert_eq!((status.session, status.used_bytes, status.waiting), (None, 0, 0));
        assert_eq!(content(&disk).await, seen);
        write(&device, 3, 99).await.unwrap();
        device.flush().await.unwrap();
    });
}

#[test]
fn a_journal_that_is_full_before_its_first_file_is_gives_room_back() {
    on_a_machine(|machine, kind| async move {
        let wanted = JournalOptions {
            bytes_max: 9000,
            file_bytes: 1 << 20,
            ..options(&machine.env())
        };
        let Rig {
            env,
            cluster,
            disk,
            device,
            ..
        } = rig_with(&machine, kind, wanted).await;
        away(&cluster, true);
        fill(&env, &device).await;
        away(&cluster, false);
        // Nothing is asked meanwhile that would make nodes sync.
        for number in 0..40 {
            let write = write(&device, number % BLOCKS, number as u8 + 100);
            env.timeout(SECOND * 60, write)
                .await
                .expect("there is room")
                .unwrap();
        }
        let seen = content(&device).await;
        settled(&env, &device).await;
        assert_eq!(content(&disk).await, seen);
    });
}

#[test]
fn a_local_disk_that_fails_makes_writers_wait_for_nodes_and_nothing_else() {
    for full_at_once in [true, false] {
        for syncs_fail in [true, false] {
            on_a_machine(move |machine, kind| async move {
                let Rig {
                    env,
                    cluster,
                    disk,
                    device,
                    ..
                } = rig(&machine, kind).await;
                let fails = || {
                    machine.disk().configure(|options| {
                        if syncs_fail {
                            options.sync_failures = 1_000_000;
                        } else {
                            options.capacity_bytes = 8000;
                        }
                    });
                };
                away(&cluster, true);
                if full_at_once {
                    fails();
                }
                write(&device, 0, 1).await.unwrap();
                env.sleep(SECOND * 2).await;
                fails();
                let answered = fill(&env, &device).await;
                assert!(answered < 24, "far less than its bound: {answered}");
                away(&cluster, false);
                for number in 0..20 {
                    let write = write(&device, number, number as u8 + 100);
                    env.timeout(SECOND * 60, write)
                        .await
                        .expect("nodes are back")
                        .unwrap();
                }
                env.timeout(SECOND * 60, device.flush()).await.unwrap().unwrap();
                let seen = content(&device).await;
                machine.disk().configure(|options| {
                    (options.sync_failures, options.capacity_bytes) = (0, 1 << 30);
                });
                settled(&env, &device).await;
                assert_eq!(content(&disk).await, seen);
            });
        }
    }
}

/// For each block, what it may hold: what was answered last, and what was asked since.
struct Expected(Vec<Vec<u8>>);

impl Expected {
    fn asked(&mut self, number: u64, byte: u8) {
        self.0[number as usize].push(byte);
    }

    fn answered(&mut self, number: u64, byte: u8) {
        let may = &mut self.0[number as usize];
        let last = may
            .iter()
            .rposition(|other| *other == byte)
            .expect("it was asked");
        may.drain(..last);
    }

    /// The disk is known again.
    fn check(&mut self, seen: &[u8]) {
        for (number, (may, block)) in self
            .0
            .iter_mut()
            .zip(seen.chunks(BLOCK_BYTES as usize))
            .enumerate()
        {
            let found = block[0];
            assert!(block.iter().all(|byte| *byte == found));
            assert!(
                may.contains(&found),
                "block {number} holds {found}, not one of {may:?}"
            );
            *may = vec![found];
        }
    }
}

#[test]
fn nothing_that_the_journal_answered_is_lost_in_any_number_of_crashes() {
    let went_on = Arc::new(Mutex::new(0));
    for kind in [Kind::Striped(WritePolicy::Memory), Kind::Log] {
        for seed in 0..40 {
            let simulation = Simulation::new(seed);
            let machine = simulation.machine("client");
            let went_on = went_on.clone();
            let lives = async move {
                let mut env = machine.env();
                let cluster = new_cluster(&env, kind).await;
                let mut expected = Expected(vec![vec![0]; BLOCKS as usize]);
                let (mut next, mut byte) = (1000, 0_u8);
                for fence in 10..16 {
                    away(&cluster, false);
                    let disk = attach(&env, &cluster, kind, &mut next).await;
                    let device = journaled(disk.clone(), options(&env), fence).await;
                    *went_on.lock().unwrap() += u64::from(device.status().unwrap().session.is_some());
                    expected.check(&content(&device).await);
                    if fence == 15 {
                        settled(&env, &device).await;
                        expected.check(&content(&disk).await);
                        return;
                    }
                    // It catches up for a moment.
                    env.sleep(Duration::from_millis(env.random_below(12))).await;
                    away(&cluster, true);
                    env.sleep(SECOND * u32::from(env.random_below(2) == 0)).await;
                    let first = env.random_below(BLOCKS);
                    for number in (0..BLOCKS).map(|number| (first + number) % BLOCKS) {
                        byte = byte % 250 + 1;
                        expected.asked(number, byte);
                        let answer = env.timeout(SECOND * 5, write(&device, number, byte)).await;
                        if answer.is_ok() && device.status().unwrap().session.is_some() {
                            expected.answered(number, byte);
                        }
                    }
                    // Some are under way when it dies.
                    for _ in 0..env.random_below(6) {
                        byte = byte % 250 + 1;
                        let (number, device) = (env.random_below(BLOCKS), device.clone());
                        expected.asked(number, byte);
                        drop(env.spawn("write", async move { write(&device, number, byte).await }));
                    }
                    env.sleep(Duration::from_micros(env.random_below(4000))).await;
                    if env.random_below(2) == 0 {
                        machine.kill();
                    } else {
                        machine.crash();
                    }
                    env = machine.restart();
                }
            };
            simulation.run(lives).expect("the run ends");
        }
    }
    assert!(*went_on.lock().unwrap() > 100, "most lives left a journal");
}

#[test]
fn a_journal_is_put_aside_whole_however_often_that_is_interrupted() {
    for seed in 0..30 {
        let simulation = Simulation::new(seed);
        let machine = simulation.machine("client");
        let lives = async move {
            let rig = rig(&machine, Kind::Striped(WritePolicy::Memory)).await;
            begin_journaling(&rig).await;
            for number in 0..20 {
                write(&rig.device, number, number as u8 + 1).await.unwrap();
            }
            machine.crash();
            let mut env = machine.restart();
            let mut fence = 20;
            let path = loop {
                fence += 2;
                let claiming = Journal::claim(options(&env), DISK, &KEY, fence);
                let limit = Duration::from_micros(env.random_below(30_000));
                let claimed = env.timeout(limit, claiming).await;
                let found = env
                    .disk()
                    .entries("journals/03030303030303030303030303030303")
                    .await;
                let aside = found
                    .unwrap()
                    .into_iter()
                    .find(|entry| entry.name.starts_with("salvage"));
                if let (Ok(claimed), Some(aside)) = (claimed, aside) {
                    assert!(
                        claimed
                            .unwrap()
                            .salvaged
                            .is_none_or(|path| path.ends_with(&aside.name))
                    );
                    break format!("journals/03030303030303030303030303030303/{}", aside.name);
                }
                machine.crash();
                env = machine.restart();
            };
            let mut reader = JournalReader::open(&env, &path, DISK, &KEY).await.unwrap();
            let mut found = Vec::new();
            while let Some(change) = reader.next().await.unwrap() {
                if let Change::Data { first, data } = change {
                    found.push((first, data[0]));
                }
            }
            let wanted: Vec<(u64, u8)> = (0..20).map(|number| (number, number as u8 + 1)).collect();
            assert!(found.ends_with(&wanted), "{found:?}");
        };
        simulation.run(lives).expect("the run ends");
    }
}

#[test]
fn what_promises_durability_waits_for_nodes() {
    on_a_machine(|machine, kind| async move {
        let rig = rig(&machine, kind).await;
        begin_journaling(&rig).await;
        let Rig {
            env, cluster, device, ..
        } = rig;
        write(&device, 1, 2).await.unwrap();
        assert!(device.status().is_some_and(|status| status.session.is_some()));
        let durable = device.write(1024, block(3), Durability::Durable);
        assert!(env.timeout(SECOND * 60, durable).await.is_err());
        assert!(env.timeout(SECOND * 60, device.flush()).await.is_err());
        write(&device, 4, 4).await.unwrap();
        let waiting = device.clone();
        let flush = env.spawn("flush", async move { waiting.flush().await });
        away(&cluster, false);
        flush.await.unwrap().unwrap();
    });
}

#[test]
fn writes_fail_after_the_configured_time_and_not_before() {
    on_a_machine(|machine, kind| async move {
        let wanted = JournalOptions {
            give_up: Some(SECOND * 100),
            ..options(&machine.env())
        };
        let Rig {
            env, cluster, device, ..
        } = rig_with(&machine, kind, wanted).await;
        away(&cluster, true);
        let began = env.now();
        let answered = fill(&env, &device).await;
        assert!(env.now().since(began) < SECOND * 90 && answered > 24);
        // At the bound: it waits, then it is told.
        let failed = write(&device, 0, 200).await;
        assert!(matches!(failed, Err(DeviceError::Io(_))), "{failed:?}");
        assert!(env.now().since(began) >= SECOND * 100);
        away(&cluster, false);
        settled(&env, &device).await;
        write(&device, 0, 201).await.unwrap();
    });
}

#[test]
fn the_next_attach_goes_on_and_one_after_another_puts_the_journal_aside() {
    on_a_machine(|machine, kind| async move {
        let rig = rig(&machine, kind).await;
        begin_journaling(&rig).await;
        let Rig {
            env,
            cluster,
            device,
            mut attaches,
            ..
        } = rig;
        for number in 1..16 {
            write(&device, number, number as u8 + 1).await.unwrap();
        }
        device
            .write_zeroes(1024, 1024, true, Durability::Acknowledged)
            .await
            .unwrap();
        // The rest of the disk is on nodes.
        let written = 16 * BLOCK_BYTES;
        let seen = bytes_of(device.read(0, written).await.unwrap());
        let taken = Journal::claim(options(&env), DISK, &KEY, 8).await.err();
        assert!(
            matches!(taken, Some(JournalError::Disk(_))),
            "one process at a time: {taken:?}"
        );
        for aside in [false, true] {
            // On the simulator's side of the crash: its tasks are gone.
            machine.crash();
            let env = machine.restart();
            away(&cluster, false);
            let disk = attach(&env, &cluster, kind, &mut attaches).await;
            if aside {
                let journal = Journal::claim(options(&env), DISK, &KEY, 20).await.unwrap();
                let path = journal.salvaged.clone().expect("it is put aside");
                let mut reader = JournalReader::open(&env, &path, DISK, &KEY).await.unwrap();
                let mut found = vec![0; DISK_BYTES as usize];
                while let Some(change) = reader.next().await.unwrap() {
                    match change {
                        Change::Data { first, data } => {
                            let at = (first * u64::from(BLOCK_BYTES)) as usize;
                            found[at..at + data.len()].copy_from_slice(&data);
                        }
                        Change::Zero { blocks } => {
                            let at = |block: u64| (block * u64::from(BLOCK_BYTES)) as usize;
                            found[at(blocks.start)..at(blocks.end)].fill(0);
                        }
                        Change::Flush => {}
                    }
                }
                let written: Vec<usize> = (0..found.len()).filter(|at| found[*at] != 0).collect();
                assert_eq!(written, (8192..8192 + 512).collect::<Vec<usize>>());
                let device = Journaled::new(&env, disk, FlushPolicy::Durable, Some(journal))
                    .await
                    .unwrap();
                assert_eq!(device.status().and_then(|status| status.session), None);
                return;
            }
            let device = journaled(disk.clone(), options(&env), 8).await;
            let found = content(&device).await;
            assert_eq!(found[..written as usize], seen, "read at once");
            settled(&env, &device).await;
            assert_eq!(content(&disk).await, found);
            // Something is left for whoever comes next.
            away(&cluster, true);
            write(&device, 16, 7).await.unwrap();
            env.sleep(SECOND * 2).await;
            write(&device, 16, 7).await.unwrap();
        }
    });
}
