//! Rekey commands of the admin socket.

use super::{
    Reply,
    server::{Admin, Replies},
};
use crate::rekey::{LOOK_EVERY, RekeyCommand, RekeyPart, rate};
use firn_volume::{RekeyStatus, ServingState, Volume};
use std::time::Duration;

/// The edge looks for a newer key ring within seconds; store and service may take some more.
const KEYS_WITHIN: Duration = Duration::from_secs(120);

impl Admin {
    pub(super) async fn rekey(&self, client: &mut Replies, command: RekeyCommand) -> std::io::Result<()> {
        let volume = self.observed.volume.clone();
        let env = self.env.clone();
        let work = async {
            match command {
                RekeyCommand::Status { .. } => Ok(volume.rekey_status()),
                RekeyCommand::Stop => volume.rekey_stop().await.map_err(|error| error.to_string()),
                RekeyCommand::Start { rate: text, wait } => {
                    let status = start(&volume, &text).await?;
                    if !wait {
                        return Ok(status);
                    }
                    while volume.rekey_status().under_way.is_some() {
                        if let ServingState::Failed(_) | ServingState::Fenced | ServingState::Broken(_) =
                            volume.status().serving_state
                        {
                            return Err("the edge stopped serving; the rekey goes on where it was with the next start".into());
                        }
                        env.sleep(LOOK_EVERY).await;
                    }
                    Ok(volume.rekey_status())
                }
            }
        };
        let progress = || RekeyPart::from(self.observed.volume.rekey_status()).progress();
        let reply = match client.meanwhile(work, progress).await? {
            Ok(status) => Reply::Rekey {
                rekey: Box::new(status.into()),
            },
            Err(text) => Reply::Error { text },
        };
        client.send(&reply).await
    }
}

async fn start(volume: &Volume, text: &str) -> Result<RekeyStatus, String> {
    let rate = rate(text)?;
    let looked = volume.want_newest_keys(KEYS_WITHIN).await;
    looked.map_err(|why| {
        format!("no rekey was started, since the newest key ring could not be looked for: {why}. Ask again when store and service answer")
    })?;
    let started = volume.rekey_start(rate).await;
    started.map_err(|error| format!("no rekey was started: {error}"))
}
