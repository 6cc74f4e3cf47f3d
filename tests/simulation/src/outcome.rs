//! Answers of calls in a form in which the engine's and the model's can be compared.
//!
//! Inode numbers are each side's own: [`Pairing`] learns which belong together and insists that it stays so. Not compared
//! are access times (kept lazily), used bytes (an upper bound), change counters, sizes of directories and cookies (each
//! side's own).

use bytes::Bytes;
use firn_vfs::{
    Attributes, ChangedAttributes, Created, FileHandle, FileKind, Stability, Timestamp, VfsError,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a call answered.
pub type Outcome = Result<Reply, VfsError>;

/// The parts of an answer, whichever call it was of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The file found or made.
    pub handle: Option<FileHandle>,
    /// How durable written data is.
    pub stability: Option<Stability>,
    /// Attributes in the answer, in the order of the call's result.
    pub attributes: Vec<Attributes>,
    /// Bytes read.
    pub bytes: Bytes,
    /// Anything else.
    pub text: String,
    /// Names listed.
    pub entries: Vec<(Bytes, FileHandle)>,
}

impl Reply {
    pub(crate) fn created(created: Created) -> Self {
        Self::default()
            .handle(created.handle)
            .attributes(created.attributes)
            .changed(created.directory)
    }

    pub(crate) fn handle(mut self, handle: FileHandle) -> Self {
        self.handle = Some(handle);
        self
    }

    pub(crate) fn stable(mut self, stability: Stability) -> Self {
        self.stability = Some(stability);
        self
    }

    pub(crate) fn attributes(mut self, attributes: Attributes) -> Self {
        self.attributes.push(attributes);
        self
    }

    pub(crate) fn changed(mut self, changed: ChangedAttributes) -> Self {
        self.attributes.extend(changed.before);
        self.attributes.push(changed.after);
        self
    }

    pub(crate) fn bytes(mut self, bytes: Bytes) -> Self {
        self.bytes = bytes;
        self
    }

    pub(crate) fn text(mut self, text: String) -> Self {
        self.text = text;
        self
    }

    pub(crate) fn entries(mut self, mut entries: Vec<(Bytes, FileHandle)>) -> Self {
        entries.sort();
        self.entries = entries;
        self
    }
}

/// Which inode of the engine is which of the model.
#[derive(Clone, Debug, Default)]
pub struct Pairing {
    to_model: BTreeMap<u64, u64>,
    to_engine: BTreeMap<u64, u64>,
    /// Inodes that clients saw, but that a crash undid before they were acknowledged.
    lost: BTreeSet<u64>,
}

impl Pairing {
    /// Pairs two files, or says why they cannot be the same.
    ///
    /// # Errors
    /// In words.
    pub fn pair(&mut self, engine: u64, model: u64) -> Result<(), String> {
        if self.lost.contains(&engine) {
            return Err(format!(
                "inode {engine} was shown to a client, undone by a crash, and given to another file"
            ));
        }
        let known = self.to_model.get(&engine).copied();
        let known_back = self.to_engine.get(&model).copied();
        match (known, known_back) {
            (None, None) => {
                self.to_model.insert(engine, model);
                self.to_engine.insert(model, engine);
                Ok(())
            }
            (Some(there), Some(_)) if there == model => Ok(()),
            _ => Err(format!(
                "inode {engine} (known as {known:?}) where the model has {model} (known as {known_back:?})"
            )),
        }
    }

    /// The model's inode for one of the engine's.
    pub fn model(&self, engine: u64) -> Option<u64> {
        self.to_model.get(&engine).copied()
    }

    /// All inodes of the engine that are known.
    pub fn engine_inodes(&self) -> Vec<u64> {
        self.to_model.keys().copied().collect()
    }

