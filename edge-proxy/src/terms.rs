//! A shared volume at this edge, from term to term: it is followed and owned by turns ([`firn_volume::Member`]), and its exports never notice.
//!
//! What belongs to a term (the snapshot keeper, the cleaner, what is shown) begins and ends with it; the key rings are followed over all of
//! them, and mounts and SMB are served over all of them, from the first one on.

use crate::{
    failure::Failure,
    identity::Identity,
    life::{Background, Ended, Life},
    opened::{MemberTerm, Mode, Opened},
    parts::Outside,
    snapshot::OwnerPart,
    volumes::Volumes,
};
use firn_nfs::HandleKey;
use firn_volume::{LostLocks, Member, MemberOptions, Term};
use futures::future::{Either, select};
use std::{pin::pin, sync::Arc, time::Duration};

/// Between two tries to begin a term while clients wait.
const AGAIN: Duration = Duration::from_secs(2);

/// Tells those who lost locks to other offices.
pub(crate) async fn tell_lost(lost: LostLocks, volumes: Arc<Volumes>) {
    loop {
        let broken = lost.next().await;
        volumes.nfs.tell_broken(&broken).await;
    }
}

impl Life {
    /// Serves the volume, term after term, until the process stops, it is drained, or it cannot be served any longer.
    pub(crate) async fn live_by_terms(
        &mut self,
        outside: &Outside,
        options: &MemberOptions,
        identity: Identity,
    ) -> Result<Ended, Failure> {
        let ended = self.serve_terms(outside, options, identity).await;
        if let Some(between_terms) = self.service.take() {
            between_terms.end().await;
        }
        ended
    }

    async fn serve_terms(
        &mut self,
        outside: &Outside,
        options: &MemberOptions,
        identity: Identity,
    ) -> Result<Ended, Failure> {
        let config = self.config.clone();
        let handle_key = HandleKey::new(&identity.handle_key);
        let (parts, rings) = outside.own_parts(&config, identity).await?;
        let options = MemberOptions {
            lists_snapshots: config.snapshots.visible,
            ..options.clone()
        };
        let locks = self.volumes.nfs.table();
        let member = Member::new(parts.clone(), config.volume_config()?, options, &locks);
        let telling = tell_lost(member.lost_locks(), self.volumes.clone());
        let _telling = Background::new(outside.env.spawn("tell lost locks", telling));
        let of = member.clone();
        let following = rings.follow(outside.env.clone(), move || of.volume(), parts.keys.clone());
        let _rings = Background::new(outside.env.spawn("follow key rings", following));
        let mut is_first = true;
        loop {
            let term = match self.begin(&member).await {
                Ok(Some(term)) => term,
                Ok(None) => return Ok(Ended::ForGood),
                // Clients wait at the gate, and the next try may find the anchor.
                Err(failure) if !is_first && failure.exit_code() == 1 => {
                    tracing::warn!(%failure, "the next term cannot begin yet; tried again");
                    outside.env.sleep(AGAIN).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            is_first = false;
            let (volume_name, owner) = match parts.anchor.load(parts.volume).await {
                Ok((tuple, _)) => {
                    let name = tuple.owner.map(|owner| owner.name).unwrap_or_default();
                    let epoch = tuple.epoch.0;
                    (tuple.name, OwnerPart { name, epoch })
                }
                // What is shown is not worth a volume.
                Err(_) => (config.volume.name.clone(), OwnerPart::default()),
            };
            let opened = Opened {
                parts: parts.clone(),
                volume: term.volume().clone(),
                volume_name,
                owner,
                mode: Mode::Member(Box::new(MemberTerm {
                    member: member.clone(),
                    term,
                })),
            };
            match self.serve(outside, opened, handle_key.clone()).await? {
                Ended::TermOver => {}
                ended @ (Ended::ForGood | Ended::CloudIsBack | Ended::Broken) => return Ok(ended),
            }
        }
    }
    /// The next term; `None`: the process stops.
    async fn begin(&self, member: &Member) -> Result<Option<Term>, Failure> {
        let mut stopping = self.stopping.clone();
        let (opened, stopped) = (pin!(member.open()), pin!(stopping.wait_for(|stop| *stop)));
        match select(opened, stopped).await {
            Either::Left((term, _)) => {
                let term = term?;
                if let Some(recovery) = &term.recovery {
                    tracing::info!(?recovery, "this edge owns the volume for now");
                } else {
                    tracing::info!(
                        "this edge follows the volume, and asks for it when a client changes something"
                    );
                }
                Ok(Some(term))
            }
            Either::Right(_) => Ok(None),
        }
    }
}
