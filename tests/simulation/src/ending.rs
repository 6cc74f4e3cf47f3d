//! The end of a history, when all is quiet and the weather is fair: nothing excuses anything any more.

use crate::{
    administrator::restore,
    history::{History, Home, judge, on},
    oracle::Stop,
    system::Running,
};
use firn_env::{
    TaskEnded,
    sim::{Machine, Seeded},
};
use std::{sync::Arc, time::Duration};

impl History {
    /// All in the cloud, an hour without a request, everything right when read cold.
    pub(crate) async fn final_checks(
        self: &Arc<Self>,
        home: &Home,
        running: &Arc<dyn Running>,
        random: &mut Seeded,
    ) {
        let machine = self.system.edge(home.edge);
        if let Some((id, name, _)) = running.snapshots().pop() {
            // Nobody else changes anything now: the copy is compared, and nothing excuses that there is none.
            let restored = restore(self, home, running, (id, &name), "restored at the end", random).await;
            self.collect(&home.oracle);
            match restored {
                Ok(true) => {}
                Ok(false) => return self.fail("nothing is restored in fair weather"),
                Err(TaskEnded) => return self.after_crash_unplanned(&machine, "a restore"),
            }
        }
        let serving = running.clone();
        match on(&machine, "sync", async move { serving.sync().await }).await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) if self.system.edges() == 1 => {
                self.say(|| format!("no cloud: {reason}"));
                return;
            }
            Ok(Err(reason)) => return self.fail(format!("the last sync fails in fair weather: {reason}")),
            Err(TaskEnded) => return self.after_crash_unplanned(&machine, "the last sync"),
        }
        let newest = judge(&home.oracle).newest();
        judge(&home.oracle).committed(newest);
        let serving = running.clone();
        match on(&machine, "rekey", async move { serving.finish_rekey().await }).await {
            Ok(wrong) if wrong.is_empty() => {}
            Ok(wrong) => return self.fail(format!("keys: {}", wrong.join("; "))),
            Err(TaskEnded) => return self.after_crash_unplanned(&machine, "the last rekey"),
        }
        let serving = running.clone();
        match on(
            &machine,
            "manifest",
            async move { serving.finish_manifest().await },
        )
        .await
        {
            Ok(wrong) if wrong.is_empty() => {}
            Ok(wrong) => return self.fail(format!("manifest: {}", wrong.join("; "))),
            Err(TaskEnded) => return self.after_crash_unplanned(&machine, "the end of a manifest"),
        }
        if random.chance(1, 2) {
            self.check_idle(&machine).await;
        }
        let serving = running.clone();
        match on(&machine, "verify", async move { serving.verify().await }).await {
            Ok(damage) if damage.is_empty() => {}
            Ok(damage) => return self.fail(format!("verify: {}", damage.join("; "))),
            Err(TaskEnded) => return self.after_crash_unplanned(&machine, "verify"),
        }
        machine.crash();
        self.check_manifests(true).await;
        self.system.spoil_cache(home.edge, true);
        let mut cold = Home {
            edge: home.edge,
            branch: home.branch,
            oracle: home.oracle.clone(),
            stop: Stop::Clean,
            verifier: None,
            born: true,
        };
        if random.chance(1, 3) && self.system.edges() > 2 {
            // From the cloud alone, on a machine that never saw it.
            cold.edge = 2;
            cold.stop = Stop::Takeover;
            let system = self.system.clone();
            let machine = self.system.edge(2);
            match on(&machine, "takeover", async move { system.takeover(2).await }).await {
                Ok(Ok(())) => {}
                other => return self.fail(format!("takeover in fair weather: {other:?}")),
            }
        }
        self.open(&mut cold, random).await;
        self.collect(&home.oracle);
    }

    /// Nobody serves: manifests are right. At the end nothing else is needed, either.
    pub(crate) async fn check_manifests(&self, is_end: bool) {
        self.system.pause_cleaners(true);
        for wrong in self.system.check_manifests().await {
            self.fail(wrong);
        }
        self.count("manifests checked");
        if is_end && !self.has_failed() {
            match self.system.delete_unlisted().await {
                Ok(0) => {}
                Ok(_) => self.count("unlisted segments deleted"),
                Err(error) => self.fail(format!("what no manifest has cannot be deleted: {error}")),
            }
        }
        self.system.pause_cleaners(false);
    }

    fn after_crash_unplanned(&self, machine: &Machine, when: &str) {
        self.after_crash(machine, when);
        self.fail(format!("the machine went down during {when}"));
    }

    /// I9.
    pub(crate) async fn check_idle(&self, machine: &Machine) {
        self.system.pause_cleaners(true);
        // What was put last is read back after a minute, and what could not be read again within five more.
        self.env.sleep(Duration::from_secs(600)).await;
        let before = self.system.requests();
        self.env.sleep(Duration::from_secs(3600)).await;
        let made = self.system.requests() - before;
        self.system.pause_cleaners(false);
        self.count("idle hours");
        if made > 0 && machine.is_running() {
            self.fail(format!("{made} requests in an idle hour"));
        }
    }
}
