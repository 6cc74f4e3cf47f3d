//! Names of a domain's users for the access log: a bounded cache, which one task fills by asking winbindd.
//!
//! ```text
//! writer ──uid──▶ cache ──▶ the name that is known, at once; none until it is
//!                   │ unknown or old
//!                   ▼
//!            bounded queue ──▶ one task ──▶ winbindd ──▶ cache
//! ```
//!
//! The writer of the log never waits (decision 0187): winbindd may hang, or wait for a controller that is away. So the first lines of a user have the
//! number alone, and lines go on with the names that are known while nobody answers.

use crate::smb::{Accounts, DomainSection, SmbSection};
use firn_env::{Env, Monotonic, Task};
use futures::{FutureExt as _, future::BoxFuture};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::mpsc;

/// Names that are kept, some 2 MiB: more users than an office's domain has at work in a day.
const NAMES_MAX: usize = 16_384;
/// Questions that wait. What finds no room is asked by a later line.
const QUESTIONS_MAX: usize = 256;
/// After so long a name is asked for anew: users are renamed.
const FRESH_FOR: Duration = Duration::from_secs(3600);
/// After so long a number without a name is asked for anew, and whatever winbindd did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The name of a number, or that it has none; an error if nobody answers.
type Answer = BoxFuture<'static, Result<Option<String>, String>>;

/// See the module.
pub struct DomainNames {
    env: Env,
    domain: DomainSection,
    cache: Arc<Mutex<HashMap<u32, Known>>>,
    questions: mpsc::Sender<u32>,
    _task: Task<()>,
}

/// What is known of a number.
#[derive(Clone, Debug)]
struct Known {
    name: Option<String>,
    /// From when on it is asked for again.
    ask_from: Monotonic,
}

fn locked(cache: &Mutex<HashMap<u32, Known>>) -> MutexGuard<'_, HashMap<u32, Known>> {
    cache.lock().expect("no panic under this lock")
}

impl DomainNames {
    /// Of the domain of this section; none without one.
    pub fn start(env: &Env, state_directory: PathBuf, smb: &SmbSection) -> Option<Self> {
        let (smb, asking) = (Arc::new(smb.clone()), env.clone());
        let domain = smb.domain.clone()?;
        let ask = move |uid: u32| {
            let (env, smb, state_directory) = (asking.clone(), smb.clone(), state_directory.clone());
            let answer = async move {
                Accounts::new(&env, &state_directory, &smb)
                    .domain_name_of(uid)
                    .await
            };
            answer.boxed()
        };
        Some(Self::with(env, domain, ask))
    }

    fn with(env: &Env, domain: DomainSection, ask: impl Fn(u32) -> Answer + Send + Sync + 'static) -> Self {
        let cache: Arc<Mutex<HashMap<u32, Known>>> = Arc::default();
        let (questions, mut asked) = mpsc::channel(QUESTIONS_MAX);
        let (filled, clock) = (cache.clone(), env.clone());
        let fill = async move {
            while let Some(uid) = asked.recv().await {
                let answer = ask(uid).await;
                if let Err(why) = &answer {
                    tracing::debug!(uid, why, "a user of the domain has no name in the access log");
                }
                keep(&filled, uid, answer.ok(), clock.now());
            }
        };
        Self {
            env: env.clone(),
            domain,
            cache,
            questions,
            _task: env.spawn("names of a domain", fill),
        }
    }

    /// Whether a number is the domain's.
    pub fn owns(&self, uid: u32) -> bool {
        self.domain.owns(uid)
    }

    /// The name, if it is known already. At once.
    pub fn name_of(&self, uid: u32) -> Option<String> {
        let now = self.env.now();
        let mut cache = locked(&self.cache);
        let known = cache.get_mut(&uid);
        let name = known.as_ref().and_then(|known| known.name.clone());
        if known.as_ref().is_none_or(|known| known.ask_from <= now) && self.questions.try_send(uid).is_ok() {
            // Not once for each line until it is answered.
            let ask_from = now.after(RETRY_AFTER);
            match known {
                Some(known) => known.ask_from = ask_from,
                None => put(&mut cache, uid, Known { name: None, ask_from }),
            }
        }
        name
    }
}

