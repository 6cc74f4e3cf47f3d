//! Giving up what is kept for an office that was broken and never comes back (decision 0227), as an administrator asks for it.

use super::{
    Reply,
    server::{Admin, Replies},
};
use firn_anchor::MemberNumber;
use firn_volume::MemberError;
use std::time::Duration;

/// What was broken since is not given up: its office may be judging its journal, and making the clone of what it cannot publish.
const KEPT_FOR: Duration = Duration::from_secs(3600);

/// What is to be said of a root that was retained then, of a member's journal.
fn refusal(retained_at_ms: Option<i64>, now_ms: i64) -> Option<String> {
    let Some(retained_at_ms) = retained_at_ms else {
        return Some(
            "nothing is kept for that member: it was not broken, has come back, or was given up. The list: firn-edge members; nothing was changed"
                .into(),
        );
    };
    let kept_ms = now_ms.saturating_sub(retained_at_ms);
    (i128::from(kept_ms) < KEPT_FOR.as_millis() as i128).then(|| {
        "that member was broken less than an hour ago, and may be on its way back; nothing was changed. Start its edge, or ask again in an hour".into()
    })
}

impl Admin {
    pub(super) async fn give_up(&self, client: &mut Replies, number: u32, yes: bool) -> std::io::Result<()> {
        let reply = match self.gives_up(MemberNumber(number), yes).await {
            Ok(reply) => reply,
            Err(error) => Reply::Error {
                text: format!("not given up: {error}"),
            },
        };
        client.send(&reply).await
    }

    async fn gives_up(&self, number: MemberNumber, yes: bool) -> Result<Reply, MemberError> {
        let Some(member) = self.observed.volume.member_by_inode() else {
            let text = "the volume has no members: one edge at a time writes it; nothing was changed".into();
            return Ok(Reply::Error { text });
        };
        let retained = member.retained_since_ms(number).await?;
        if let Some(text) = refusal(retained, self.env.wall().as_millis()) {
            return Ok(Reply::Error { text });
        }
        if !yes {
            let text = format!(
                "nothing was changed. With --yes the root that is kept for {number} is given up: what its journal has and the volume has not can be put on no root any \
                 more, and a cleaner deletes what only that root has. If its machine still exists, start its edge instead"
            );
            return Ok(Reply::Done { text });
        }
        if member.is_away().await {
            member.come_back().await?;
        }
        Ok(match member.give_up(number).await? {
            true => {
                tracing::warn!(%number, "an administrator gave up what was kept for a member");
                Reply::Done {
                    text: format!(
                        "what was kept for {number} is given up; should its edge be started again, it says where its journal is"
                    ),
                }
            }
            false => Reply::Error {
                text: "it has come back meanwhile; nothing was changed".into(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_broken_lately_and_what_is_not_kept_is_not_given_up() {
        const HOUR_MS: i64 = 3_600_000;
        let now_ms = 100 * HOUR_MS;
        assert!(refusal(None, now_ms).is_some_and(|why| why.contains("nothing is kept")));
        for lately in [now_ms + HOUR_MS, now_ms, now_ms - HOUR_MS + 1] {
            assert!(refusal(Some(lately), now_ms).is_some_and(|why| why.contains("less than an hour")));
        }
        assert_eq!(refusal(Some(now_ms - HOUR_MS), now_ms), None);
    }
}
