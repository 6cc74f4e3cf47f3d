//! Questions on the admin socket about who a client is, and why it is refused.

use super::{Reply, server::Replies};
use crate::{
    id::{self, Question},
    volumes::Volumes,
};

/// Answers.
pub(super) async fn id(volumes: &Volumes, client: &mut Replies, question: &Question) -> std::io::Result<()> {
    let work = id::answer(volumes, question);
    let reply = match client
        .meanwhile(work, || "accounts and directories".into())
        .await?
    {
        Ok(answer) => Reply::Id {
            answer: Box::new(answer),
        },
        Err(text) => Reply::Error { text },
    };
    client.send(&reply).await
}