/// Keeps an answer; none keeps the name that is known.
fn keep(cache: &Mutex<HashMap<u32, Known>>, uid: u32, answer: Option<Option<String>>, now: Monotonic) {
    let mut cache = locked(cache);
    let name = match answer {
        Some(name) => name,
        None => cache.get(&uid).and_then(|known| known.name.clone()),
    };
    let again = if name.is_some() { FRESH_FOR } else { RETRY_AFTER };
    let known = Known {
        name,
        ask_from: now.after(again),
    };
    put(&mut cache, uid, known);
}

/// With room made by the one that was asked for longest ago.
fn put(cache: &mut HashMap<u32, Known>, uid: u32, known: Known) {
    if cache.len() >= NAMES_MAX && !cache.contains_key(&uid) {
        let oldest = cache
            .iter()
            .min_by_key(|(_, known)| known.ask_from)
            .map(|(uid, _)| *uid);
        cache.remove(&oldest.expect("it is full"));
    }
    cache.insert(uid, known);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use tokio::sync::Semaphore;

    fn domain() -> DomainSection {
        toml::from_str("name = \"corp.example.com\"\nshort_name = \"CORP\"").expect("a domain")
    }

    /// Waits until the task has done what is asked: nothing else tells.
    async fn until(env: &Env, condition: impl Fn() -> bool) {
        while !condition() {
            env.sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn the_log_has_a_name_once_it_is_known_and_never_waits_for_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let env = firn_env::real(directory.path()).expect("an environment");
        let (asked, may_answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (counted, gate) = (asked.clone(), may_answer.clone());
        let names = DomainNames::with(&env, domain(), move |uid| {
            counted.fetch_add(1, Relaxed);
            let gate = gate.clone();
            let answer = async move {
                gate.acquire().await.expect("open").forget();
                match uid {
                    1_001_103 => Ok(Some("CORP\\anna".to_owned())),
                    1_001_104 => Ok(None),
                    _ => Err("winbindd hangs".to_owned()),
                }
            };
            answer.boxed()
        });
        assert!(names.owns(1_001_103) && !names.owns(1001));
        // winbindd hangs; each of these returns, and the task holds one question.
        for _ in 0..1000 {
            assert_eq!(names.name_of(1_001_103), None);
        }
        until(&env, || asked.load(Relaxed) == 1).await;
        for uid in 0..2000 {
            assert_eq!(names.name_of(1_010_000 + uid), None);
        }
        assert_eq!(names.name_of(1_001_104), None);
        may_answer.add_permits(1);
        until(&env, || names.name_of(1_001_103).is_some()).await;
        assert_eq!(names.name_of(1_001_103).as_deref(), Some("CORP\\anna"));
        // One question for a thousand lines, and of the others as many as there is room for.
        may_answer.add_permits(Semaphore::MAX_PERMITS / 2);
        until(&env, || asked.load(Relaxed) == 1 + QUESTIONS_MAX).await;
        assert_eq!(names.name_of(1_001_103).as_deref(), Some("CORP\\anna"));
        assert!(locked(&names.cache).len() <= 1 + QUESTIONS_MAX + 2);
    }

    #[test]
    fn the_cache_is_bounded_and_who_was_asked_for_longest_ago_goes() {
        let mut cache = HashMap::new();
        let at = |seconds: u64| Monotonic::default().after(Duration::from_secs(seconds));
        for uid in 0..u32::try_from(NAMES_MAX).expect("small") + 10 {
            let known = Known {
                name: Some(uid.to_string()),
                ask_from: at(u64::from(uid)),
            };
            put(&mut cache, uid, known);
        }
        assert_eq!(cache.len(), NAMES_MAX);
        assert!(!cache.contains_key(&9) && cache.contains_key(&10));
    }

    #[test]
    fn a_name_stays_while_nobody_answers() {
        let cache = Mutex::default();
        let now = Monotonic::default();
        keep(&cache, 7, Some(Some("CORP\\anna".into())), now);
        keep(&cache, 7, None, now);
        let name = |uid| locked(&cache).get(&uid).and_then(|known| known.name.clone());
        assert_eq!(name(7).as_deref(), Some("CORP\\anna"));
        keep(&cache, 7, Some(None), now);
        assert_eq!(name(7), None, "it is gone, and somebody says so");
    }
}
