//! Starts while the cloud is away (decision 0098): what the machine has is served, and judged like after any stop.

use crate::{
    history::{History, Home, on},
    oracle::Stop,
    system::{Branch, Running, StartError, Weather},
};
use firn_env::{TaskEnded, sim::Seeded};
use futures::future::{Either, select};
use std::{pin::pin, sync::Arc, time::Duration};

/// How long the cloud stays away from a start that waits for it: what a snapshot froze before a crash is uploaded before anything
/// is served, and nothing could be served without.
const AWAY: Duration = Duration::from_secs(600);

/// Whose the file system is, as the table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The edge's that starts.
    This,
    /// Another one's, which took it over.
    Another,
}

impl History {
    /// Now and then: starts while the cloud is away, from what the machine has, and judges what is there. `None` if it was not
    /// tried, or is not possible.
    pub(crate) async fn open_in_outage(
        &self,
        home: &mut Home,
        owner: Owner,
        random: &mut Seeded,
    ) -> Option<Arc<dyn Running>> {
        if !self.system.can_detach() || home.branch != Branch::HEAD || !random.chance(1, 2) {
            return None;
        }
        let machine = self.system.edge(home.edge);
        if !machine.is_running() {
            machine.restart();
        }
        let weather = *random.pick(&[Weather::NoStore, Weather::NoTable, Weather::CutOff]);
        self.say(|| format!("edge {} is to start: {weather:?}", home.edge));
        self.system.set_weather(home.edge, weather);
        machine.faults().set_observer(|_, _| {});
        let (system, edge, branch) = (self.system.clone(), home.edge, home.branch);
        // The cloud may go away while a start with it is under way.
        if random.chance(1, 3) {
            let crashes = random.chance(1, 3);
            if crashes {
                machine.crash_at_any(random.between(1, 12));
            }
            let with_cloud = system.clone();
            let starting = pin!(on(&machine, "start", async move {
                with_cloud.start(edge, branch).await
            }));
            let away = pin!(self.env.sleep(AWAY));
            let started = match select(starting, away).await {
                Either::Left((started, _)) => started,
                Either::Right(((), starting)) => {
                    self.system.set_weather(edge, Weather::Fair);
                    let started = starting.await;
                    self.system.set_weather(edge, weather);
                    started
                }
            };
            machine.faults().disarm();
            match started {
                Ok(Ok(_)) if owner == Owner::Another => {
                    self.fail("an edge was given what another one owns");
                    return None;
                }
                // It needed nothing that is away.
                Ok(Ok(_)) | Err(TaskEnded) => {
                    home.verifier = home.verifier.filter(|_| home.stop != Stop::Clean);
                    self.after_crash(&machine, "start");
                    machine.kill();
                    machine.restart();
                }
                Ok(Err(StartError::Later(reason))) => {
                    self.say(|| format!("edge {edge} does not start: {reason}"));
                }
                // The table may be there, and says so.
                Ok(Err(StartError::Owned(_) | StartError::SalvageFirst)) if owner == Owner::Another => {
                    self.say(|| format!("edge {edge} is told that another owns the file system"));
                }
                Ok(Err(error)) => {
                    self.fail(format!("edge {edge} does not start in an outage: {error:?}"));
                    return None;
                }
            }
        }
        let crashes = random.chance(1, 6);
        if crashes {
            machine.crash_at_any(random.between(1, 8));
        }
        let started = on(&machine, "start detached", async move {
            system.start_detached(edge).await
        })
        .await;
        machine.faults().disarm();
        match started {
            Ok(Ok(running)) => {
                self.say(|| format!("edge {edge} serves without the cloud"));
                self.count("starts without the cloud");
                if self.judge_survivors(home, &machine, &running).await.is_ok() {
                    if random.chance(2, 3) {
                        self.system.set_weather(home.edge, weather);
                    }
                    return Some(running);
                }
                self.after_crash(&machine, "judging");
            }
            Ok(Err(StartError::Later(reason))) => {
                self.say(|| format!("edge {edge} does not start without the cloud: {reason}"));
                machine.kill();
            }
            Ok(Err(error)) => self.fail(format!("edge {edge} does not start without the cloud: {error:?}")),
            Err(TaskEnded) => self.after_crash(&machine, "a start without the cloud"),
        }
        self.system.set_weather(home.edge, Weather::Fair);
        if crashes {
            home.verifier = home.verifier.filter(|_| home.stop != Stop::Clean);
        }
        None
    }
}
