//! Calendars that are wrong, or later.

use firn_env::Env;
use std::sync::Arc;

/// The real environment with another calendar.
pub fn shifted(env: &Env, seconds: i64) -> Env {
    let shifted = Shifted {
        env: env.clone(),
        seconds,
    };
    Env::new(firn_env::Parts {
        clock: Arc::new(shifted.clone()),
        random: Arc::new(shifted.clone()),
        tasks: Arc::new(shifted),
        disk: env.disk().clone(),
        network: env.network().clone(),
        faults: env.faults().clone(),
    })
}

#[derive(Clone)]
struct Shifted {
    env: Env,
    seconds: i64,
}

impl firn_env::Clock for Shifted {
    fn now(&self) -> firn_env::Monotonic {
        self.env.now()
    }

    fn wall(&self) -> firn_env::WallTime {
        firn_env::WallTime(self.env.wall().0 + self.seconds * 1_000_000_000)
    }

    fn sleep(&self, duration: std::time::Duration) -> futures::future::BoxFuture<'static, ()> {
        let env = self.env.clone();
        Box::pin(async move { env.sleep(duration).await })
    }
}

impl firn_env::Random for Shifted {
    fn fill(&self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.env.random_bytes::<1>()[0];
        }
    }
}

impl firn_env::Tasks for Shifted {
    fn spawn(
        &self,
        name: &'static str,
        future: futures::future::BoxFuture<'static, ()>,
    ) -> Box<dyn Fn() + Send + Sync> {
        let task = self.env.spawn(name, future);
        Box::new(move || task.abort())
    }

    fn spawn_compute(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}
