//! Clients that are not ours: libnbd's tools, QEMU's and fio's. They run where they are installed on purpose (`real_…`).

use bytes::Bytes;
use firn_blockd_nbd::{
    AnyAlignment, BlockDevice, Durability, Export, Exports, Limits, MemoryDevice, Server, Tls, TlsPolicy,
};
use std::{
    path::Path,
    process::{Command, Output},
    sync::Arc,
};
use tempfile::TempDir;

const DISK_BYTES: u64 = 64 << 20;

struct World {
    directory: TempDir,
    disk: Arc<MemoryDevice>,
    /// `nbd+unix` URI of the socket without an export.
    unix: String,
    tcp: String,
}

/// Serves `disk` (any alignment), `blocks` (4 KiB blocks), `wrapped` (the same behind [`AnyAlignment`]) and `sealed`.
async fn start(tls: Option<Tls>) -> World {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let disk = Arc::new(MemoryDevice::new(DISK_BYTES));
    let exports = Arc::new(Exports::new());
    let blocks = MemoryDevice::with_block(DISK_BYTES, 4096);
    let wrapped = AnyAlignment::new(MemoryDevice::with_block(DISK_BYTES, 4096));
    let devices: [(&str, Arc<dyn BlockDevice>); 4] = [
        ("disk", disk.clone()),
        ("blocks", Arc::new(blocks)),
        ("wrapped", Arc::new(wrapped)),
        ("sealed", Arc::new(MemoryDevice::new(DISK_BYTES).read_only())),
    ];
    for (name, device) in devices {
        exports.insert(name, Export::new(device, format!("the {name} one")));
    }
    let server = Server::new(env, exports, tls, Limits::default());
    let socket = directory.path().join("nbd.sock");
    server
        .listen(&format!("unix:{}", socket.display()))
        .await
        .unwrap();
    let tcp = server.listen("127.0.0.1:0").await.unwrap();
    World {
        disk,
        unix: socket.display().to_string(),
        tcp: tcp.address().to_owned(),
        directory,
    }
}

impl World {
    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.unix)
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn write_file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

/// Runs a program to its end, off the executor, and requires success.
async fn run(program: &str, arguments: &[&str]) -> String {
    let output = try_run(program, arguments).await;
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

#[allow(
    clippy::disallowed_methods,
    reason = "a program is waited for on a thread of its own, beside the server"
)]
async fn try_run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments);
    let name = program.to_owned();
    tokio::task::spawn_blocking(move || command.output().unwrap_or_else(|error| panic!("{name}: {error}")))
        .await
        .unwrap()
}

/// Bytes that no shift or swap of blocks leaves equal, with a hole in the middle.
fn pattern() -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..DISK_BYTES / 8)
        .flat_map(|word| (word ^ 0x5a5a_0000_1234).to_le_bytes())
        .collect();
    bytes[20 << 20..40 << 20].fill(0);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs libnbd's tools"]
async fn real_nbdinfo_understands_what_is_offered() {
    let world = start(None).await;
    let list = run("nbdinfo", &["--list", &format!("nbd://{}", world.tcp)]).await;
    for name in ["disk", "blocks", "wrapped", "sealed"] {
        assert!(list.contains(&format!("export=\"{name}\"")), "{list}");
    }
    let info = run("nbdinfo", &[&world.uri("blocks")]).await;
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 67108864 (64M)",
        "base:allocation",
        "is_read_only: false",
        "can_multi_conn: true",
        "can_fast_zero: true",
        "can_df: true",
        "block_size_minimum: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(info.contains(line), "{line}: {info}");
    }
    world
        .disk
        .write(0, Bytes::from(vec![1; 65_536]), Durability::Acknowledged)
        .await
        .unwrap();
    let map = run("nbdinfo", &["--map", &world.uri("disk")]).await;
    assert!(map.contains("65536") && map.contains("hole,zero"), "{map}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs libnbd's tools"]
