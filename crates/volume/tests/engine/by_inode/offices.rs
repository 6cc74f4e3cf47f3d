//! Offices of one volume that is shared by inode: machines, each with a member.

use crate::world::{World, config};
use bytes::Bytes;
use firn_anchor::{Anchor, MemberNumber, OwnerId};
use firn_env::{
    Env, OpenMode,
    sim::{Machine, Simulation},
};
use firn_table::MemoryTableClient;
use firn_volume::{FormatOptions, MemberStartError, Parts, Volume, VolumeConfig};
use std::{sync::Arc, time::Duration};

/// Makes the volume, and numbers for its members.
pub async fn make(parts: &Parts, members: u8) -> Vec<MemberNumber> {
    let anchor = &parts.anchor;
    anchor.create_family().await.expect("a new family");
    Volume::format(parts, "shared", FormatOptions::default(), &config())
        .await
        .expect("it is formatted");
    anchor.share_by_inode(parts.volume).await.expect("nobody owns it");
    let mut numbers = Vec::new();
    for place in 0..members {
        let edge = OwnerId([place + 1; 16]);
        let joined = anchor.join_volume(parts.volume, edge, "office").await;
        numbers.push(joined.expect("it joins"));
    }
    numbers
}

/// The small file by which a machine knows its member and what that began.
pub async fn state_of(env: &Env) -> Bytes {
    let file = env.disk().open("state", OpenMode::Read).await;
    let read = file.expect("it has one").read_at(0, 4096).await;
    read.expect("it is read")
}

/// Gives it to a machine that has none.
pub async fn put_state(env: &Env, state: Bytes) {
    let made = env.disk().open("state", OpenMode::CreateNew).await;
    let file = made.expect("it has none");
    file.write_at(0, vec![state]).await.expect("it is written");
    file.sync_data().await.expect("it is durable");
    env.disk().sync_directory("").await.expect("so is its name");
}

/// Copies it, as a backup of the machine has it.
pub async fn copy_state(from: &Env, to: &Env) {
    put_state(to, state_of(from).await).await;
}

/// Settings with which who waits for a lease waits until it comes; and small journal files, since members start often and each start makes one.
pub fn patient() -> VolumeConfig {
    VolumeConfig {
        wait_limit: Duration::from_secs(300),
        journal_bytes: 2 << 20,
        journal_file_bytes: 256 << 10,
        ..config()
    }
}

/// Starts a member, however often that takes.
pub async fn start(parts: &Parts, number: MemberNumber, config: &VolumeConfig) -> Volume {
    for _ in 0..100 {
        match Volume::open_by_inode(parts.clone(), config.clone(), number).await {
            Ok((volume, _)) => return volume,
            Err(MemberStartError::Member(error)) => {
                tracing::debug!(%error, "it starts again");
                parts.env.sleep(Duration::from_secs(1)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it never starts");
}

/// Runs something on the world's edge, which is the first member, and on a second machine.
pub fn with_two<F: Future<Output = ()> + Send + 'static>(
    seed: u64,
    run: impl FnOnce(Env, [Volume; 2], World) -> F + Send + 'static,
) {
    let simulation = Simulation::new(seed);
    let world = World::new(&simulation);
    let (own, beside) = (world.own_parts(), world.machine_beside(&simulation, "second"));
    let env = simulation.env();
    simulation
        .run(async move {
            let numbers = make(&own, 2).await;
            let first = start(&own, numbers[0], &patient()).await;
            let second = start(&beside, numbers[1], &patient()).await;
            run(env, [first, second], world).await;
        })
        .expect("the run ends");
}

/// The volume as a machine has it, and that machine's way to the table, by which it can be cut off.
pub fn connected(world: &World, machine: &Machine) -> (Parts, Arc<MemoryTableClient>) {
    let env = machine.env();
    let client = world.table().connect(&env);
    let parts = world.parts_in(&env);
    let anchor = Anchor::new(client.clone(), env, parts.anchor.family());
    (Parts { anchor, ..parts }, client)
}

/// Two machines, each with an office, which crash for themselves.
pub struct Machines {
    pub simulation: Simulation,
    pub world: Arc<World>,
    pub first: Machine,
    pub second: Machine,
}

/// Both offices, as they were started first.
pub struct Started {
    pub numbers: [MemberNumber; 2],
    pub first: Volume,
    pub second: Volume,
    /// The first's way to the table.
    pub table: Arc<MemoryTableClient>,
}

impl Machines {
    pub fn new(simulation: Simulation) -> Self {
        Self {
            world: Arc::new(World::new(&simulation)),
            first: simulation.machine("first"),
            second: simulation.machine("second"),
            simulation,
        }
    }

    /// Makes the volume, starts both, and goes on with them.
    pub fn start<F: Future<Output = T> + Send + 'static, T: Send + 'static>(
        &self,
        run: impl FnOnce(Started) -> F + Send + 'static,
    ) -> T {
        let (own, table) = connected(&self.world, &self.first);
        let (other, _) = connected(&self.world, &self.second);
        let ran = self.simulation.run(async move {
            let numbers = make(&own, 2).await;
            let started = Started {
                first: start(&own, numbers[0], &patient()).await,
                second: start(&other, numbers[1], &patient()).await,
                numbers: [numbers[0], numbers[1]],
                table,
            };
            run(started).await
        });
        ran.expect("the run ends")
    }

    /// What the first has in memory is lost.
    pub fn restart_first(&self) {
        self.first.crash();
        self.first.restart();
    }
}
