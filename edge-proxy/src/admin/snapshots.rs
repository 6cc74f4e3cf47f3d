//! Snapshot commands of the admin socket.

use super::{
    Reply,
    server::{Admin, Replies},
};
use crate::{
    report,
    snapshots::{SnapshotCommand, SnapshotLine, span, utc},
};
use firn_volume::{RestoreReport, SnapshotError};
use std::sync::{Arc, Mutex};

fn error(error: impl std::fmt::Display) -> Reply {
    Reply::Error {
        text: error.to_string(),
    }
}

impl Admin {
    pub(super) async fn snapshot(
        &self,
        client: &mut Replies,
        command: SnapshotCommand,
    ) -> std::io::Result<()> {
        let volume = self.observed.volume.clone();
        let now_ms = self.env.wall().as_millis();
        let until = |time: &str| {
            let span = span(time)?;
            Ok::<i64, String>(now_ms.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
        };
        let reply = match command {
            SnapshotCommand::Create { name, protect } => {
                let until_ms = match protect.as_deref().map(until).transpose() {
                    Ok(until_ms) => until_ms.unwrap_or(0),
                    Err(text) => return client.send(&error(text)).await,
                };
                let shown = name.clone();
                let work = async move { volume.snapshot_create(name.into_bytes(), until_ms).await };
                match client.meanwhile(work, || self.behind()).await? {
                    Ok(info) => Reply::Done {
                        text: format!(
                            "snapshot {shown}: {} files, {}, in the cloud (level 2); clients find it at .snapshots/{shown}",
                            info.files,
                            report::size(info.used_bytes)
                        ),
                    },
                    Err(refused) => error(refused),
                }
            }
            SnapshotCommand::List { space } => return self.list(client, space).await,
            SnapshotCommand::Delete { name } => match volume.snapshot_delete(name.as_bytes()).await {
                Ok(()) => Reply::Done {
                    text: format!("snapshot {name} is deleted; the cleaner frees what only it held"),
                },
                Err(refused) => error(refused),
            },
            SnapshotCommand::Protect { name, time } => match until(&time) {
                Err(text) => error(text),
                Ok(until_ms) => match volume.snapshot_protect(name.as_bytes(), until_ms).await {
                    Ok(()) => Reply::Done {
                        text: format!("nobody can delete snapshot {name} before {}", utc(until_ms)),
                    },
                    Err(refused) => error(refused),
                },
            },
        };
        client.send(&reply).await
    }

    async fn list(&self, client: &mut Replies, space: bool) -> std::io::Result<()> {
        let volume = self.observed.volume.clone();
        let work = async move {
            let mut lines = Vec::new();
            for info in volume.snapshots() {
                let unique = match space.then_some(info.version).flatten() {
                    None => None,
                    Some(_) => match volume.snapshot_space(&info.name).await {
                        Ok(space) => Some((space.unique_bytes, space.complete)),
                        // Deleted meanwhile.
                        Err(SnapshotError::NoSuchSnapshot { .. }) => continue,
                        Err(error) => return Err(error),
                    },
                };
                lines.push(SnapshotLine {
                    name: String::from_utf8_lossy(&info.name).into_owned(),
                    id: info.id,
                    created_ms: info.created_ms,
                    protected_until_ms: info.protected_until_ms,
                    files: info.files,
                    used_bytes: info.used_bytes,
                    unique,
                });
            }
            Ok(lines)
        };
        let reply = match client.meanwhile(work, || "reading what differs".into()).await? {
            Ok(snapshots) => Reply::Snapshots { snapshots },
            Err(refused) => error(refused),
        };
        client.send(&reply).await
    }

    pub(super) async fn restore(
        &self,
        client: &mut Replies,
        snapshot: String,
        from: String,
        to: String,
        replace: bool,
    ) -> std::io::Result<()> {
        let volume = self.observed.volume.clone();
        let seen = Arc::new(Mutex::new(RestoreReport::default()));
        let noting = seen.clone();
        let said = |report: &RestoreReport| {
            format!(
                "{} files, {} directories, {}",
                report.files,
                report.directories,
                report::size(report.bytes)
            )
        };
        let target = to.clone();
        let work = async move {
            let note = move |report: &RestoreReport| {
                *noting.lock().expect("no panic under this lock") = *report;
            };
            let (snapshot, from, to) = (snapshot.as_bytes(), from.as_bytes(), to.as_bytes());
            volume.restore(snapshot, from, to, replace, &note).await
        };
        let progress = || said(&seen.lock().expect("no panic under this lock"));
        let restored = client.meanwhile(work, progress).await?;
        // Also of one that failed: it may have changed much.
        self.observed.drop_caches().await;
        let reply = match restored {
            Ok(done) => Reply::Done {
                text: format!("{target} is restored: {} (level 1)", said(&done)),
            },
            Err(refused) => error(refused),
        };
        client.send(&reply).await
    }

    pub(super) async fn clone_volume(
        &self,
        client: &mut Replies,
        snapshot: Option<String>,
        name: String,
    ) -> std::io::Result<()> {
        let volume = self.observed.volume.clone();
        let work = async move {
            match snapshot {
                Some(snapshot) => volume.clone_snapshot(snapshot.as_bytes(), &name).await,
                None => volume.clone_head(&name).await,
            }
        };
        let reply = match client.meanwhile(work, || self.behind()).await? {
            Ok(clone) => Reply::Done {
                text: format!(
                    "volume {} ({}): {} files, {}, all shared with its origin. To serve it, name it in the configuration of \
                     another state directory and run: firn-edge join --identity FILE",
                    clone.name,
                    clone.volume,
                    clone.files,
                    report::size(clone.used_bytes)
                ),
            },
            Err(refused) => error(refused),
        };
        client.send(&reply).await
    }
}