    /// After a crash: keeps what exists in the recovered model, and remembers the rest as lost.
    pub fn keep(&mut self, exists: impl Fn(u64) -> bool, was_removed: impl Fn(u64) -> bool) {
        let (kept, gone): (BTreeMap<u64, u64>, BTreeMap<u64, u64>) =
            self.to_model.iter().partition(|(_, model)| exists(**model));
        for (engine, model) in gone {
            self.to_engine.remove(&model);
            if !was_removed(model) {
                self.lost.insert(engine);
            }
        }
        self.to_model = kept;
    }
}

/// Whether the engine's answer is the model's; learns pairs of inodes on the way.
///
/// # Errors
/// Where they differ, in words.
pub fn same(engine: &Outcome, model: &Outcome, pairing: &mut Pairing) -> Result<(), String> {
    let (engine, model) = match (engine, model) {
        (Ok(engine), Ok(model)) => (engine, model),
        (Err(engine), Err(model)) if engine == model => return Ok(()),
        (engine, model) => {
            return Err(format!("answered {}, expected {}", short(engine), short(model)));
        }
    };
    let mut learned = pairing.clone();
    match (engine.handle, model.handle) {
        (None, None) => {}
        (Some(engine), Some(model)) => learned.pair(engine.inode, model.inode)?,
        _ => return Err("a handle on one side only".into()),
    }
    if engine.stability < model.stability {
        return Err(format!(
            "written {:?}, asked for {:?}",
            engine.stability, model.stability
        ));
    }
    if engine.text != model.text {
        return Err(format!("{} instead of {}", engine.text, model.text));
    }
    if engine.bytes != model.bytes {
        return Err(different_bytes(&engine.bytes, &model.bytes));
    }
    if engine.attributes.len() != model.attributes.len() {
        return Err("other attributes than asked for".into());
    }
    for (engine, model) in engine.attributes.iter().zip(&model.attributes) {
        same_attributes(engine, model, &mut learned)?;
    }
    if engine.entries.len() != model.entries.len() {
        return Err(format!(
            "{} entries instead of {}",
            engine.entries.len(),
            model.entries.len()
        ));
    }
    for ((engine_name, engine), (model_name, model)) in engine.entries.iter().zip(&model.entries) {
        if engine_name != model_name {
            return Err(format!("entry {engine_name:?} instead of {model_name:?}"));
        }
        learned.pair(engine.inode, model.inode)?;
    }
    *pairing = learned;
    Ok(())
}

fn different_bytes(engine: &Bytes, model: &Bytes) -> String {
    let at = engine.iter().zip(model).position(|(one, other)| one != other);
    format!(
        "{} bytes instead of {}, first different at {at:?}: {:?} instead of {:?}",
        engine.len(),
        model.len(),
        at.map(|at| engine[at]),
        at.map(|at| model[at])
    )
}

/// An outcome without its bytes.
pub fn short(outcome: &Outcome) -> String {
    match outcome {
        Err(error) => format!("error {error:?}"),
        Ok(reply) => format!("{:?} {} bytes {}", reply.handle, reply.bytes.len(), reply.text),
    }
}

/// A change counts once or twice in its change time, which rises by a nanosecond each time; the clock says the rest.
pub(crate) fn near(one: Timestamp, other: Timestamp) -> bool {
    let nanos = |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    nanos(one).abs_diff(nanos(other)) < 1000
}

fn same_attributes(engine: &Attributes, model: &Attributes, pairing: &mut Pairing) -> Result<(), String> {
    pairing.pair(engine.inode, model.inode)?;
    if !near(engine.changed, model.changed) {
        return Err(format!(
            "changed at {:?} instead of {:?}",
            engine.changed, model.changed
        ));
    }
    let comparable = |attributes: &Attributes| Attributes {
        changed: attributes.born,
        change: 0,
        inode: 0,
        file_system: 0,
        used_bytes: 0,
        accessed: attributes.modified,
        size_bytes: match attributes.kind {
            FileKind::Directory => 0,
            _ => attributes.size_bytes,
        },
        ..attributes.clone()
    };
    let (engine, model) = (comparable(engine), comparable(model));
    if engine == model {
        return Ok(());
    }
    Err(format!("attributes {engine:?} instead of {model:?}"))
}
