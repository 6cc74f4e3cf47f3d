//! The system under test, as a history needs it, whichever it is.

use crate::{operation::Operation, outcome::Outcome};
use async_trait::async_trait;
use firn_env::sim::Machine;
use firn_vfs::{Caller, MemoryOptions, Vfs};
use std::{collections::BTreeMap, sync::Arc};

/// A whole installation: machines, and the cloud they share.
#[async_trait]
pub trait System: Send + Sync {
    /// The machine of an edge; there are [`System::edges`].
    fn edge(&self, edge: usize) -> Machine;
    /// How many machines can serve.
    fn edges(&self) -> usize;
    /// A machine on which clones are looked at.
    fn clone_reader(&self) -> usize {
        self.edges()
    }
    /// How the model must be set up to be like it.
    fn model_options(&self) -> MemoryOptions;
    /// Makes the empty file system. Runs on the edge's machine.
    async fn format(&self, edge: usize) -> Result<(), StartError>;
    /// Starts to serve a branch. Runs on the edge's machine.
    async fn start(&self, edge: usize, branch: Branch) -> Result<Arc<dyn Running>, StartError>;
    /// Whether it can start without the cloud.
    fn can_detach(&self) -> bool {
        false
    }
    /// Starts to serve without the cloud, from what the machine has. Runs on the edge's machine.
    async fn start_detached(&self, _edge: usize) -> Result<Arc<dyn Running>, StartError> {
        Err(StartError::Later("it needs the cloud".into()))
    }
    /// Takes the file system away from whoever has it.
    async fn takeover(&self, edge: usize) -> Result<(), StartError>;
    /// Saves what a fenced edge has in its journal, into a clone.
    async fn salvage(&self, edge: usize) -> Result<Option<Branch>, StartError>;
    /// Sets what goes wrong between an edge and the cloud.
    fn set_weather(&self, edge: usize, weather: Weather);
    /// Whether answered requests are recognised again after a restart.
    fn remembers_requests(&self) -> bool {
        true
    }
    /// Requests made to the cloud so far.
    fn requests(&self) -> u64;
    /// Removes the cache of a machine that is down, or flips bits in it.
    fn spoil_cache(&self, edge: usize, wipe: bool);
    /// Places at which the system can be stopped.
    fn fault_points(&self) -> &'static [&'static str];
    /// Bytes that one call may write or set.
    fn largest_write(&self) -> u64;
    /// The name of the observation that the system makes when it applies a change.
    fn applied_observation(&self) -> &'static str;
    /// Whether it has snapshots.
    fn has_snapshots(&self) -> bool {
        false
    }
    /// Stops whoever cleans the bucket, or lets them go on.
    fn pause_cleaners(&self, _paused: bool) {}
    /// What is wrong with the manifests of segments while nobody serves and nobody cleans.
    async fn check_manifests(&self) -> Vec<String> {
        Vec::new()
    }
    /// Deletes what no manifest says must exist, and tells how much that was.
    async fn delete_unlisted(&self) -> Result<u64, String> {
        Ok(0)
    }
    /// What cleaners did, and what they found wrong, since the last call.
    fn take_cleaners_findings(&self) -> (BTreeMap<&'static str, u64>, Vec<String>) {
        Default::default()
    }
}

/// Which of the file systems of the installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch(pub [u8; 16]);

impl Branch {
    /// The one that was formatted.
    pub const HEAD: Self = Self([0; 16]);
}

/// A file system that serves.
#[async_trait]
pub trait Running: Send + Sync {
    /// Its door.
    fn vfs(&self) -> Arc<dyn Vfs>;
    /// Makes a call.
    async fn perform(&self, caller: &Caller, operation: &Operation) -> Outcome {
        operation.make(&*self.vfs(), caller).await
    }
    /// Changes at every start that may have lost unstable writes.
    fn write_verifier(&self) -> [u8; 8] {
        self.vfs().write_verifier()
    }
    /// Waits until everything is in the cloud.
    async fn sync(&self) -> Result<(), String>;
    /// An orderly stop: nothing is lost.
    async fn stop(&self) -> Result<(), String>;
    /// An orderly stop after which another edge may start.
    async fn drain(&self) -> Result<(), String>;
    /// Keeps the present state under a name; returns the snapshot's number once it is in the cloud.
    async fn create_snapshot(&self, _name: &str, _protected_until_ms: i64) -> Result<u64, SnapshotRefusal> {
        Err(SnapshotRefusal::Trouble("there are no snapshots here".into()))
    }
    /// Stops keeping a state.
    async fn delete_snapshot(&self, _name: &str) -> Result<(), SnapshotRefusal> {
        Err(SnapshotRefusal::Trouble("there are no snapshots here".into()))
    }
    /// The snapshots that are committed: number, name, protected until (ms since 1970).
    fn snapshots(&self) -> Vec<(u64, String, i64)> {
        Vec::new()
    }
    /// A snapshot, to be read.
    fn snapshot(&self, _name: &str) -> Option<Arc<dyn Vfs>> {
        None
    }
    /// Makes a writable file system of a snapshot.
    async fn clone_snapshot(&self, _snapshot: &str, _name: &str) -> Result<Branch, SnapshotRefusal> {
        Err(SnapshotRefusal::Trouble("there are no clones here".into()))
    }
    /// Copies what a snapshot has at a path to another path, making all changes through `live`.
    async fn restore(
        &self,
        _live: &dyn Vfs,
        _snapshot: &str,
        _from: &[u8],
        _to: &[u8],
    ) -> Result<(), SnapshotRefusal> {
        Err(SnapshotRefusal::Trouble("there are no restores here".into()))
    }
    /// Takes a newer key if there is one, makes one first if `rotates`, and seals what is under older ones anew.
    async fn rekey(&self, _rotates: bool, _bytes_per_second: u64) -> Result<(), String> {
        Err("there are no keys here".into())
    }
    /// Rekeys to the end; what is wrong with the volume's word on its keys, in words.
    async fn finish_rekey(&self) -> Vec<String> {
        Vec::new()
    }
    /// Begins to gather a manifest if the volume is one of today and has none; whether it did.
    async fn begin_manifest(&self) -> Result<bool, String> {
        Err("there are no manifests here".into())
    }
    /// Gathers it to the end, if one was begun; what is wrong with that, in words.
    async fn finish_manifest(&self) -> Vec<String> {
        Vec::new()
    }
    /// What is wrong with what is stored, in words; empty if nothing.
    async fn verify(&self) -> Vec<String>;
    /// Whether another owner shut it out.
    fn is_fenced(&self) -> bool;
    /// Whether it was started without the cloud.
    fn is_detached(&self) -> bool {
        false
    }
}

/// Why something was not done with a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRefusal {
    /// It may not be deleted yet.
    Protected,
    /// Not now, or no more: the cloud, or the edge, is in trouble.
    Trouble(String),
    /// Something is wrong.
    Broken(String),
}

/// Why it does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartError {
    /// Not now: the cloud or the disk is in trouble.
    Later(String),
    /// Another edge has it.
    Owned(String),
    /// This edge was fenced with a journal that must be saved first.
    SalvageFirst,
    /// Never: something is wrong.
    Broken(String),
}

/// What goes wrong between an edge and the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Weather {
    /// Nothing.
    #[default]
    Fair,
    /// Requests are slow, some fail, replies get lost, objects come late.
    Rough,
    /// The object store does not answer.
    NoStore,
    /// The table does not answer.
    NoTable,
    /// Neither does.
    CutOff,
}
