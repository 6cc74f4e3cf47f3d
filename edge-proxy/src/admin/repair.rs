//! Repairs, asked for over the admin socket.

use super::{
    Reply,
    server::{Admin, Replies},
};

impl Admin {
    pub(super) async fn repair(&self, client: &mut Replies, plan: bool, all: bool) -> std::io::Result<()> {
        let observed = self.observed.clone();
        let work = async move { observed.repair(plan, all).await };
        let told = || match plan {
            true => "looking".into(),
            false => "repairing".into(),
        };
        let reply = match client.meanwhile(work, told).await? {
            Ok(report) => Reply::Repaired {
                repaired: Box::new(report),
            },
            Err(text) => Reply::Error { text },
        };
        client.send(&reply).await
    }
}
