//! Whole disks, sealed and replicated, under clients that are not ours.

use firn_blockd_disk::{
    DiskEngine, FlushPolicy, Incarnation, LogConfig, MemoryNodes, Regions, StripedConfig, VirtualDisk,
    WritePolicy, log, striped,
};
use firn_blockd_nbd::{AnyAlignment, BlockDevice, Export, Exports, Limits, Server};
use firn_env::Env;
use std::{process::Command, sync::Arc};
use tempfile::TempDir;

const KEY: [u8; 32] = [7; 32];
/// Small, so that a debug build is done with all modes in a minute.
const DISK_BYTES: u64 = 16 << 20;

#[derive(Clone, Copy, Debug)]
enum Mode {
    WriteThrough,
    WriteBack,
    Ordered,
    Log,
}

const MODES: [(&str, Mode, u32); 5] = [
    ("write-through", Mode::WriteThrough, 4096),
    ("write-back", Mode::WriteBack, 4096),
    ("flush-epoch", Mode::Ordered, 4096),
    ("log", Mode::Log, 4096),
    ("log-64k", Mode::Log, 65_536),
];

async fn attach(
    env: &Env,
    nodes: &Arc<MemoryNodes>,
    mode: Mode,
    block_bytes: u32,
    incarnation: u64,
) -> VirtualDisk {
    let incarnation = Incarnation(incarnation);
    let replicas = Arc::new(nodes.attach(incarnation, KEY));
    let flush = match mode {
        Mode::Ordered => FlushPolicy::Ordered { lag_ms_max: 1000 },
        Mode::WriteThrough | Mode::WriteBack | Mode::Log => FlushPolicy::Durable,
    };
    let dirty_bytes_max = 32 << 20;
    let engine: Box<dyn DiskEngine> = if let Mode::Log = mode {
        let config = LogConfig {
            flush,
            dirty_bytes_max,
            checkpoint_entries: 4000,
        };
        Box::new(log::recover(&*replicas, incarnation, config).await.unwrap())
    } else {
        let config = StripedConfig {
            blocks: DISK_BYTES / u64::from(block_bytes),
            write: match mode {
                Mode::WriteThrough => WritePolicy::Durable,
                Mode::WriteBack | Mode::Ordered | Mode::Log => WritePolicy::Memory,
            },
            flush,
            dirty_bytes_max,
            regions: Regions::default(),
        };
        let attached = striped::attach(&*replicas, incarnation, config).await.unwrap();
        Box::new(attached.engine)
    };
    VirtualDisk::new(env.clone(), replicas, engine, block_bytes)
}

struct World {
    directory: TempDir,
    env: Env,
    nodes: Vec<Arc<MemoryNodes>>,
    disks: Vec<VirtualDisk>,
    exports: Arc<Exports>,
}

impl World {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let env = firn_env::real(directory.path()).unwrap();
        let exports = Arc::new(Exports::new());
        let nodes: Vec<_> = MODES.iter().map(|_| MemoryNodes::new(2)).collect();
        for (nodes, (_, mode, block_bytes)) in nodes.iter().zip(MODES) {
            if let Mode::Log = mode {
                let blocks = DISK_BYTES / u64::from(block_bytes);
                let replicas = nodes.attach(Incarnation(1), KEY);
                log::format(&replicas, Incarnation(1), blocks, blocks + blocks / 4, 3)
                    .await
                    .unwrap();
            }
        }
        let server = Server::new(env.clone(), exports.clone(), None, Limits::default());
        let mut world = Self {
            directory,
            env,
            nodes,
            disks: Vec::new(),
            exports,
        };
        server
            .listen(&format!("unix:{}", world.path("nbd.sock")))
            .await
            .unwrap();
        world.attach_all(2).await;
        world
    }

    async fn attach_all(&mut self, incarnation: u64) {
        self.disks.clear();
        for (nodes, (name, mode, block_bytes)) in self.nodes.iter().zip(MODES) {
            let disk = attach(&self.env, nodes, mode, block_bytes, incarnation).await;
            self.disks.push(disk.clone());
            let device: Arc<dyn BlockDevice> = Arc::new(AnyAlignment::new(disk));
            self.exports.insert(name, Export::new(device, "a virtual disk"));
        }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.path("nbd.sock"))
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a program is waited for on a thread of its own, beside the server"
)]
async fn run(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    let name = program.to_owned();
    let output = tokio::task::spawn_blocking(move || {
        command.output().unwrap_or_else(|error| panic!("{name}: {error}"))
    })
    .await
    .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{text}",
        output.status
    );
    text
}

/// Bytes that no shift or swap of blocks leaves equal, with a hole in the middle.
fn pattern() -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..DISK_BYTES / 8)
        .flat_map(|word| (word ^ 0x5a5a_0000_1234).to_le_bytes())
        .collect();
    bytes[4 << 20..7 << 20].fill(0);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs libnbd's tools and QEMU's"]
async fn real_clients_find_their_data_on_every_mode_after_a_detach_and_after_a_takeover() {
    let mut world = World::start().await;
    let source = world.path("source");
    std::fs::write(&source, pattern()).unwrap();
    for (name, ..) in MODES {
        run(
            "nbdcopy",
            &["--connections=4", "--flush", &source, &world.uri(name)],
        )
        .await;
        run(
            "qemu-img",
            &["compare", "-f", "raw", "-F", "raw", &source, &world.uri(name)],
        )
        .await;
    }
    for disk in &world.disks {
        disk.detach().await.unwrap();
    }
    world.attach_all(3).await;
    for (name, ..) in MODES {
        run(
            "qemu-img",
            &["compare", "-f", "raw", "-F", "raw", &source, &world.uri(name)],
        )
        .await;
        let script = [
            "write -P 0x55 1234 777",
            "flush",
            "read -P 0x55 1234 777",
            "discard 8M 1M",
            "write -z 9M 1M",
        ];
        let script: Vec<&str> = script.iter().flat_map(|line| ["-c", line]).collect();
        let uri = world.uri(name);
        run("qemu-io", &[&["-f", "raw"], &script[..], &[&uri]].concat()).await;
    }
    // No detach: the successor takes over while the disk is in use.
    world.attach_all(4).await;
    for (name, ..) in MODES {
        let io = run(
            "qemu-io",
            &[
                "-f",
                "raw",
                "-c",
                "read -P 0x55 1234 777",
                "-c",
                "read -P 0 8M 2M",
                &world.uri(name),
            ],
        )
        .await;
        assert!(!io.contains("failed"), "{name}: {io}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs fio with its nbd engine"]
async fn real_fio_verifies_every_mode_at_depth_32() {
    let world = World::start().await;
    for (name, ..) in MODES {
        let output = run(
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                "--thread",
                "--direct=1",
                "--rw=randrw",
                "--iodepth=32",
                "--size=12m",
                "--bsrange=4k-64k",
                "--fsync=64",
                "--verify=crc32c",
                "--verify_state_save=0",
                "--verify_fatal=1",
                "--do_verify=1",
                &format!("--uri={}", world.uri(name)),
            ],
        )
        .await;
        assert!(output.contains("err= 0"), "{name}: {output}");
    }
}
