//! Outage detection: one request to the store and one to the table, tried again for as long as the deadline allows.
//!
//! Away is what does not answer: no connection, no end in time, broken or overloaded. Whoever is refused, by the store, the table or
//! the service it joined, or is told what none of them says, does not serve without them: that is for a person to read, and a removed
//! edge must not go on because its sessions are no longer renewed.

use crate::{
    config::Config,
    enrol::{Newest, newest},
    identity::Identity,
    joined::{Joined, is_joined},
    parts::Outside,
};
use firn_anchor::AnchorError;
use firn_env::Env;
use firn_format::{FamilyId, VolumeId};
use firn_seal::KeyRing;
use firn_store::{ObjectKey, StoreError};
use futures::{FutureExt, future::BoxFuture};
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

/// What one of them says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Answers,
    Refuses,
    Silent(String),
}

/// Asks all, side by side.
pub async fn look(outside: &Outside, config: &Config, of: Of) -> Away {
    let (store, table, service) = futures::future::join3(
        ask_store(outside, of),
        ask_table(outside, of),
        ask_service(outside, config),
    )
    .await;
    judged(store, table, service)
}

/// A service that is away keeps nobody from serving.
fn judged(store: Answer, table: Answer, service: Answer) -> Away {
    if [&store, &table, &service].contains(&&Answer::Refuses) {
        return Away::default();
    }
    let silent = |answer| match answer {
        Answer::Silent(why) => Some(why),
        Answer::Answers | Answer::Refuses => None,
    };
    Away {
        store: silent(store),
        table: silent(table),
    }
}

async fn ask_store(outside: &Outside, of: Of) -> Answer {
    let store = outside.stack.once.clone();
    let ask = move || {
        let store = store.clone();
        async move {
            let key = ObjectKey::new(&KeyRing::object_key_of(&of.family, of.generation));
            match store.head(&key).await {
                Err(StoreError::Unavailable { detail, .. }) => Answer::Silent(detail),
                Err(StoreError::Denied { .. }) => Answer::Refuses,
                // What it has not is for the opening to judge.
                Ok(_) | Err(_) => Answer::Answers,
            }
        }
        .boxed()
    };
    until_answered(&outside.env, ask).await
}

async fn ask_table(outside: &Outside, of: Of) -> Answer {
    let anchor = outside.anchor(of.family);
    let ask = move || {
        let anchor = anchor.clone();
        async move { of_anchor(anchor.load(of.volume).await.map(drop)) }.boxed()
    };
    until_answered(&outside.env, ask).await
}

/// What an anchor's answer, or the lack of one, is taken for.
fn of_anchor(answer: Result<(), AnchorError>) -> Answer {
    match answer {
        Ok(()) => Answer::Answers,
        Err(error) if error.is_transient() && !error.is_invalid_answer() => Answer::Silent(error.to_string()),
        Err(_) => Answer::Refuses,
    }
}

async fn ask_service(outside: &Outside, config: &Config) -> Answer {
    if !is_joined(config) {
        return Answer::Answers;
    }
    let asked = async {
        let joined = Joined::load(config)?;
        newest(&joined, config).await
    };
    match outside.env.timeout(DEADLINE, asked).await {
        Ok(Ok(Newest::Ring(_))) => Answer::Answers,
        Ok(Ok(Newest::Silent(why))) => Answer::Silent(why),
        Ok(Ok(Newest::None) | Err(_)) => Answer::Refuses,
        Err(elapsed) => Answer::Silent(elapsed.to_string()),
    }
}

/// The first answer; why there is none, after the deadline.
async fn until_answered(env: &Env, ask: impl Fn() -> BoxFuture<'static, Answer> + Send) -> Answer {
    let deadline = env.now().after(DEADLINE);
    let mut last = None;
    loop {
        let left = deadline.since(env.now());
        match env.timeout(left, ask()).await {
            Ok(Answer::Silent(why)) => last = Some(why),
            Ok(answer) => return answer,
            Err(_) => {
                let silent = format!("no answer within {} s", DEADLINE.as_secs());
                return Answer::Silent(last.unwrap_or(silent));
            }
        }
        if deadline.since(env.now()) <= PAUSE {
            return Answer::Silent(last.unwrap_or_default());
        }
        env.sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer::*, Away, judged, of_anchor};
    use firn_anchor::AnchorError;
    use firn_table::TableError;

    #[test]
    fn whoever_says_nonsense_for_an_anchor_is_not_away() {
        let of = |error: TableError| of_anchor(Err(AnchorError::Table(error)));
        let silent = of(TableError::Unavailable("no route to host".into()));
        assert!(
            matches!(&silent, Silent(why) if why.contains("no route to host")),
            "{silent:?}"
        );
        assert_eq!(of(TableError::InvalidAnswer("<html>".into())), Refuses);
        assert_eq!(of(TableError::Refused("its holder was removed".into())), Refuses);
        assert_eq!(of_anchor(Ok(())), Answers);
    }

    #[test]
    fn whoever_is_refused_does_not_serve_without_the_cloud() {
        let silent = || Silent("no route to host".into());
        assert!(judged(silent(), Answers, Answers).is_away());
        assert!(judged(Answers, silent(), silent()).is_away());
        assert!(!judged(Answers, Answers, silent()).is_away());
        // A removed edge gets no sessions for the store, whose silence then means nothing.
        assert!(!judged(silent(), Answers, Refuses).is_away());
        assert!(!judged(silent(), Refuses, Answers).is_away());
        assert!(!judged(Refuses, silent(), Answers).is_away());
    }

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
