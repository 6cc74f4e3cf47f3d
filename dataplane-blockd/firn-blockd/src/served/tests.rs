//! Tests of what people are told of a disk that is served, on clusters of simulated machines.

use super::*;
use crate::status::{cluster_status, disk_line, text};
use firn_blockd_client::{DiskSettings, Mode, tracts_for};
use firn_blockd_nbd::wire::{IHAVEOPT, NBDMAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, client, opt};
use firn_blockd_protocol::DiskId;
use firn_blockd_simulation::{
    cluster::placement,
    setting::{Client, Setting},
};
use firn_env::{ByteStream, sim::Machine};
use std::io::{self, Write};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tracing::subscriber::with_default;

const PORT: &str = "10809";
/// The command of the NBD protocol.
const WRITE: u16 = 1;
const BLOCK_BYTES: usize = 4096;

fn setting(nodes: usize) -> Setting {
    Setting {
        nodes,
        model: None,
        node_tracts: 64,
        copies: 2,
        mode: Mode::WriteThrough,
        flush: FlushPolicy::Durable,
        segment_tracts: 4,
        blocks: 8192,
    }
}

fn serving(connections: usize) -> Serving {
    Serving {
        name: "disk".into(),
        nbd: format!("tcp:0.0.0.0:{PORT}"),
        flush: FlushPolicy::Durable,
        dirty_bytes_max: 64 << 20,
        detach_limit: Duration::from_secs(60),
        connections,
        tls: None,
        snapshots: Place::new(None, DiskId([7; 16]), &[7; 32]),
    }
}

async fn disk_status(served: &Served) -> DiskStatus {
    match served.execute(Command::Status).await {
        Reply::Status { status } => *status,
        other => panic!("{other:?}"),
    }
}

/// An NBD client that has chosen the disk.
struct User(Box<dyn ByteStream>);

impl User {
    /// Connects, and waits for the greeting of a server that takes it.
    async fn connect(env: &Env, server: &Machine) -> io::Result<Self> {
        let (user, size_bytes) = Self::negotiate(env, server).await?;
        assert_eq!(size_bytes, 8192 * BLOCK_BYTES as u64);
        Ok(user)
    }

    /// Connects, and learns how large the disk is.
    async fn negotiate(env: &Env, server: &Machine) -> io::Result<(Self, u64)> {
        let mut stream = env
            .network()
            .connect(&format!("{}:{PORT}", server.name()))
            .await?;
        assert_eq!(stream.read_u64().await?, NBDMAGIC);
        assert_eq!(stream.read_u64().await?, IHAVEOPT);
        stream.read_u16().await?;
        stream
            .write_u32(client::FIXED_NEWSTYLE | client::NO_ZEROES)
            .await?;
        stream.write_u64(IHAVEOPT).await?;
        stream.write_u32(opt::EXPORT_NAME).await?;
        stream.write_u32(4).await?;
        stream.write_all(b"disk").await?;
        stream.flush().await?;
        let size_bytes = stream.read_u64().await?;
        stream.read_u16().await?;
        Ok((Self(stream), size_bytes))
    }

