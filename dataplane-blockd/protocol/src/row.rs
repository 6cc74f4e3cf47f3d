//! A row of the tract locator table.

use crate::{
    NodeId, Replication, RowIndex, RowVersion,
    cursor::{DecodeError, Decoder, Encoder},
    limits::MAX_REPLICAS,
};
use bytes::Bytes;

/// What a replica of a row may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicaState {
    /// It has every write that was acknowledged: it serves reads and takes writes.
    Active,
    /// It takes writes, and they count only when it acknowledged them too, but it serves no reads until it has copied what
    /// was written before it joined.
    Joining,
}

/// One node's part in a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Replica {
    /// The node.
    pub node: NodeId,
    /// What it may do.
    pub state: ReplicaState,
    /// The version of the row with which it joined, without a break since. What a node holds from an earlier membership may
    /// contain writes that were never acknowledged and are long given up, so it is thrown away when the node joins again.
    pub since: RowVersion,
    /// Where it listens, `host:port`.
    pub address: String,
}

/// The replicas of a row at one version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    /// Which table.
    pub replication: Replication,
    /// Its place in the table.
    pub index: RowIndex,
    /// Counts its changes.
    pub version: RowVersion,
    /// At least one is active.
    pub replicas: Vec<Replica>,
}

impl Row {
    /// The part of `node` in it.
    pub fn replica(&self, node: NodeId) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.node == node)
    }

    /// The replicas that serve reads.
    pub fn active(&self) -> impl Iterator<Item = &Replica> {
        self.replicas
            .iter()
            .filter(|replica| replica.state == ReplicaState::Active)
    }

    /// Its bytes, as they stand in messages and in the Table.
    pub fn to_bytes(&self) -> Bytes {
        let mut encoder = Encoder::default();
        self.encode(&mut encoder);
        encoder.finish()
    }

    /// Reads what [`Row::to_bytes`] wrote.
    ///
    /// # Errors
    /// If these bytes are no row.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(bytes);
        let row = Self::decode(&mut decoder)?;
        decoder.end()?;
        Ok(row)
    }

    pub(crate) fn encode(&self, encoder: &mut Encoder) {
        encoder.u8(u8::try_from(self.replication.copies()).expect("at most three"));
        encoder.u32(self.index.0);
        encoder.u64(self.version.0);
        encoder.count(self.replicas.len(), MAX_REPLICAS);
        for replica in &self.replicas {
            encoder.node(replica.node);
            encoder.u8(match replica.state {
                ReplicaState::Active => 1,
                ReplicaState::Joining => 2,
            });
            encoder.u64(replica.since.0);
            encoder.text(&replica.address, MAX_ADDRESS_BYTES);
        }
    }

    pub(crate) fn decode(decoder: &mut Decoder) -> Result<Self, DecodeError> {
        let replication = decoder.replication()?;
        let index = RowIndex(decoder.u32()?);
        let version = RowVersion(decoder.u64()?);
        let count = decoder.count("replicas", MAX_REPLICAS)?;
        let replicas = (0..count)
            .map(|_| {
                Ok(Replica {
                    node: decoder.node()?,
                    state: match decoder.u8()? {
                        1 => ReplicaState::Active,
                        2 => ReplicaState::Joining,
                        value => {
                            return Err(DecodeError::Invalid {
                                field: "replica state",
                                value: value.into(),
                            });
                        }
                    },
                    since: RowVersion(decoder.u64()?),
                    address: decoder.text("address", MAX_ADDRESS_BYTES)?,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            replication,
            index,
            version,
            replicas,
        })
    }
}

/// The longest DNS name, a colon and a port.
const MAX_ADDRESS_BYTES: usize = 260;
