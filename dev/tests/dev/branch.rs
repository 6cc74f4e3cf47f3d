//! A branch office of the customer: an edge as a process of its own, whose roots the service keeps.

use crate::machine::{Machine, program};
use firn_rig::{Edge, Settings};

/// The newest root that the service keeps for the tenant's one volume, and who may replace it. Nothing may run.
pub async fn kept_root(machine: &Machine, kept: &str) -> (u64, Option<String>) {
    let tuple = machine.kept_volume(kept).await;
    (
        tuple.root.as_ref().unwrap().version.0,
        tuple.owner.as_ref().map(|owner| owner.name.clone()),
    )
}

/// See the module. The service runs, and the edge serves.
pub struct Branch {
    pub _place: tempfile::TempDir,
    pub machine: Machine,
    pub edge: Edge,
    /// Where the service keeps the roots of the tenant's one volume.
    pub kept: String,
}

impl Branch {
    /// From nothing to an edge that joined.
    pub async fn joined() -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut machine = Machine::new(&place.path().join("firn"));
        let branch = place.path().join("branch");
        let settings = Settings {
            table: "service".into(),
            limits: "checkpoint_busy = \"1 s\"\ncheckpoint_trickle = \"1 s\"".into(),
            ..Settings::local(&branch)
        };
        std::fs::create_dir_all(branch.join("store")).unwrap();
        let mut edge = Edge::configure(program("firn-edge"), &branch, settings).unwrap();
        machine.start();
        crate::story::from_nothing_to_an_edge(&machine, &edge.state.display().to_string());
        let kept = machine.roots_partition();
        edge.command("enrol", &[]).await.unwrap();
        edge.start().await.unwrap();
        Self {
            _place: place,
            machine,
            edge,
            kept,
        }
    }
}
