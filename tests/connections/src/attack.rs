//! The crowd: connections that are silent or slow, from many loopback addresses, opened again when the server closes them.
//!
//! Of eight connections two say nothing; the others send something, at once or a byte every [`SLOW`]:
//!
//! | of eight | what it does |
//! |---|---|
//! | 2 | nothing |
//! | 1 (2 without TLS) | the opening of the protocol, byte by byte |
//! | 1 (2) | the opening, and then nothing |
//! | 1 (2) | the opening, 20 KiB, and then byte by byte |
//! | 1 (0) | a whole handshake of TLS, and then nothing |
//! | 1 (0) | a handshake, and then a request, byte by byte |
//! | 1 (0) | a handshake, the head of a request, and then its body, byte by byte |
//!
//! The processes that hold them have the least claim to the processor: strangers have machines of their own.

use crate::{Protocol, tls::Tls};
use anyhow::{Context, Result, ensure};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, Lines},
    net::{TcpSocket, TcpStream},
    process::{Child, ChildStdout, Command},
};

/// Between two bytes of a slow connection.
const SLOW: Duration = Duration::from_secs(5);
/// Until a connection that was closed or refused is opened again, at most; each waits for another part of it, so that they do not come in waves.
/// A crowd of 32,000 at a server that takes a thousand then makes a thousand connections a second: the check is of connections that are
/// held, not of a flood of new ones.
const AGAIN: Duration = Duration::from_secs(60);
/// Connections opened at once, and the pause after them: 500 a second and process.
const BURST: usize = 10;
const BURST_PAUSE: Duration = Duration::from_millis(20);
/// Descriptors that a process surely has: half of what the strictest machines give.
const PER_PROCESS: usize = 8_000;

/// What of the crowd one process holds.
#[derive(Clone, Debug)]
pub struct Part {
    /// Whom it is against.
    pub address: SocketAddr,
    /// What a slow connection begins with.
    pub protocol: Protocol,
    /// How many connections.
    pub connections: usize,
    /// The ordinal of its first source address.
    pub first_source: usize,
    /// How many of these.
    pub sources: usize,
}

#[derive(Default)]
struct Counts {
    open: AtomicUsize,
    opened: AtomicUsize,
    closed: AtomicUsize,
}

fn source(ordinal: usize) -> Ipv4Addr {
    // 127.1.0.1 and on: not the address of the clients that work.
    let ordinal = ordinal as u32 + 1;
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(127, 1, 0, 0)) + ordinal)
}

