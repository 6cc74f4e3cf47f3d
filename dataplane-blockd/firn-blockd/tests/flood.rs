//! A real node under a flood of connections that say nothing, or very little, while a disk works on it: that it goes on, within
//! bounds. How long clients wait beside 32,000 is for `scripts/check-connections`.
#![allow(
    clippy::disallowed_methods,
    reason = "it starts a real program, and measures in real time"
)]

use rustix::{
    net::{AddressFamily, SocketType, bind, connect, socket},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Far longer than anything takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
const BLOCK: usize = 4096;
/// Of the disk.
const BLOCKS: u64 = (64 << 20) / BLOCK as u64;
/// Unfinished handshakes that a node keeps from one address (docs/blockd.md).
const OF_ADDRESS: usize = 128;
/// What those may cost a node, and twice as much for what an allocator keeps: a socket's buffers are the kernel's.
const FLOOD_BYTES_MAX: u64 = 64 << 20;

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Anonymous memory in use.
    fn memory_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    fn sockets(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0.id()))
            .unwrap()
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .filter(|link| link.display().to_string().starts_with("socket:"))
            .count()
    }
}

/// A client of the network block device protocol that has one request under way.
struct Disk(UnixStream);

impl Disk {
    fn open(socket: &Path, export: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut go = 3_u32.to_be_bytes().to_vec();
        go.extend(b"IHAVEOPT");
        go.extend(7_u32.to_be_bytes());
        go.extend((6 + export.len() as u32).to_be_bytes());
        go.extend((export.len() as u32).to_be_bytes());
        go.extend(export.as_bytes());
        go.extend([0, 0]);
        stream.write_all(&go).unwrap();
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head).unwrap();
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut rest = vec![0; word(16) as usize];
            stream.read_exact(&mut rest).unwrap();
            match word(12) {
                1 => return Self(stream),
                3 => {}
                other => panic!("option refused: {other:#x} {}", String::from_utf8_lossy(&rest)),
            }
        }
    }

    fn request(&mut self, flags: u16, kind: u16, block: u64, data: &[u8]) {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend(flags.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(block.to_be_bytes());
        request.extend((block * BLOCK as u64).to_be_bytes());
        request.extend((BLOCK as u32).to_be_bytes());
        request.extend(data);
        self.0.write_all(&request).unwrap();
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(head[4..8], [0; 4], "no error");
        assert_eq!(head[8..], block.to_be_bytes());
    }

    /// A durable write and a read of it, elsewhere each time; how long the two took.
    fn work(&mut self, round: u64) -> Duration {
        let block = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % BLOCKS;
        let data = vec![round as u8; BLOCK];
        let began = Instant::now();
        self.request(1, 1, block, &data);
        self.request(0, 0, block, &[]);
        let mut found = vec![0; BLOCK];
        self.0.read_exact(&mut found).unwrap();
        let taken = began.elapsed();
        assert!(found == data, "round {round}");
        taken
    }

    fn p99(&mut self, rounds: std::ops::Range<u64>) -> Duration {
        let mut taken: Vec<Duration> = rounds.map(|round| self.work(round)).collect();
        taken.sort_unstable();
        taken[taken.len() * 99 / 100]
    }
}

fn connect_from(source: Ipv4Addr, address: SocketAddrV4) -> io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddrV4::new(source, 0))?;
    connect(&socket, &address)?;
    Ok(socket.into())
}