    /// Writes the first block; gives the error that is answered, or 0.
    async fn write(&mut self) -> io::Result<u32> {
        let Self(stream) = self;
        stream.write_u32(REQUEST_MAGIC).await?;
        stream.write_u16(0).await?;
        stream.write_u16(WRITE).await?;
        stream.write_u64(7).await?;
        stream.write_u64(0).await?;
        stream.write_u32(BLOCK_BYTES as u32).await?;
        stream.write_all(&[5; BLOCK_BYTES]).await?;
        stream.flush().await?;
        assert_eq!(stream.read_u32().await?, SIMPLE_REPLY_MAGIC);
        let error = stream.read_u32().await?;
        assert_eq!(stream.read_u64().await?, 7);
        Ok(error)
    }
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl Log {
    fn lines(&self, part: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text");
        let lines = text.lines().filter(|line| line.contains(part));
        lines.map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// All nodes are away for three minutes: it is in the log after ten seconds, once a minute, and when it is over; and in `status`.
#[test]
fn writers_that_wait_for_nodes_are_in_the_log_and_in_status_until_they_go_on() {
    const TOLD: &str = "writers or readers wait for nodes";
    const OVER: &str = "nodes answer again";
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer({
            let log = log.clone();
            move || log.clone()
        })
        .finish();
    let logged = log.clone();
    let work = async move |mut world: Client| {
        let env = world.machine.env();
        let served = Served::export(&env, world.attached, serving(4))
            .await
            .expect("it listens");
        let mut user = User::connect(&env, &world.machine).await.expect("a place");
        assert_eq!(user.write().await.expect("an answer"), 0);
        assert_eq!(logged.lines(TOLD), [""; 0]);
        assert!(!disk_line(&disk_status(&served).await).contains("waits for"));

        for host in &world.hosts {
            host.machine.crash();
        }
        let began = env.now();
        let waiting = env.spawn("a write", async move { user.write().await });
        env.sleep(Duration::from_secs(5)).await;
        assert_eq!(logged.lines(TOLD), [""; 0], "so long may take anything");
        env.sleep(Duration::from_secs(25)).await;
        assert_eq!(logged.lines(TOLD).len(), 1, "{:?}", logged.lines(""));
        let line = &logged.lines(TOLD)[0];
        assert!(
            line.contains("WARN") && line.contains("disk=\"disk\"") && line.contains("why="),
            "{line}"
        );
        let status = disk_status(&served).await;
        assert!(status.trouble.is_some(), "{status:?}");
        assert!(
            disk_line(&status).contains("; waits for "),
            "{}",
            disk_line(&status)
        );
        env.sleep(Duration::from_secs(150)).await;
        assert_eq!(
            logged.lines(TOLD).len(),
            3,
            "once a minute: {:?}",
            logged.lines(TOLD)
        );
        assert_eq!(logged.lines(OVER), [""; 0]);

        for host in &mut world.hosts {
            host.revive();
        }
        let written = waiting.await.expect("it runs to its end");
        assert_eq!(written.expect("an answer"), 0, "nothing is lost");
        assert!(env.now().since(began) > Duration::from_secs(180));
        env.sleep(Duration::from_secs(20)).await;
        assert_eq!(logged.lines(OVER).len(), 1, "{:?}", logged.lines(""));
        assert!(!disk_line(&disk_status(&served).await).contains("waits for"));
        Ok(())
    };
    with_default(subscriber, || setting(3).run(1, work)).expect("the run ends");
}

#[test]
fn status_of_an_attach_that_another_has_fenced_says_so() {
    let work = async move |world: Client| {
        let env = world.machine.env();
        let served = Served::export(&env, world.attached, serving(4))
            .await
            .expect("it listens");
        let mut user = User::connect(&env, &world.machine).await.expect("a place");
        assert_eq!(user.write().await.expect("an answer"), 0);
        let before = disk_status(&served).await;
        assert!(
            !before.fenced && !disk_line(&before).contains("FENCED"),
            "{before:?}"
        );

        let other = world.cluster.simulation.machine("other");
        let winner = setting(3).attach(&other.env(), &world.table, world.disk).await?;
        assert!(winner.fence.0 > before.fence);
        // A node says so to whoever writes.
        let refused = user.write().await;
        assert!(!matches!(refused, Ok(0)), "{refused:?}");
        let after = disk_status(&served).await;
        assert!(after.fenced, "{after:?}");
        let line = disk_line(&after);
        assert!(
            line.contains("; FENCED: another attach has the disk, this one is about to end"),
            "{line}"
        );
        let ended = served.taken_over().await;
        assert_eq!(ended.exit_code(), 4, "{ended}");
        Ok(())
    };
    setting(3).run(2, work).expect("the run ends");
}

#[test]
fn no_more_nbd_clients_than_were_asked_for_are_taken_at_once() {
    let work = async move |world: Client| {
        let env = world.machine.env();
        let served = Served::export(&env, world.attached, serving(2))
            .await
            .expect("it listens");
        let mut first = User::connect(&env, &world.machine).await.expect("a place");
        let mut second = User::connect(&env, &world.machine).await.expect("a place");
        let third = env.spawn("the third client", {
            let (env, machine) = (env.clone(), world.machine.clone());
            async move {
                let mut user = User::connect(&env, &machine).await?;
                Ok::<_, io::Error>((env.now(), user.write().await?))
            }
        });
        env.sleep(Duration::from_secs(300)).await;
        let status = disk_status(&served).await;
        assert_eq!((status.connections, status.connections_max), (2, 2));
        for user in [&mut first, &mut second] {
            assert_eq!(user.write().await.expect("they are served all the while"), 0);
        }
        let left = env.now();
        drop(first);
        let (taken, error) = third.await.expect("it runs to its end").expect("it is taken");
        assert!(taken >= left, "before anybody left");
        assert_eq!(error, 0);
        Ok(())
    };
    setting(3).run(3, work).expect("the run ends");
}

/// Of two nodes one dies for good: every row has one copy only, and `status` counts them.
#[test]
fn status_counts_the_rows_that_have_one_copy_only() {
    let work = async move |world: Client| {
        let env = world.machine.env();
        let placement = placement(&env, &world.table);
        let nowhere = tempfile::tempdir().expect("a directory");
        let look = async || {
            let status = cluster_status(&env, &placement, nowhere.path()).await;
            text(&status.expect("the table answers"))
        };
        let whole = "rows of 2 copies: 256, 0 with too few (0 with one copy only, 0 with none that lives)";
        let seen = look().await;
        assert!(seen.contains(whole), "{seen}");
        world.hosts[0].machine.crash();
        let one_copy =
            "rows of 2 copies: 256, 256 with too few (256 with one copy only, 0 with none that lives)";
        for _ in 0..60 {
            env.sleep(Duration::from_secs(10)).await;
            let seen = look().await;
            if seen.contains(one_copy) {
                return Ok(());
            }
            assert!(seen.contains(whole), "{seen}");
        }
        Err(format!("the dead node is never counted: {}", look().await))
    };
    setting(2).run(4, work).expect("the run ends");
}

#[test]
fn what_the_table_made_larger_is_larger_for_who_connects_next() {
    let work = async move |world: Client| {
        let env = world.machine.env();
        let served = Served::export(&env, world.attached, serving(4))
            .await
            .expect("it listens");
        let looking = env.spawn("look", {
            let served = served.clone();
            async move { drop(served.taken_over().await) }
        });
        let mut user = User::connect(&env, &world.machine).await.expect("a place");
        let before = disk_status(&served).await.size_bytes;
        assert_eq!(before, 8192 * BLOCK_BYTES as u64);
        // As the service does it for a tenant, on another machine.
        let table = placement(&env, &world.table);
        let record = table.disk(world.disk).await.expect("it is there");
        let settings = DiskSettings::parse(&record.settings).expect("its own");
        let tracts = tracts_for(&settings, 2 * before).expect("a size");
        table
            .grow_disk(world.disk, 2 * before, Some(tracts))
            .await
            .expect("there is room");
        for _ in 0..60 {
            env.sleep(Duration::from_secs(1)).await;
            if disk_status(&served).await.size_bytes == 2 * before {
                assert_eq!(user.write().await.expect("who was there is served on"), 0);
                let next = User::negotiate(&env, &world.machine).await.expect("a place");
                assert_eq!(next.1, 2 * before);
                looking.abort();
                return Ok(());
            }
        }
        Err("nobody looked".into())
    };
    setting(3).run(6, work).expect("the run ends");
}
