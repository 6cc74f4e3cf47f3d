//! Sagas: work of several steps that cannot be one transaction, because something outside the table is part of it, because it is
//! larger than a transaction, or because it has to wait.
//!
//! The request itself commits the intent: the record in its passing state, the quota, the saga and its entry in the index of
//! open sagas, all in one transaction. From then on the saga is driven to an end, by whoever is alive:
//!
//! | work | steps | after refusal |
//! |---|---|---|
//! | disk: create | place: put all tracts ─► publish: ready | unplace: tracts, disk, name and quota gone |
//! | disk: grow | place: put more tracts ─► publish: ready, larger | unplace: ready, as before; quota given back |
//! | disk: delete | place: remove all tracts ─► publish: disk, name and quota gone | cannot be refused |
//! | volume: erase | erase: key rings, a batch a step ─► publish: erased; name and quota gone | cannot be refused |
//! | node: launch | launch: a machine ─► settle: until it joined ─► publish | unlaunch: door closed ─► terminate ─► remove |
//! | node: drain | drain ─► settle: until it is empty ─► terminate: its machine ─► remove: record, quota | undrain: serves as before |
//! | edge: remove | settle: until its last cloud session is over ─► publish: that it is cut off | cannot be refused |
//!
//! Each arrow is a conditional write of the saga's record, so a step is repeated after a crash but never skipped, and of two
//! drivers one loses without harm. What is repeated is idempotent ([`DiskPlacement`](crate::placement::DiskPlacement)); the
//! last step writes outcome, audit entry and the index in one transaction.

mod disks;
mod edges;
mod nodes;
mod volumes;

pub(crate) use disks::DiskWork;
pub(crate) use volumes::erase_overdue;

use crate::{
    app::App,
    context::TenantContext,
    pool::Waits,
    problem::{Code, Problem},
    secrets::{hex, unhex},
    store::{self, Change, Loaded, Record, TenantStore},
    types::Operation,
};
use firn_env::Env;
use firn_identity::{DiskId, EdgeId, NodeId, Principal, TenantId, UnixTime, VolumeId};
use firn_table::{Condition, ItemKey, Write};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What is done, to what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum Work {
    /// Something to a disk, on nodes.
    Disk {
        kind: DiskWork,
        disk: DiskId,
        size_bytes: u64,
        replicas: u8,
    },
    /// A deleted volume's key rings are removed for ever.
    EraseVolume { volume: VolumeId },
    /// An edge that is refused already loses the cloud: its last session is over at `cut_off`.
    RemoveEdge { edge: EdgeId, cut_off: UnixTime },
    /// A machine is started that becomes this node, until `deadline`.
    LaunchNode { node: NodeId, deadline: UnixTime },
    /// A node is emptied, its machine ended.
    DrainNode { node: NodeId },
}

impl Work {
    /// The step it begins with.
    fn first(&self) -> SagaStep {
        match self {
            Self::Disk { .. } => SagaStep::Place,
            Self::EraseVolume { .. } => SagaStep::Erase,
            Self::RemoveEdge { .. } => SagaStep::Settle,
            Self::LaunchNode { .. } => SagaStep::Launch,
            Self::DrainNode { .. } => SagaStep::Drain,
        }
    }