/// Keeps `count` connections from `source` open to the node, half of them silent, half with a byte of a greeting now and then; whatever
/// the node closes is opened again.
fn flood(
    source: Ipv4Addr,
    address: SocketAddrV4,
    count: usize,
    stop: &Arc<AtomicBool>,
    opened: &Arc<AtomicUsize>,
) -> thread::JoinHandle<()> {
    let (stop, opened) = (stop.clone(), opened.clone());
    thread::spawn(move || {
        let mut open: Vec<Option<TcpStream>> = (0..count).map(|_| None).collect();
        while !stop.load(Relaxed) {
            for (at, slot) in open.iter_mut().enumerate() {
                if stop.load(Relaxed) {
                    return;
                }
                let is_gone = match slot {
                    None => true,
                    Some(stream) => {
                        let is_slow = at % 2 == 0;
                        // The first bytes of a record of a TLS handshake, which announce 512.
                        let ended = is_slow && stream.write_all(&[22, 3, 1, 2, 0][at % 5..=at % 5]).is_err();
                        ended
                            || matches!(stream.read(&mut [0; 16]), Ok(0))
                            || matches!(stream.read(&mut [0; 16]), Err(error) if error.kind() != ErrorKind::WouldBlock)
                    }
                };
                if is_gone {
                    // A full backlog of the kernel is a flood's success; it is tried again.
                    *slot = connect_from(source, address).ok();
                    if let Some(stream) = slot {
                        stream.set_nonblocking(true).unwrap();
                        opened.fetch_add(1, Relaxed);
                    }
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
    })
}

/// As root the most may be raised too.
fn allow_files(count: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return;
    }
    let most = limit.maximum.map(|most| most.max(count));
    let wanted = |current, maximum| Rlimit {
        current: Some(current),
        maximum,
    };
    if setrlimit(Resource::Nofile, wanted(count, most)).is_err() {
        let allowed = limit.maximum.unwrap_or(count).min(count);
        setrlimit(Resource::Nofile, wanted(allowed, limit.maximum)).unwrap();
    }
}

#[test]
fn a_disk_goes_on_while_thousands_say_nothing_to_its_nodes() {
    let (count, rounds) = (600_usize, 300);
    allow_files(count as u64 + 1000);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let socket = directory.path().join("cluster/nbd.sock");
    let mut process = Process(
        Command::new(env!("CARGO_BIN_EXE_firn-blockd"))
            .args([
                "dev",
                "--nodes",
                "1",
                "--replication",
                "1",
                "--node-size",
                "320MiB",
                "--size",
                "64MiB",
            ])
            .arg("--directory")
            .arg(directory.path().join("cluster"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap(),
    );
    let said = || fs::read_to_string(&log).unwrap();
    let began = Instant::now();
    while !socket.exists() {
        assert!(process.0.try_wait().unwrap().is_none(), "{}", said());
        assert!(began.elapsed() < TIMEOUT, "{}", said());
        thread::sleep(Duration::from_millis(50));
    }
    let text = said();
    let node = text
        .lines()
        .find(|line| line.contains("disk node serves"))
        .unwrap();
    let address: SocketAddrV4 = node
        .split_once("address=")
        .unwrap()
        .1
        .trim_matches(|letter| letter == '"')
        .split(['"', ' '])
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let mut disk = Disk::open(&socket, "dev-write-back-1");
    disk.p99(0..rounds);
    let quiet = disk.p99(rounds..2 * rounds);
    let (memory, sockets) = (process.memory_bytes(), process.sockets());

    let (stop, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let floods: Vec<_> = (0..count.div_ceil(8000))
        .map(|part| {
            // Each address has some thousand ports only.
            let source = Ipv4Addr::new(127, 0, 1, part as u8);
            flood(source, address, (count - part * 8000).min(8000), &stop, &opened)
        })
        .collect();
    let began = Instant::now();
    while opened.load(Relaxed) < count {
        assert!(began.elapsed() < TIMEOUT, "{} of {count}", opened.load(Relaxed));
        thread::sleep(Duration::from_millis(10));
    }
    let mut held = 0;
    let mut taken = Vec::new();
    for part in 0..10 {
        taken.push(disk.p99(2 * rounds + part * rounds / 10..2 * rounds + (part + 1) * rounds / 10));
        held = held.max(process.sockets().saturating_sub(sockets));
    }
    let under_flood = disk.p99(3 * rounds..4 * rounds);
    let grown = process.memory_bytes().saturating_sub(memory);
    // Somebody new is let in meanwhile: the client's connection is opened anew by a detach and an attach of the process, so here
    // that a newcomer's greeting is read is enough: nonsense is answered with an alert.
    let mut newcomer = TcpStream::connect(address).unwrap();
    newcomer.set_read_timeout(Some(TIMEOUT)).unwrap();
    newcomer.write_all(b"this is no greeting of TLS\r\n").unwrap();
    let answered = newcomer.read(&mut [0; 64]);
    assert!(matches!(answered, Ok(1..)), "{answered:?}");
    stop.store(true, Relaxed);
    for flood in floods {
        flood.join().unwrap();
    }
    println!(
        "{count} connections ({} opened): p99 of a durable write and a read {quiet:?} before, {under_flood:?} under them ({:.2}×); \
         {held} sockets more, {} KiB more",
        opened.load(Relaxed),
        under_flood.as_secs_f64() / quiet.as_secs_f64(),
        grown >> 10
    );
    assert!(
        held <= count.div_ceil(8000) * OF_ADDRESS + 16,
        "{held} sockets are held for who says nothing"
    );
    assert!(grown <= FLOOD_BYTES_MAX, "{grown} bytes for who says nothing");
    let warnings = said()
        .lines()
        .filter(|line| line.contains("a connection was closed"))
        .count();
    let minutes = usize::try_from(began.elapsed().as_secs() / 60).unwrap();
    assert!(
        (1..=2 + minutes).contains(&warnings),
        "{warnings} warnings: {}",
        said()
    );
}
