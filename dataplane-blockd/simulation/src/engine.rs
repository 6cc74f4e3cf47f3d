//! Either engine, with contents that are numbers: each write writes a number of its own, and 0 is zeroes.

use crate::replicas::World;
use firn_blockd_disk::{
    AttachError, Body, Effect, FlushPolicy, Incarnation, LogConfig, LogEngine, Lookup, Replicas, RequestId,
    StripedConfig, StripedEngine, Ticket, WritePolicy, log, striped,
};

/// Physical blocks of a log's tract: few enough that a log of a dozen blocks has tracts to choose from, and one that is cut short.
const TRACT_BLOCKS: u64 = 5;

/// How a disk is attached.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    /// In place.
    Striped(StripedConfig),
    /// As a log, with so many virtual and physical blocks at first.
    Log(LogConfig, u64, u64),
}

impl Mode {
    /// Whether a flush answers only when all before it is durable.
    pub fn flushes_durably(&self) -> bool {
        match self {
            Self::Striped(config) => config.flush == FlushPolicy::Durable,
            Self::Log(config, ..) => config.flush == FlushPolicy::Durable,
        }
    }

    /// Whether a write answers only when durable.
    pub fn writes_through(&self) -> bool {
        matches!(self, Self::Striped(config) if config.write == WritePolicy::Durable)
    }

    /// Its name on the command line.
    pub fn name(&self) -> &'static str {
        match (self, self.flushes_durably()) {
            (Self::Striped(_), true) if self.writes_through() => "write-through",
            (Self::Striped(_), true) => "write-back",
            (Self::Striped(_), false) => "flush-epoch ordered",
            (Self::Log(..), true) => "log durable",
            (Self::Log(..), false) => "log ordered",
        }
    }

    /// Makes a new disk.
    pub async fn format(&self, replicas: &dyn Replicas, incarnation: Incarnation) -> Result<(), AttachError> {
        match self {
            Self::Striped(_) => Ok(()),
            Self::Log(_, blocks, physical) => {
                log::format(replicas, incarnation, *blocks, *physical, TRACT_BLOCKS).await
            }
        }
    }

    /// Attaches it.
    pub async fn attach(
        &self,
        replicas: &dyn Replicas,
        incarnation: Incarnation,
    ) -> Result<Engine, AttachError> {
        Ok(match self {
            Self::Striped(config) => Engine::Striped(Box::new(
                striped::attach(replicas, incarnation, *config).await?.engine,
            )),
            Self::Log(config, ..) => {
                Engine::Log(Box::new(log::recover(replicas, incarnation, *config).await?))
            }
        })
    }
}

/// An attached disk.
#[derive(Clone, Debug, Hash)]
pub enum Engine {
    /// In place.
    Striped(Box<StripedEngine>),
    /// As a log.
    Log(Box<LogEngine>),
}

/// The number of a content.
pub fn number(body: &Body) -> Option<u64> {
    match body {
        Body::Zero => Some(0),
        Body::Data(data) => Some(u64::from_le_bytes(data.as_ref().try_into().ok()?)),
    }
}

impl Engine {
    /// Blocks of the disk.
    pub fn blocks(&self) -> u64 {
        match self {
            Self::Striped(engine) => engine.blocks(),
            Self::Log(engine) => engine.blocks(),
        }
    }

    /// The attach it works for.
    pub fn incarnation(&self) -> Incarnation {
        match self {
            Self::Striped(engine) => engine.incarnation(),
            Self::Log(engine) => engine.incarnation(),
        }
    }

    /// Writes numbers.
    pub fn write(
        &mut self,
        now_ms: u64,
        request: RequestId,
        first: u64,
        numbers: &[u64],
        durable: bool,
    ) -> Vec<Effect> {
        let blocks = first..first + numbers.len() as u64;
        let data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        match self {
            Self::Striped(engine) => engine.write(now_ms, request, blocks, data, durable),
            Self::Log(engine) => engine.write(now_ms, request, blocks, data, durable),
        }
    }

    /// Zeroes blocks.
    pub fn zero(
        &mut self,
        now_ms: u64,
        request: RequestId,
        first: u64,
        count: u64,
        durable: bool,
    ) -> Vec<Effect> {
        match self {
            Self::Striped(engine) => engine.zero(now_ms, request, first..first + count, durable),
            Self::Log(engine) => engine.zero(now_ms, request, first..first + count, durable),
        }
    }

    /// Flushes.
    pub fn flush(&mut self, now_ms: u64, request: RequestId) -> Vec<Effect> {
        match self {
            Self::Striped(engine) => engine.flush(now_ms, request),
            Self::Log(engine) => engine.flush(now_ms, request),
        }
    }

    /// Grows by some blocks.
    pub fn grow(&mut self, now_ms: u64, blocks: u64, physical_more: u64) -> Vec<Effect> {
        match self {
            Self::Striped(engine) => {
                engine.grow(engine.blocks() + blocks);
                Vec::new()
            }
            Self::Log(engine) if engine.is_growing() => Vec::new(),
            Self::Log(engine) => {
                let virtual_blocks = engine.blocks() + blocks;
                let physical = engine.physical_blocks() + blocks + physical_more;
                engine.grow(now_ms, virtual_blocks, physical)
            }
        }
    }

    /// A store is durable.
    pub fn stored(&mut self, now_ms: u64, ticket: Ticket, replica: usize) -> Vec<Effect> {
        match self {
            Self::Striped(engine) => engine.stored(now_ms, ticket, replica),
            Self::Log(engine) => engine.stored(now_ms, ticket, replica),
        }
    }

    /// Reads a block as a user would. Every valid replica of what is idle must say the same.
    ///
    /// # Errors
    /// If nobody has it, or replicas differ.
    pub fn read(&self, world: &World, block: u64) -> Result<u64, String> {
        let lookup = match self {
            Self::Striped(engine) => engine.lookup(block),
            Self::Log(engine) => engine.lookup(block),
        };
        let (unit, version) = match lookup {
            Lookup::Memory(body) => {
                return number(&body).ok_or_else(|| format!("block {block}: foreign content"));
            }
            Lookup::Stored { unit, version } => (unit, version),
        };
        let valid = (0..world.replicas()).filter_map(|replica| world.load(replica, unit));
        let mut found: Vec<_> = match version {
            Some(version) => valid.filter(|stored| stored.version == version).collect(),
            None => valid.collect(),
        };
        found.dedup();
        let content = match (found.as_slice(), version) {
            ([], None) => return Ok(0),
            ([], Some(_)) => return Err(format!("block {block}: no replica has {unit:?} as {version:?}")),
            ([one], _) => one.body.clone(),
            (several, _) => return Err(format!("block {block}: replicas differ: {several:?}")),
        };
        match self {
            Self::Striped(_) => number(&content),
            Self::Log(_) => match log::Record::decode(&content) {
                Some(log::Record::Data { block: of, data }) if of == block => number(&Body::Data(data)),
                _ => None,
            },
        }
        .ok_or_else(|| format!("block {block}: {unit:?} holds something else"))
    }
}
