//! Whether the cloud is away: one request to the store and one to the table, tried again for as long as the deadline allows.
//!
//! Away is what does not answer. A store that denies and a table that refuses have answered: what they say is for a person to read,
//! and no reason to serve without them.

use crate::{identity::Identity, parts::Outside};
use firn_anchor::AnchorError;
use firn_env::Env;
use firn_format::{FamilyId, VolumeId};
use firn_seal::KeyRing;
use firn_store::{ObjectKey, StoreError};
use std::time::Duration;

/// How long either may take to answer. A far region answers within a second, a failed name server within five.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Between two tries within the deadline.
const PAUSE: Duration = Duration::from_secs(1);

/// Whose store and table are asked.
#[derive(Clone, Copy, Debug)]
pub struct Of {
    family: FamilyId,
    volume: VolumeId,
    /// Of a key ring that is in the bucket.
    generation: u64,
}

impl From<&Identity> for Of {
    fn from(identity: &Identity) -> Self {
        Self {
            family: identity.family,
            volume: identity.volume,
            generation: identity.generation,
        }
    }
}

/// Why store and table did not answer, each if it did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Away {
    pub store: Option<String>,
    pub table: Option<String>,
}

impl Away {
    /// Whether either did not answer.
    pub fn is_away(&self) -> bool {
        self.store.is_some() || self.table.is_some()
    }

    /// For people.
    pub fn words(&self) -> String {
        let one = |what: &str, why: &Option<String>| {
            why.as_ref()
                .map(|why| format!("the {what} does not answer ({why})"))
        };
        let words: Vec<_> = [one("store", &self.store), one("table", &self.table)]
            .into_iter()
            .flatten()
            .collect();
        match &words[..] {
            [] => "store and table answer".into(),
            words => words.join(" and "),
        }
    }
}

/// Asks both, side by side.
pub async fn look(outside: &Outside, of: Of) -> Away {
    let (store, table) = futures::future::join(ask_store(outside, of), ask_table(outside, of)).await;
    Away { store, table }
}

async fn ask_store(outside: &Outside, of: Of) -> Option<String> {
    let key = ObjectKey::new(&KeyRing::object_key_of(&of.family, of.generation));
    until_answered(&outside.env, async || match outside.stack.once.head(&key).await {
        Err(StoreError::Unavailable { detail, .. }) => Err(detail),
        Ok(_) | Err(_) => Ok(()),
    })
    .await
}

async fn ask_table(outside: &Outside, of: Of) -> Option<String> {
    let anchor = outside.anchor(of.family);
    until_answered(&outside.env, async || match anchor.load(of.volume).await {
        Err(error @ AnchorError::Table(_)) if error.is_transient() => Err(error.to_string()),
        Ok(_) | Err(_) => Ok(()),
    })
    .await
}

/// `None` once it answers; why it did not, after the deadline.
async fn until_answered(env: &Env, ask: impl AsyncFn() -> Result<(), String>) -> Option<String> {
    let deadline = env.now().after(DEADLINE);
    let mut last = None;
    loop {
        let left = deadline.since(env.now());
        match env.timeout(left, ask()).await {
            Ok(Ok(())) => return None,
            Ok(Err(why)) => last = Some(why),
            Err(_) => {
                let silent = format!("no answer within {} s", DEADLINE.as_secs());
                return Some(last.unwrap_or(silent));
            }
        }
        if deadline.since(env.now()) <= PAUSE {
            return last;
        }
        env.sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::Away;

    #[test]
    fn what_is_away_is_named() {
        assert!(!Away::default().is_away());
        let store = Away {
            store: Some("no route to host".into()),
            table: None,
        };
        assert!(store.is_away());
        assert_eq!(store.words(), "the store does not answer (no route to host)");
        let both = Away {
            table: Some("refused".into()),
            ..store
        };
        assert_eq!(
            both.words(),
            "the store does not answer (no route to host) and the table does not answer (refused)"
        );
    }
}
