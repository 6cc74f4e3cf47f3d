//! Asking the replicas of a row. The quorum is all of one version: a call waits for each of them, or for the deadline.

use crate::{chunks::Piece, layout::Chunk, pool::Speaker, replicas::ClusterReplicas, retry::RetryState};
use firn_blockd_disk::{Incarnation, ReplicaError};
use firn_blockd_protocol::{
    CallError, Generation, Refusal, Replica, Reply, Request, Row, RowVersion, VersionedBlocks,
};
use futures::future::join_all;
use std::{collections::BTreeSet, sync::atomic::Ordering::Relaxed};
use tracing::debug;

/// What an answer to a request about a row means.
enum Verdict<T> {
    Done(T),
    /// Something was learned: ask again at once.
    Again,
    /// Ask again, later.
    Later(String),
    /// The replica has it, but not whole.
    Damaged,
    Fenced(Incarnation),
}

impl ClusterReplicas {
    /// Reads an answer that is no success.
    async fn judge<T>(&self, replica: &Replica, error: CallError) -> Verdict<T> {
        let refusal = match error {
            CallError::Refused(refusal) => refusal,
            other => return Verdict::Later(format!("{}: {other}", replica.address)),
        };
        match refusal {
            Refusal::WrongRow { newest } => {
                if self.rows.learn(newest) {
                    Verdict::Again
                } else {
                    Verdict::Later(format!("{}: its table is older than ours", replica.address))
                }
            }
            Refusal::Fenced { current } => Verdict::Fenced(Incarnation(current.0.into())),
            Refusal::Damaged { .. } => Verdict::Damaged,
            Refusal::NotFenced => {
                let Speaker { disk, fence, .. } = self.speaker;
                match self.pool.call(replica, Request::SetFence { disk, fence }).await {
                    Ok(_) => Verdict::Again,
                    Err(CallError::Refused(Refusal::Fenced { current })) => {
                        Verdict::Fenced(Incarnation(current.0.into()))
                    }
                    Err(error) => Verdict::Later(format!("{}: {error}", replica.address)),
                }
            }
            Refusal::DataChecksum { .. } | Refusal::Superseded => Verdict::Again,
            other => Verdict::Later(format!("{}: {other}", replica.address)),
        }
    }

    /// Waits before asking again, and looks whether the row has changed; an error once the deadline has end.
    pub(crate) async fn wait(
        &self,
        retry: &mut RetryState,
        row: &Row,
        why: String,
    ) -> Result<(), ReplicaError> {
        self.counters.retries.fetch_add(1, Relaxed);
        retry.say(&self.waits, &why);
        if self.env.now().since(retry.began()) >= self.deadline_after {
            return Err(ReplicaError::Unreachable { replica: 0, why });
        }
        retry.pause(&self.env).await;
        // The table may be away as well: then nobody changes rows either.
        if let Err(error) = self.rows.refresh(row.index).await {
            debug!(%error, "the table cannot be read");
        }
        Ok(())
    }

    async fn row(&self, tract: u32) -> Result<Row, ReplicaError> {
        self.rows
            .of_tract(tract)
            .await
            .map_err(|error| ReplicaError::Unreachable {
                replica: 0,
                why: error.to_string(),
            })
    }

    /// Makes a piece durable on all replicas of one version of its row.
    pub(crate) async fn put(&self, piece: &Piece, generation: Generation) -> Result<(), ReplicaError> {
        let tract = self.tract(piece.chunk.tract);
        let range = piece.chunk.range;
        let blocks = &piece.blocks;
        let mut retry = RetryState::new(&self.env);
        // Those who have it, under the version of the row at which they said so.
        let (mut version, mut have) = (RowVersion(0), BTreeSet::new());
        loop {
            let row = self.row(tract.index).await?;
            if row.version != version {
                version = row.version;
                have.clear();
            }
            let request = match blocks {
                Some(blocks) => Request::Write {
                    tract,
                    row: row.version,
                    generation,
                    range,
                    blocks: blocks.clone(),
                },
                None => Request::Trim {
                    tract,
                    row: row.version,
                    generation,
                    range,
                },
            };
            let missing: Vec<&Replica> = row
                .replicas
                .iter()
                .filter(|replica| !have.contains(&replica.node))
                .collect();
            let sent = blocks
                .as_ref()
                .map_or(0, |blocks| blocks.data.len() * missing.len());
            self.counters.sent_bytes.fetch_add(sent as u64, Relaxed);
            self.counters
                .store_requests
                .fetch_add(missing.len() as u64, Relaxed);
            let calls = missing
                .iter()
                .map(|replica| self.pool.call(replica, request.clone()));
            let answers = join_all(calls).await;
            let (mut again, mut later) = (false, None);
            for (replica, answer) in missing.into_iter().zip(answers) {
                let verdict = match answer {
                    Ok(_) => Verdict::Done(()),
                    Err(error) => self.judge(replica, error).await,
                };
                match verdict {
                    Verdict::Done(()) => {
                        have.insert(replica.node);
                    }
                    Verdict::Fenced(by) => return Err(ReplicaError::Fenced { by }),
                    Verdict::Again => again = true,
                    Verdict::Damaged => later = Some(format!("{}: damaged", replica.address)),
                    Verdict::Later(why) => later = Some(why),
                }
            }
            if !have.is_empty() && firn_env::planted!("client.one_replica_suffices") {
                return Ok(());
            }
            if row.replicas.is_empty() {
                later = Some("the tract's row has no replica yet".into());
            } else if later.is_none() && !again {
                return Ok(());
            }
            if again && later.is_none() {
                later = retry.retry_at_once();
            }
            if let Some(why) = later {
                self.wait(&mut retry, &row, why).await?;
            }
        }
    }

