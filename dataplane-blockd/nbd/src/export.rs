//! Devices on offer, by name.

use crate::{device::BlockDevice, option::decode_name, wire::transmission};
use std::{
    collections::BTreeMap,
    sync::{Arc, RwLock},
};

/// A device on offer.
#[derive(Clone)]
pub struct Export {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// A line for humans.
    pub description: String,
}

impl Export {
    /// An export of a device.
    pub fn new(device: Arc<dyn BlockDevice>, description: impl Into<String>) -> Self {
        Self {
            device,
            description: description.into(),
        }
    }

    /// The transmission flags for a client that negotiates nothing ([`Server::adopt`](crate::Server::adopt)).
    pub fn plain_flags(&self) -> u16 {
        self.transmission_flags(false, false)
    }

    /// Flags by which a client learns what it may ask; chunks and extended requests as negotiated.
    pub(crate) fn transmission_flags(&self, chunks: bool, status_payload: bool) -> u16 {
        use transmission::{
            BLOCK_STATUS_PAYLOAD, CAN_MULTI_CONN, HAS_FLAGS, READ_ONLY, SEND_CACHE, SEND_DF, SEND_FAST_ZERO,
            SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES,
        };
        let mut flags =
            HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | SEND_CACHE | SEND_FAST_ZERO;
        for (condition, flag) in [
            (self.device.is_read_only(), READ_ONLY),
            (self.device.is_shared_safely(), CAN_MULTI_CONN),
            (chunks, SEND_DF),
            (status_payload, BLOCK_STATUS_PAYLOAD),
        ] {
            if condition {
                flags |= flag;
            }
        }
        flags
    }
}

/// All exports of a server; the empty name means the only one, or the one so named.
#[derive(Default)]
pub struct Exports {
    by_name: RwLock<BTreeMap<String, Export>>,
}

impl Exports {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Offers a device; connections to an earlier one of that name go on with it.
    ///
    /// # Panics
    /// If the protocol cannot carry the name.
    pub fn insert(&self, name: &str, export: Export) {
        assert!(
            decode_name(name.as_bytes()).is_ok(),
            "export names have at most 4096 bytes and no NUL"
        );
        self.by_name
            .write()
            .expect("no panic under this lock")
            .insert(name.to_owned(), export);
    }

    /// Offers it no more. Open connections go on.
    pub fn remove(&self, name: &str) -> Option<Export> {
        self.by_name
            .write()
            .expect("no panic under this lock")
            .remove(name)
    }

    /// The export that a client means by `name`, and its canonical name.
    pub fn find(&self, name: &str) -> Option<(String, Export)> {
        let by_name = self.by_name.read().expect("no panic under this lock");
        if let Some(export) = by_name.get(name) {
            return Some((name.to_owned(), export.clone()));
        }
        if name.is_empty() && by_name.len() == 1 {
            return by_name
                .first_key_value()
                .map(|(name, export)| (name.clone(), export.clone()));
        }
        None
    }

    /// Names and descriptions, in order.
    pub fn list(&self) -> Vec<(String, String)> {
        let by_name = self.by_name.read().expect("no panic under this lock");
        by_name
            .iter()
            .map(|(name, export)| (name.clone(), export.description.clone()))
            .collect()
    }
}
