//! The volumes of this edge while it runs: how each stands, and the way from its exports to it.
//!
//! | state | event | next |
//! |---|---|---|
//! | opening | it is open, with the cloud or without | open: its exports are served |
//! | opening | it cannot be opened, and may be later | opening, tried again with backoff (only beside others) |
//! | open | another edge took it over; it was drained; its journal failed | ended |
//! | open | the cloud is back | opening |
//! | any | it cannot be served before somebody does something | ended |
//!
//! An edge with one volume ends with it. One with several goes on while one of them is left, and the exports of the others are answered "try
//! again later".

use crate::{
    admin::Admin,
    config::{Config, EdgeConfig},
    nfs::NfsServer,
    reporting::Reporters,
    smb::{SmbPart, SmbSection},
    snapshot::VolumeState,
};
use firn_access_log::AccessLog;
use firn_env::Env;
use firn_nfs::{Export, HandleKey};
use firn_vfs::Vfs;
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// How long the calls under way may take before the volume under them is stopped all the same.
const CALLS_END_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at them.
const CALLS_LOOK: Duration = Duration::from_millis(10);

/// See the module.
pub struct Volumes {
    pub env: Env,
    pub nfs: Arc<NfsServer>,
    pub reporters: Arc<Reporters>,
    /// If anything is logged.
    pub access_log: Option<AccessLog>,
    /// Whether they are named wherever they are shown.
    pub has_names: bool,
    entries: Vec<Entry>,
}

struct Entry {
    name: String,
    config: Config,
    exports: Vec<Arc<Export>>,
    state: Mutex<State>,
}

/// See the module.
#[derive(Clone)]
enum State {
    /// Why it could not be opened the last time.
    Opening(Option<String>),
    Open(Arc<Admin>),
    /// Why.
    Ended(String),
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn shown(&self) -> VolumeState {
        let state = self.state().clone();
        let (state, reason, snapshot) = match state {
            State::Opening(why) => ("opening".to_owned(), why, None),
            State::Ended(why) => ("ended".to_owned(), Some(why), None),
            State::Open(admin) => {
                let snapshot = admin.observed.snapshot();
                let volume = &snapshot.volume;
                (
                    volume.state.clone(),
                    volume.reason.clone(),
                    Some(Box::new(snapshot)),
                )
            }
        };
        VolumeState {
            name: self.name.clone(),
            state,
            reason,
            snapshot,
        }
    }
}

impl Volumes {
    /// The volumes of `edge`, none of them open.
    pub fn new(env: &Env, edge: &EdgeConfig, nfs: Arc<NfsServer>, access_log: Option<AccessLog>) -> Self {
        let entries = edge.volumes.iter().map(|config| Entry {
            name: config.volume.name.clone(),
            config: config.clone(),
            exports: nfs.exports_of(&config.exports),
            state: Mutex::new(State::Opening(None)),
        });
        Self {
            env: env.clone(),
            reporters: Arc::default(),
            access_log,
            has_names: edge.has_names(),
            entries: entries.collect(),
            nfs,
        }
    }

    /// Serves the exports of the volume number `at` from now on.
    pub fn publish(&self, at: usize, vfs: &Arc<dyn Vfs>, key: &HandleKey, admin: Arc<Admin>) {
        let entry = &self.entries[at];
        *entry.state() = State::Open(admin);
        self.nfs.ask(|service| service.recover(&**vfs));
        for export in &entry.exports {
            export.serve(vfs.clone(), key.clone());
        }
    }

    /// Serves them no more, and waits until the calls under way are answered. Of `vfs` nobody but the exports has a copy.
    pub async fn withdraw(&self, at: usize, vfs: Arc<dyn Vfs>) {
        let entry = &self.entries[at];
        for export in &entry.exports {
            export.withdraw();
        }
        let end = self.env.now().after(CALLS_END_WITHIN);
        while Arc::strong_count(&vfs) > 1 && self.env.now() < end {
            self.env.sleep(CALLS_LOOK).await;
        }
    }

    /// It is opened, once more if `why` says why that failed.
    pub fn opening(&self, at: usize, why: Option<String>) {
        *self.entries[at].state() = State::Opening(why);
    }

    /// It is served no more.
    pub fn ended(&self, at: usize, why: String) {
        *self.entries[at].state() = State::Ended(why);
    }

    /// How all stand.
    pub fn shown(&self) -> Vec<VolumeState> {
        self.entries.iter().map(Entry::shown).collect()
    }

    /// The configuration of the volume that is shared over SMB, if one is.
    pub fn sharing(&self) -> Option<(&Config, &SmbSection)> {
        let mut configs = self.entries.iter().map(|entry| &entry.config);
        configs.find_map(|config| Some((config, config.smb.as_ref()?)))
    }

    /// SMB at this moment; none if no volume that is shared is open.
    pub fn smb_part(&self) -> Option<SmbPart> {
        let sharing = self.entries.iter().find(|entry| entry.config.smb.is_some())?;
        let state = sharing.state().clone();
        match state {
            State::Open(admin) => admin.observed.smb(),
            State::Opening(_) | State::Ended(_) => None,
        }
    }

    /// The administration of the volume of this name; the only one needs none.
    ///
    /// # Errors
    /// For people, if there is none, or it is not open.
    pub fn admin(&self, name: Option<&str>) -> Result<Arc<Admin>, String> {
        let entry = match (name, &self.entries[..]) {
            (None, [only]) => only,
            (None, _) => {
                return Err(format!(
                    "this edge serves several volumes ({}): name one with --volume. Nothing was changed",
                    self.names()
                ));
            }
            (Some(name), entries) => entries.iter().find(|entry| entry.name == name).ok_or_else(|| {
                format!(
                    "this edge has no volume {name}, but {}. Nothing was changed",
                    self.names()
                )
            })?,
        };
        let name = &entry.name;
        match &*entry.state() {
            State::Open(admin) => Ok(admin.clone()),
            State::Opening(None) => Err(format!(
                "the volume {name} is being opened; ask again in a moment"
            )),
            State::Opening(Some(why)) => Err(format!(
                "the volume {name} is not served, and opened again and again: {why}. Nothing was changed"
            )),
            State::Ended(why) => Err(format!(
                "the volume {name} is served no more: {why}. Nothing was changed"
            )),
        }
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
        names.join(", ")
    }
}
