//! All connections of the simulated network: who listens, what is on its way, what is cut.

use crate::sim::seeded::Seeded;
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::{self, ErrorKind},
    task::Waker,
    time::Duration,
};

/// Bytes in flight in one direction before a writer waits, as a socket buffer's.
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// Connections waiting to be accepted.
const BACKLOG: usize = 128;
/// How long a connect waits for a machine it cannot reach.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// First port given out for port 0 and for outgoing connections.
const FIRST_FREE_PORT: u16 = 40_000;
/// Where machines connect from that use privileged ports.
const PRIVILEGED_PORTS: std::ops::Range<u16> = 600..1000;

pub(in crate::sim) fn address_of(machine: usize) -> String {
    let machine = machine + 1;
    format!(
        "10.{}.{}.{}",
        machine >> 16 & 255,
        machine >> 8 & 255,
        machine & 255
    )
}

/// One direction of a connection.
#[derive(Default)]
pub(super) struct Pipe {
    pub(super) chunks: VecDeque<(u64, Bytes)>,
    pub(super) in_flight_bytes: usize,
    pub(super) last_arrival: u64,
    /// The writer has ended; readers see the end after the last chunk.
    pub(super) finished: bool,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

pub(super) struct Connection {
    /// Machines of the two ends.
    pub(super) ends: [usize; 2],
    /// `pipes[i]` carries what end `i` writes.
    pub(super) pipes: [Pipe; 2],
    pub(super) closed: [bool; 2],
    pub(super) reset: bool,
}

impl Connection {
    pub(super) fn wake(&mut self) {
        for pipe in &mut self.pipes {
            for waker in [pipe.reader.take(), pipe.writer.take()].into_iter().flatten() {
                waker.wake();
            }
        }
    }
}

#[derive(Default)]
pub(super) struct ListenerState {
    pub(super) waiting: VecDeque<(u64, String)>,
    pub(super) accepting: Option<Waker>,
}

/// All connections.
pub(in crate::sim) struct NetworkState {
    names: BTreeMap<String, usize>,
    pub(super) listeners: BTreeMap<(usize, u16), ListenerState>,
    pub(super) connections: BTreeMap<u64, Connection>,
    partitions: BTreeSet<(usize, usize)>,
    /// Machines that connect from ports below 1024, as root does for NFS.
    privileged: BTreeSet<usize>,
    next_connection: u64,
    next_port: u16,
    pub(super) random: Seeded,
    longest_latency: Duration,
}

impl Default for NetworkState {
    fn default() -> Self {
        Self::new(0)
    }
}

impl NetworkState {
    pub(in crate::sim) fn new(seed: u64) -> Self {
        Self {
            names: BTreeMap::new(),
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            partitions: BTreeSet::new(),
            privileged: BTreeSet::new(),
            next_connection: 0,
            next_port: FIRST_FREE_PORT,
            random: Seeded::new(seed, 1),
            longest_latency: Duration::from_micros(500),
        }
    }

    pub(in crate::sim) fn add_machine(&mut self, name: &str) {
        let id = self.names.len();
        self.names.insert(name.to_owned(), id);
    }

    pub(in crate::sim) fn set_latency(&mut self, longest: Duration) {
        self.longest_latency = longest;
    }

    pub(in crate::sim) fn set_partition(&mut self, one: usize, other: usize, cut: bool) {
        let pair = (one.min(other), one.max(other));
        if cut {
            self.partitions.insert(pair);
        } else {
            self.partitions.remove(&pair);
            for connection in self.connections.values_mut() {
                connection.wake();
            }
        }
    }

    /// Resets the connections of a machine, as a router that forgot them would.
    pub(in crate::sim) fn reset(&mut self, machine: usize) {
        for connection in self.connections.values_mut() {
            if connection.ends.contains(&machine) {
                connection.reset = true;
                connection.wake();
            }
        }
    }

    pub(in crate::sim) fn machine_stopped(&mut self, machine: usize) {
        self.reset(machine);
        self.listeners.retain(|(at, _), _| *at != machine);
    }

    pub(in crate::sim) fn set_privileged(&mut self, machine: usize, privileged: bool) {
        if privileged {
            self.privileged.insert(machine);
        } else {
            self.privileged.remove(&machine);
        }
    }

    pub(super) fn is_cut(&self, one: usize, other: usize) -> bool {
        self.partitions.contains(&(one.min(other), one.max(other)))
    }

    /// The machine and port an address names, seen from `from`.
    pub(super) fn resolve(&self, from: usize, address: &str) -> io::Result<(usize, u16)> {
        let (host, port) = address
            .rsplit_once(':')
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "no port in the address"))?;
        let port = port
            .parse()
            .map_err(|_| io::Error::new(ErrorKind::InvalidInput, "the port is no number"))?;
        let machine = match host {
            "" | "localhost" | "127.0.0.1" | "0.0.0.0" | "[::]" => from,
            name => match self.names.get(name) {
                Some(machine) => *machine,
                None => (0..self.names.len())
                    .find(|machine| address_of(*machine) == name)
                    .ok_or_else(|| io::Error::new(ErrorKind::NotFound, format!("no host {name}")))?,
            },
        };
        Ok((machine, port))
    }

    pub(super) fn free_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_FREE_PORT);
        port
    }

    pub(super) fn arrival(&mut self, now: u64) -> u64 {
        let latency = self.random.duration(Duration::ZERO, self.longest_latency);
        now + u64::try_from(latency.as_nanos()).unwrap_or(0)
    }

    /// Puts a connection into a listener's queue; `None`: nobody listens.
    pub(super) fn open(&mut self, from: usize, to: usize, port: u16) -> Option<u64> {
        let mut source = self.free_port();
        if self.privileged.contains(&from) {
            source = PRIVILEGED_PORTS.start + source % (PRIVILEGED_PORTS.end - PRIVILEGED_PORTS.start);
        }
        let peer = format!("{}:{source}", address_of(from));
        let id = self.next_connection;
        let listener = self.listeners.get_mut(&(to, port))?;
        if listener.waiting.len() >= BACKLOG {
            return None;
        }
        self.next_connection += 1;
        listener.waiting.push_back((id, peer));
        let accepting = listener.accepting.take();
        self.connections.insert(
            id,
            Connection {
                ends: [from, to],
                pipes: Default::default(),
                closed: [false, false],
                reset: false,
            },
        );
        if let Some(waker) = accepting {
            waker.wake();
        }
        Some(id)
    }

    pub(super) fn close(&mut self, id: u64, end: usize) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.closed[end] = true;
        connection.pipes[end].finished = true;
        connection.wake();
        if connection.closed == [true, true] {
            self.connections.remove(&id);
        }
    }
}