/// Holds a part of the crowd until its standard input ends; says once a second how it is.
pub async fn hold(part: Part) -> Result<()> {
    rustix::process::nice(19).context("giving way to others")?;
    let tls = Tls::new()?;
    let counts = Arc::new(Counts::default());
    let (holding, part) = (counts.clone(), Arc::new(part));
    let opening = tokio::spawn(async move {
        for ordinal in 0..part.connections {
            tokio::spawn(keep(part.clone(), tls.clone(), ordinal, holding.clone()));
            if ordinal % BURST == BURST - 1 {
                tokio::time::sleep(BURST_PAUSE).await;
            }
        }
    });
    let saying = async {
        loop {
            let Counts { open, opened, closed } = &*counts;
            println!(
                "{} {} {}",
                open.load(Relaxed),
                opened.load(Relaxed),
                closed.load(Relaxed)
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let (ended, end) = tokio::sync::oneshot::channel();
    // Whatever it reads, even an error, is the end.
    std::thread::spawn(move || {
        let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
        let _ = ended.send(());
    });
    tokio::select! {
        () = saying => {}
        _ = end => {}
    }
    opening.abort();
    Ok(())
}

async fn keep(part: Arc<Part>, tls: Tls, ordinal: usize, counts: Arc<Counts>) {
    let from = IpAddr::from(source(part.first_source + ordinal % part.sources));
    for time in 0_usize.. {
        if let Ok(stream) = open(from, part.address).await {
            counts.open.fetch_add(1, Relaxed);
            counts.opened.fetch_add(1, Relaxed);
            // However it ends, it is opened again.
            let _ = dawdle(stream, part.protocol, &tls, ordinal).await;
            counts.open.fetch_sub(1, Relaxed);
            counts.closed.fetch_add(1, Relaxed);
        }
        // Multiplied by odd numbers, the ordinals of neighbours lie far apart.
        let spread = ordinal
            .wrapping_mul(7919)
            .wrapping_add(time.wrapping_mul(104_729))
            % 1000;
        tokio::time::sleep(AGAIN * spread as u32 / 1000).await;
    }
}

async fn open(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    socket.connect(to).await
}

/// Completes when the server has closed the connection.
async fn dawdle(stream: TcpStream, protocol: Protocol, tls: &Tls, ordinal: usize) -> std::io::Result<()> {
    let opening = protocol.opening();
    match (ordinal % 8, protocol.is_tls()) {
        (0 | 1, _) => linger(stream, &[], Slowly::Nothing).await,
        (2, _) | (5, false) => linger(stream, &[], Slowly::Bytes(opening)).await,
        (3, _) | (6, false) => linger(stream, &opening, Slowly::Nothing).await,
        (4, _) | (_, false) => {
            let much = [opening, vec![0; 20 << 10]].concat();
            linger(stream, &much, Slowly::Bytes(vec![0])).await
        }
        (5, true) => linger(tls.handshake(stream).await?, &[], Slowly::Nothing).await,
        (6, true) => {
            let stream = tls.handshake(stream).await?;
            linger(stream, &[], Slowly::Bytes(protocol.request())).await
        }
        (_, true) => {
            let stream = tls.handshake(stream).await?;
            linger(stream, &protocol.request(), Slowly::Bytes(vec![b' '])).await
        }
    }
}

/// What comes after what is sent at once.
enum Slowly {
    Nothing,
    /// These, again and again.
    Bytes(Vec<u8>),
}

async fn linger(stream: impl AsyncRead + AsyncWrite, at_once: &[u8], slowly: Slowly) -> std::io::Result<()> {
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = async {
        write.write_all(at_once).await?;
        write.flush().await?;
        if let Slowly::Bytes(bytes) = slowly {
            for byte in bytes.iter().cycle() {
                tokio::time::sleep(SLOW).await;
                write.write_all(std::slice::from_ref(byte)).await?;
                write.flush().await?;
            }
        }
        std::future::pending().await
    };
    let receiving = async {
        let mut buffer = [0; 512];
        while read.read(&mut buffer).await? > 0 {}
        Ok(())
    };
    tokio::select! {
        ended = sending => ended,
        ended = receiving => ended,
    }
}

/// The whole crowd.
pub struct Crowd {
    parts: Vec<(Child, Lines<BufReader<ChildStdout>>)>,
}

/// How the crowd is.
#[derive(Clone, Copy, Debug, Default)]
pub struct State {
    /// Connections that are open now.
    pub open: usize,
    /// Connections opened since the beginning.
    pub opened: usize,
    /// Of them, closed by the server.
    pub closed: usize,
}

impl Crowd {
    /// Starts `connections` against `address`, from `sources` addresses, by processes of `program`: this one's own.
    pub fn start(
        program: &std::path::Path,
        address: SocketAddr,
        protocol: Protocol,
        connections: usize,
        sources: usize,
    ) -> Result<Self> {
        ensure!(sources > 0 && connections > 0, "a crowd of nobody");
        let processes = connections.div_ceil(PER_PROCESS).min(sources);
        let mut parts = Vec::new();
        for number in 0..processes {
            let share = |whole: usize| whole * (number + 1) / processes - whole * number / processes;
            let mut child = Command::new(program)
                .arg("hold")
                .arg(address.to_string())
                .arg(protocol.to_string())
                .arg(share(connections).to_string())
                .arg((sources * number / processes).to_string())
                .arg(share(sources).to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .with_context(|| format!("starting {}", program.display()))?;
            let lines = BufReader::new(child.stdout.take().context("piped")?).lines();
            parts.push((child, lines));
        }
        Ok(Self { parts })
    }

    /// What its processes say next; they do once a second.
    pub async fn state(&mut self) -> Result<State> {
        let mut state = State::default();
        for (_, lines) in &mut self.parts {
            let line = lines
                .next_line()
                .await?
                .context("a part of the crowd has ended")?;
            let mut numbers = line.split(' ').map(str::parse::<usize>);
            let mut next = || numbers.next().context("three numbers a line")?.context("numbers");
            state.open += next()?;
            state.opened += next()?;
            state.closed += next()?;
        }
        Ok(state)
    }

    /// Ends it.
    pub async fn end(mut self) -> Result<()> {
        for (child, _) in &mut self.parts {
            drop(child.stdin.take());
        }
        for (child, _) in &mut self.parts {
            child.wait().await?;
        }
        Ok(())
    }
}
