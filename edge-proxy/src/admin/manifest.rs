//! Manifest commands of the admin socket.

use super::{
    Reply,
    server::{Admin, Replies},
};
use crate::{
    manifest::{ManifestCommand, ManifestPart},
    rekey::{LOOK_EVERY, rate},
};
use firn_volume::ServingState;

impl Admin {
    pub(super) async fn manifest(
        &self,
        client: &mut Replies,
        command: ManifestCommand,
    ) -> std::io::Result<()> {
        let volume = self.observed.volume.clone();
        let env = self.env.clone();
        let part = || ManifestPart::of(volume.manifest_status(), volume.status().used_bytes);
        let work = async {
            let ManifestCommand::Begin { rate: text, wait } = command else {
                return Ok(());
            };
            let begun = volume.manifest_begin(rate(&text)?).await;
            begun.map_err(|error| format!("no manifest was begun: {error}"))?;
            while wait && part().is_gathered() {
                if let ServingState::Failed(_) | ServingState::Fenced | ServingState::Broken(_) =
                    volume.status().serving_state
                {
                    return Err(
                        "the edge stopped serving; the manifest is gathered on with the next start".into(),
                    );
                }
                env.sleep(LOOK_EVERY).await;
            }
            Ok::<(), String>(())
        };
        let reply = match client.meanwhile(work, || part().line()).await? {
            Ok(()) => Reply::Manifest {
                manifest: Box::new(part()),
            },
            Err(text) => Reply::Error { text },
        };
        client.send(&reply).await
    }
}