async fn real_nbdcopy_brings_every_byte_there_and_back_over_several_connections() {
    let world = start(None).await;
    let source = world.write_file("source", pattern());
    for (export, uri) in [
        ("disk", world.uri("disk")),
        ("wrapped", world.uri("wrapped")),
        ("blocks", format!("nbd://{}/blocks", world.tcp)),
    ] {
        let back = world.path(export);
        run(
            "nbdcopy",
            &["--connections=4", "--requests=32", "--flush", &source, &uri],
        )
        .await;
        run("nbdcopy", &["--connections=4", "--requests=32", &uri, &back]).await;
        assert!(std::fs::read(back).unwrap() == pattern(), "{export}");
    }
    assert!(world.disk.flushes() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs libnbd's Python module"]
async fn real_nbdsh_meets_every_error_path() {
    let world = start(None).await;
    let script = world.write_file("errors.py", include_str!("real_clients/errors.py"));
    let output = run("/usr/bin/python3", &[&script, &world.unix]).await;
    assert!(output.contains("all error paths as specified"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs QEMU's tools"]
async fn real_qemu_img_and_qemu_io_agree_with_what_they_wrote() {
    let world = start(None).await;
    let source = world.write_file("source", pattern());
    for export in ["disk", "wrapped", "blocks"] {
        let uri = world.uri(export);
        run(
            "qemu-img",
            &[
                "convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "8", &source, &uri,
            ],
        )
        .await;
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, &uri]).await;
        let io = run(
            "qemu-io",
            &[
                "-f",
                "raw",
                "-c",
                "write -P 0x11 0 1M",
                "-c",
                "write -f -P 0x22 1M 64k",
                "-c",
                "write -z -u 2M 1M",
                "-c",
                "write -z 3M 1M",
                "-c",
                "write -z -n -u 3M 1M",
                "-c",
                "discard 4M 1M",
                "-c",
                "aio_write -P 0x33 5M 512k",
                "-c",
                "aio_write -P 0x44 6M 512k",
                "-c",
                "aio_flush",
                "-c",
                "flush",
                "-c",
                "read -P 0x11 0 1M",
                "-c",
                "read -P 0x22 1M 64k",
                "-c",
                "read -P 0 2M 1M",
                "-c",
                "read -P 0x33 5M 512k",
                "-c",
                "read -P 0x44 6M 512k",
                "-c",
                "write -P 0x55 1234 777",
                "-c",
                "read -P 0x55 1234 777",
                "-c",
                "read -P 0x11 2011 1000",
                &uri,
            ],
        )
        .await;
        assert!(!io.contains("failed") && !io.contains("error"), "{io}");
    }
    let refused = run(
        "qemu-io",
        &["-r", "-f", "raw", "-c", "read -P 0 0 4k", &world.uri("sealed")],
    )
    .await;
    assert!(!refused.contains("failed"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs fio with its nbd engine"]
async fn real_fio_verifies_random_writes_at_depth_32() {
    let world = start(None).await;
    for (export, size) in [("disk", "4k-4k"), ("wrapped", "512-16k"), ("blocks", "4k-64k")] {
        let output = run(
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                "--thread",
                "--direct=1",
                "--rw=randrw",
                "--iodepth=32",
                "--size=48m",
                "--verify=crc32c",
                "--verify_state_save=0",
                "--verify_fatal=1",
                "--do_verify=1",
                "--verify_backlog=1024",
                &format!("--bsrange={size}"),
                &format!("--uri={}", world.uri(export)),
            ],
        )
        .await;
        assert!(output.contains("err= 0"), "{output}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs libnbd's tools with TLS"]
async fn real_clients_get_in_over_tls_and_not_without() {
    let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let pem = issued.cert.pem();
    let key = rustls_key(&issued.signing_key.serialize_der());
    let tls = Tls::new(vec![issued.cert.der().clone()], key, TlsPolicy::AnyClient).unwrap();
    let world = start(Some(tls)).await;
    let certificates = world.path("certificates");
    std::fs::create_dir(&certificates).unwrap();
    std::fs::write(Path::new(&certificates).join("ca-cert.pem"), pem).unwrap();
    let port = world.tcp.rsplit(':').next().unwrap();
    let uri = format!("nbds://localhost:{port}/disk?tls-certificates={certificates}");
    let info = run("nbdinfo", &[&uri]).await;
    assert!(info.contains("with TLS"), "{info}");
    let source = world.write_file("source", pattern());
    let back = world.path("back");
    run("nbdcopy", &[&source, &uri]).await;
    run("nbdcopy", &[&uri, &back]).await;
    assert!(std::fs::read(back).unwrap() == pattern());
    let plain = try_run("nbdinfo", &[&format!("nbd://localhost:{port}/disk")]).await;
    assert!(!plain.status.success());
    let words = String::from_utf8_lossy(&plain.stderr);
    // libnbd's word for "TLS first".
    assert!(words.contains("Operation not supported"), "{words}");
}

fn rustls_key(der: &[u8]) -> rustls::pki_types::PrivateKeyDer<'static> {
    rustls::pki_types::PrivatePkcs8KeyDer::from(der.to_vec()).into()
}