    fn action(&self) -> &'static str {
        match self {
            Self::Disk { kind, .. } => kind.action(),
            Self::EraseVolume { .. } => "volume.erase",
            Self::RemoveEdge { .. } => "edge.remove",
            Self::LaunchNode { .. } => "node.launch",
            Self::DrainNode { .. } => "node.drain",
        }
    }

    /// What the last entry of the audit log says.
    fn end(&self, step: SagaStep) -> &'static str {
        match (self, step) {
            (Self::Disk { .. }, SagaStep::Undone) => "disk.undone",
            (Self::Disk { .. }, _) => "disk.done",
            (Self::EraseVolume { .. }, _) => "volume.erased",
            (Self::RemoveEdge { .. }, _) => "edge.cut-off",
            (Self::LaunchNode { .. }, SagaStep::Undone) => "node.undone",
            (Self::LaunchNode { .. }, _) => "node.serves",
            (Self::DrainNode { .. }, SagaStep::Undone) => "node.stays",
            (Self::DrainNode { .. }, _) => "node.removed",
        }
    }

    fn target(&self) -> String {
        match self {
            Self::Disk { disk, .. } => disk.to_string(),
            Self::EraseVolume { volume } => volume.to_string(),
            Self::RemoveEdge { edge, .. } => edge.to_string(),
            Self::LaunchNode { node, .. } | Self::DrainNode { node } => node.to_string(),
        }
    }
}

/// Which step comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SagaStep {
    /// Of a disk.
    Place,
    /// Of a disk.
    Unplace,
    /// Of a volume.
    Erase,
    /// Of a node.
    Launch,
    /// Of a node.
    Unlaunch,
    /// Of a node.
    Drain,
    /// Of a node.
    Undrain,
    /// Of a node.
    Terminate,
    /// Of a node.
    Remove,
    /// Of an edge or a node: it waits.
    Settle,
    Publish,
    Done,
    Undone,
}

impl SagaStep {
    /// For people who wait.
    fn doing(self, work: &Work) -> &'static str {
        match (self, work) {
            (
                Self::Place,
                Work::Disk {
                    kind: DiskWork::Delete,
                    ..
                },
            ) => "removing its copies from nodes",
            (Self::Place, _) => "placing copies on nodes",
            (Self::Unplace, _) => "taking its copies back from nodes",
            (Self::Erase, _) => "removing its key rings",
            (Self::Launch, _) => "starting a machine",
            (Self::Unlaunch, _) => "closing the door to its machine",
            (Self::Drain, _) => "giving what it holds to other nodes",
            (Self::Undrain, _) => "letting it serve again",
            (Self::Terminate, _) => "ending its machine",
            (Self::Remove, _) => "removing it",
            (Self::Settle, Work::RemoveEdge { .. }) => {
                "waiting until its last cloud session is over, a quarter of an hour at most"
            }
            (Self::Settle, Work::LaunchNode { .. }) => "waiting until it joins",
            (Self::Settle, _) => "waiting until it is empty",
            (Self::Publish, _) => "finishing",
            (Self::Done, _) => "done",
            (Self::Undone, _) => "undone",
        }
    }
}

/// A saga's persisted log: what it is about, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SagaRecord {
    pub(crate) id: String,
    work: Work,
    step: SagaStep,
    steps_done: u32,
    failure: Option<String>,
    principal: Option<Principal>,
    /// Of a disk: the nodes it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waits: Option<Waits>,
}

impl Record for SagaRecord {
    const KIND: &'static str = "saga";
    /// Version 1 knew disks only: kind, disk, size and copies stood in the record itself.
    const VERSION: u16 = 2;

    fn upgrade(version: u16, mut record: Value) -> Option<Value> {
        if version != 1 {
            return None;
        }
        let fields = record.as_object_mut()?;
        let mut work = json!({ "what": "disk" });
        for name in ["kind", "disk", "size_bytes", "replicas"] {
            work[name] = fields.remove(name)?;
        }
        fields.insert("work".into(), work);
        Some(record)
    }
}

/// An entry of the index of open sagas.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OpenSaga {
    tenant: TenantId,
    id: String,
}

impl Record for OpenSaga {
    const KIND: &'static str = "open-saga";
}

const INDEX: &str = "open-sagas";

impl SagaRecord {
    /// A saga that has not begun.
    pub(crate) fn new(env: &Env, principal: Option<Principal>, work: Work) -> Self {
        Self {
            id: format!("op_{}", hex(&env.random_bytes::<16>())),
            step: work.first(),
            work,
            steps_done: 0,
            failure: None,
            principal,
            waits: None,
        }
    }