    /// Asks one replica for a chunk.
    async fn fetch(&self, replica: &Replica, row: &Row, chunk: Chunk) -> Verdict<VersionedBlocks> {
        let tract = self.tract(chunk.tract);
        let request = Request::Fetch {
            tract,
            row: row.version,
            fence: self.speaker.fence,
            range: chunk.range,
        };
        match self.pool.call(replica, request).await {
            Ok(Reply::Fetched(found)) if found.range != chunk.range => {
                Verdict::Later(format!("{}: it sent another range", replica.address))
            }
            Ok(Reply::Fetched(found)) => {
                let bytes = found.data.len() as u64;
                self.counters.received_bytes.fetch_add(bytes, Relaxed);
                match found.first_damaged(tract) {
                    // Damaged on its way, since nodes verify what they read.
                    Some(block) => Verdict::Later(format!("{}: block {block} was damaged", replica.address)),
                    None => Verdict::Done(found),
                }
            }
            Ok(_) => Verdict::Later(format!("{}: it sent something else", replica.address)),
            Err(error) => self.judge(replica, error).await,
        }
    }

    /// A chunk as one active replica has it, counted round from one that the chunk decides.
    pub(crate) async fn fetch_from(
        &self,
        copy: usize,
        chunk: Chunk,
    ) -> Result<Option<VersionedBlocks>, ReplicaError> {
        let mut retry = RetryState::new(&self.env);
        loop {
            let row = self.row(chunk.tract).await?;
            let active: Vec<&Replica> = row.active().collect();
            if active.is_empty() {
                let why = "the tract's row has no active replica".into();
                return Err(ReplicaError::Unreachable { replica: copy, why });
            }
            // Neighbouring chunks begin with different replicas, which shares the work.
            let first = chunk.tract as usize + usize::from(chunk.range.first());
            let replica = active[(first + copy) % active.len()];
            match self.fetch(replica, &row, chunk).await {
                Verdict::Done(found) => {
                    self.waits.load_done();
                    return Ok(Some(found));
                }
                Verdict::Damaged => return Ok(None),
                Verdict::Fenced(by) => return Err(ReplicaError::Fenced { by }),
                Verdict::Again => {
                    if let Some(why) = retry.retry_at_once() {
                        return Err(ReplicaError::Unreachable { replica: copy, why });
                    }
                }
                Verdict::Later(why) => {
                    self.counters.retries.fetch_add(1, Relaxed);
                    self.waits.load_failed(&self.env, why.clone());
                    if let Err(error) = self.rows.refresh(row.index).await {
                        debug!(%error, "the table cannot be read");
                    }
                    return Err(ReplicaError::Unreachable { replica: copy, why });
                }
            }
        }
    }

    /// A chunk as all active replicas of one version of its row have it, and how many others that version has.
    pub(crate) async fn fetch_all(
        &self,
        chunk: Chunk,
    ) -> Result<(Vec<Option<VersionedBlocks>>, usize), ReplicaError> {
        let mut retry = RetryState::new(&self.env);
        loop {
            let row = self.row(chunk.tract).await?;
            let calls = row.active().map(|replica| self.fetch(replica, &row, chunk));
            let (mut all, mut again, mut later) = (Vec::new(), false, None);
            for verdict in join_all(calls).await {
                match verdict {
                    Verdict::Done(found) => all.push(Some(found)),
                    Verdict::Damaged => all.push(None),
                    Verdict::Fenced(by) => return Err(ReplicaError::Fenced { by }),
                    Verdict::Again => again = true,
                    Verdict::Later(why) => later = Some(why),
                }
            }
            if all.is_empty() && !again && later.is_none() {
                later = Some("the tract's row has no active replica".into());
            }
            if again && later.is_none() {
                later = retry.retry_at_once();
            }
            if let Some(why) = later {
                self.wait(&mut retry, &row, why).await?;
            } else if !again {
                let joining = row.replicas.len() - all.len();
                return Ok((all, joining));
            }
        }
    }
}
