//! Mail: the service composes, a mailer delivers. The embedded one writes files, for laptops and tests.

use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{Env, OpenMode};

/// A letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// To whom.
    pub to: String,
    /// About what.
    pub subject: String,
    /// What it says, in plain text.
    pub body: String,
}

/// The mail was not taken; trying again is safe.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the mail was not taken: {0}")]
pub struct MailError(pub String);

/// Takes mail. A mailer may deliver twice, never claim what it did not take.
#[async_trait]
pub trait Mailer: Send + Sync {
    /// Takes a letter for delivery.
    async fn send(&self, mail: &Mail) -> Result<(), MailError>;
}

/// Writes each letter into a file of its own in the directory `mail` of the service's disk.
pub struct FileMailer {
    env: Env,
}

impl FileMailer {
    /// Writes on the disk of `env`.
    pub fn new(env: &Env) -> Self {
        Self { env: env.clone() }
    }
}

#[async_trait]
impl Mailer for FileMailer {
    async fn send(&self, mail: &Mail) -> Result<(), MailError> {
        let failed = |error: firn_env::DiskError| MailError(error.to_string());
        let disk = self.env.disk();
        disk.create_directory("mail").await.map_err(failed)?;
        // Time first, so that a listing is in order; random after, so that two letters never meet.
        let name = format!(
            "mail/{:020}-{:016x}.txt",
            self.env.wall().as_millis(),
            self.env.random_u64()
        );
        let text = format!("To: {}\nSubject: {}\n\n{}\n", mail.to, mail.subject, mail.body);
        let file = disk.open(&name, OpenMode::CreateNew).await.map_err(failed)?;
        file.write_and_sync(0, vec![Bytes::from(text)])
            .await
            .map_err(failed)?;
        disk.sync_directory("mail").await.map_err(failed)
    }
}