    pub(crate) fn sort(id: &str) -> String {
        format!("saga/{id}")
    }

    /// Whether a text has the form of an id.
    pub(crate) fn is_id(text: &str) -> bool {
        text.strip_prefix("op_")
            .is_some_and(|digits| unhex::<16>(digits).is_some())
    }

    /// Adds the saga and its index entry to the change that commits the intent.
    pub(crate) fn begin(&self, tenant: TenantId, change: Change) -> Change {
        let open = OpenSaga {
            tenant,
            id: self.id.clone(),
        };
        change
            .create(&Self::sort(&self.id), self)
            .create_outside(index_key(tenant, &self.id), &open)
    }

    pub(crate) fn show(&self) -> Operation {
        Operation {
            id: self.id.clone(),
            kind: self.work.action().to_owned(),
            target: self.work.target(),
            steps_done: self.steps_done,
            doing: self.step.doing(&self.work).to_owned(),
            state: match self.step {
                SagaStep::Done => "done",
                SagaStep::Undone => "undone",
                _ => "running",
            }
            .to_owned(),
            failure: self.failure.clone(),
        }
    }

    fn next(&self, step: SagaStep, failure: Option<String>) -> Self {
        Self {
            step,
            steps_done: self.steps_done + 1,
            failure: failure.or_else(|| self.failure.clone()),
            ..self.clone()
        }
    }
}

fn index_key(tenant: TenantId, id: &str) -> ItemKey {
    ItemKey::new(INDEX, format!("{tenant}/{id}"))
}

/// What a step came to.
enum Stepped {
    /// The next one is due.
    On,
    /// It is not time for it yet.
    NotYet,
}

/// One step of one saga: what it needs to know.
struct Step<'a> {
    app: &'a App,
    tenant: TenantId,
    store: &'a TenantStore,
    saga: &'a Loaded<SagaRecord>,
}

impl Step<'_> {
    /// Notes what comes next, and nothing else.
    async fn go_on(&self, step: SagaStep, failure: Option<String>) -> Result<Stepped, Problem> {
        self.go_on_with(step, failure, Vec::new()).await
    }

    /// The same, in one transaction with other writes.
    async fn go_on_with(
        &self,
        step: SagaStep,
        failure: Option<String>,
        mut writes: Vec<Write>,
    ) -> Result<Stepped, Problem> {
        writes.push(self.note(&self.saga.record.next(step, failure)));
        self.store.table().transact(writes).await?;
        Ok(Stepped::On)
    }

    fn note(&self, record: &SagaRecord) -> Write {
        Write::Put {
            key: self.saga.key.clone(),
            value: store::encode(record),
            condition: Condition::Version(self.saga.version),
        }
    }

    /// Notes what it waits for; the step is taken again.
    async fn wait(&self, waits: Waits) -> Result<Stepped, Problem> {
        if self.saga.record.waits.as_ref() != Some(&waits) {
            let record = SagaRecord {
                waits: Some(waits),
                ..self.saga.record.clone()
            };
            self.store.table().transact(vec![self.note(&record)]).await?;
        }
        Ok(Stepped::NotYet)
    }

    /// Begins the change that ends the saga and takes it out of the index.
    async fn ended(&self, step: SagaStep) -> Result<Change, Problem> {
        let record = &self.saga.record;
        let open = store::load::<OpenSaga>(self.store.table(), &index_key(self.tenant, &record.id))
            .await?
            .ok_or_else(|| Problem::new(Code::ChangedMeanwhile, "another driver ended it"))?;
        let work = &record.work;
        Ok(
            Change::new(self.store, record.principal, work.end(step), work.target())
                .detail(work.action())
                .update(self.saga, &record.next(step, None))
                .delete(&open),
        )
    }

    async fn commit(&self, change: Change) -> Result<Stepped, Problem> {
        change.commit(self.app.env(), None).await?;
        Ok(Stepped::On)
    }

    async fn take(&self) -> Result<Stepped, Problem> {
        match &self.saga.record.work {
            Work::Disk {
                kind,
                disk,
                size_bytes,
                replicas,
            } => disks::step(self, *kind, *disk, *size_bytes, *replicas).await,
            Work::EraseVolume { volume } => volumes::step(self, *volume).await,
            Work::RemoveEdge { edge, cut_off } => edges::step(self, *edge, *cut_off).await,
            Work::LaunchNode { node, deadline } => nodes::launch(self, *node, *deadline).await,
            Work::DrainNode { node } => nodes::drain(self, *node).await,
        }
    }

    /// A record that says what no build writes.
    fn impossible(&self) -> Problem {
        Problem::internal(format!(
            "saga {} has a step that is not its own",
            self.saga.record.id
        ))
    }
}

/// Drives every open saga as far as it goes; returns how many are still open.
///
/// # Errors
/// If the index cannot be read. A saga that cannot go on now is logged and left open.
pub async fn drive_all(app: &App) -> Result<usize, Problem> {
    let mut open = 0;
    let mut after = None;
    loop {
        let page = app.table().query(INDEX, "", after.as_deref(), 100).await?;
        for item in &page.items {
            let entry: OpenSaga = store::decode(item)?;
            match drive(app, entry.tenant, &entry.id).await {
                Ok(Stepped::On) => {}
                Ok(Stepped::NotYet) => open += 1,
                Err(problem) => {
                    tracing::warn!(saga = entry.id, %problem, "a saga waits for its next try");
                    open += 1;
                }
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(open),
        }
    }
}

/// Drives one saga to its end, or to where it has to wait.
async fn drive(app: &App, tenant: TenantId, id: &str) -> Result<Stepped, Problem> {
    let store = TenantStore::of(app.table(), &TenantContext::for_service(tenant));
    // A volume's key rings, thousands at most, in batches; else four steps. Each may be lost to another driver a few times.
    for _ in 0..1024 {
        let saga = store.require::<SagaRecord>(&SagaRecord::sort(id), id).await?;
        if matches!(saga.record.step, SagaStep::Done | SagaStep::Undone) {
            return Ok(Stepped::On);
        }
        app.env().fault_point("saga.before_step").await;
        let step = Step {
            app,
            tenant,
            store: &store,
            saga: &saga,
        };
        match step.take().await {
            // Another driver was faster, or another change of the tenant came between: look again.
            Err(problem) if problem.code == Code::ChangedMeanwhile => {}
            Ok(Stepped::On) => {}
            Ok(Stepped::NotYet) => return Ok(Stepped::NotYet),
            Err(problem) => return Err(problem),
        }
    }
    Err(Problem::internal(format!("saga {id} does not come to an end")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use firn_table::{Item, ItemVersion};

    #[test]
    fn a_saga_of_the_version_before_goes_on_where_it_was() {
        let (disk, owner) = (DiskId([7; 16]), "mem_00000000000000000000000000000001");
        let text = format!(
            r#"{{"version":1,"kind":"saga","record":{{"id":"op_1","kind":{{"grow":{{"from_bytes":8}}}},"disk":"{disk}",
               "size_bytes":16,"replicas":3,"step":"publish","steps_done":1,"failure":null,"principal":"{owner}"}}}}"#
        );
        let read: SagaRecord = store::decode(&Item {
            key: ItemKey::new("p", "s"),
            version: ItemVersion(1),
            value: Bytes::from(text),
        })
        .unwrap();
        let work = Work::Disk {
            kind: DiskWork::Grow { from_bytes: 8 },
            disk,
            size_bytes: 16,
            replicas: 3,
        };
        assert_eq!(
            (read.work, read.step, read.steps_done),
            (work, SagaStep::Publish, 1)
        );
        assert_eq!(read.principal.unwrap().to_string(), owner);
    }
}
