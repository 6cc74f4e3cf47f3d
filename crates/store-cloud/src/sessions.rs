//! Credentials that end by themselves, renewed before they do.
//!
//! ```text
//! start          the first request waits for a session
//! until then     requests take the session at hand, if whoever gives them has not said that others are to be asked for
//! RENEW_BEFORE   the next request asks for another; if none is given, the one at hand does until it ends, and somebody asks again
//!                after ASK_AGAIN
//! end            requests fail as if the store did not answer: nothing is lost, and clients wait
//! ```
//!
//! Requests ask one at a time; who comes meanwhile waits for the answer and takes it. A store that nobody uses asks for nothing.

use async_trait::async_trait;
use firn_env::{Env, Monotonic};
use futures::lock::Mutex;
use object_store::{CredentialProvider, aws::AwsCredential, azure::AzureCredential};
use std::{fmt, sync::Arc, time::Duration};

/// A third of a quarter of an hour, which is the shortest that clouds give: long enough to bridge a service that is being restarted.
const RENEW_BEFORE: Duration = Duration::from_secs(300);
/// Between two tries while the session at hand is good.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// A request that begins now should not end after the session.
const MARGIN: Duration = Duration::from_secs(15);

/// What opens a store for a while.
#[derive(Clone)]
pub enum SessionCredential {
    /// A session of AWS's token service.
    S3 {
        /// Public part.
        access_key_id: String,
        /// Secret part.
        secret_access_key: String,
        /// What marks it as a session.
        session_token: String,
    },
    /// A shared access signature of Azure's, as the query of a URL.
    AzureSas(String),
}

/// Credentials and how long they are good.
#[derive(Clone)]
pub struct Session {
    /// What opens the store.
    pub credential: SessionCredential,
    /// For how long from now on, by whoever gave it.
    pub good_for: Duration,
}

/// Who gives sessions of one store.
#[async_trait]
pub trait Sessions: Send + Sync {
    /// Starts a session. Whether the cloud or the service is away or refuses is for people to read; it is asked again.
    async fn start(&self) -> Result<Session, String>;

    /// A number that is another once sessions that were started before do not open all that is needed now: then the next request asks for
    /// another, and goes on with the one at hand only if none is given.
    fn generation(&self) -> u64 {
        0
    }
}

struct Held<C> {
    credential: Arc<C>,
    generation: u64,
    ends: Monotonic,
    ask_from: Monotonic,
}

/// The session at hand of one store.
pub(crate) struct Renewing<C> {
    env: Env,
    sessions: Arc<dyn Sessions>,
    read: fn(SessionCredential) -> Result<C, String>,
    held: Mutex<Option<Held<C>>>,
}

impl<C> fmt::Debug for Renewing<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Renewing(secret)")
    }
}

/// For a store of S3.
pub(crate) fn s3(env: &Env, sessions: Arc<dyn Sessions>) -> Renewing<AwsCredential> {
    Renewing::new(env, sessions, |credential| match credential {
        SessionCredential::S3 {
            access_key_id,
            secret_access_key,
            session_token,
        } => Ok(AwsCredential {
            key_id: access_key_id,
            secret_key: secret_access_key,
            token: Some(session_token),
        }),
        SessionCredential::AzureSas(_) => {
            Err("the session is one of Azure, and the store is one of S3".into())
        }
    })
}

/// For a container of Azure's.
pub(crate) fn azure(env: &Env, sessions: Arc<dyn Sessions>) -> Renewing<AzureCredential> {
    Renewing::new(env, sessions, |credential| match credential {
        SessionCredential::AzureSas(query) => object_store::azure::split_sas(&query)
            .map(AzureCredential::SASToken)
            // The error would show the signature.
            .map_err(|_| "the session's signature cannot be read".into()),
        SessionCredential::S3 { .. } => Err("the session is one of S3, and the store is one of Azure".into()),
    })
}

impl<C> Renewing<C> {
    fn new(env: &Env, sessions: Arc<dyn Sessions>, read: fn(SessionCredential) -> Result<C, String>) -> Self {
        Self {
            env: env.clone(),
            sessions,
            read,
            held: Mutex::new(None),
        }
    }

    async fn credential(&self) -> Result<Arc<C>, String> {
        // Held while the service is asked, so that it is asked once.
        let mut held = self.held.lock().await;
        let now = self.env.now();
        // Before the session is asked for: it may be of more than this, and never of less.
        let generation = self.sessions.generation();
        if let Some(held) = &*held
            && now < held.ask_from
            && now < held.ends
            && held.generation == generation
        {
            return Ok(held.credential.clone());
        }
        // The time that the answer takes is the session's already.
        let given = match self.sessions.start().await {
            Ok(session) => (self.read)(session.credential).map(|credential| (credential, session.good_for)),
            Err(why) => Err(why),
        };
        match (given, &mut *held) {
            (Ok((credential, good_for)), held) => {
                let good_for = good_for.saturating_sub(MARGIN);
                // One that is shorter than expected is renewed in its last third.
                let early = RENEW_BEFORE.min(good_for / 3);
                let credential = Arc::new(credential);
                *held = Some(Held {
                    credential: credential.clone(),
                    generation,
                    ends: now.after(good_for),
                    ask_from: now.after(good_for.saturating_sub(early)),
                });
                Ok(credential)
            }
            (Err(_), Some(held)) if self.env.now() < held.ends => {
                held.ask_from = self.env.now().after(ASK_AGAIN);
                held.generation = generation;
                Ok(held.credential.clone())
            }
            (Err(why), _) => Err(why),
        }
    }
}

#[async_trait]
impl<C: Send + Sync> CredentialProvider for Renewing<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        self.credential()
            .await
            .map_err(|why| object_store::Error::Generic {
                store: "session",
                source: format!("no credentials of the cloud: {why}").into(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_env::sim::Simulation;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const GOOD_FOR: Duration = Duration::from_secs(900);

    /// Numbers its sessions, and takes a second for each answer.
    struct Service {
        env: Env,
        asked: AtomicU64,
        is_away: AtomicBool,
        generation: AtomicU64,
    }

    #[async_trait]
    impl Sessions for Service {
        async fn start(&self) -> Result<Session, String> {
            let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            self.env.sleep(Duration::from_secs(1)).await;
            if self.is_away.load(Ordering::SeqCst) {
                return Err("the service is away".into());
            }
            Ok(Session {
                credential: SessionCredential::AzureSas(format!("sv=1&sig={number}")),
                good_for: GOOD_FOR,
            })
        }

        fn generation(&self) -> u64 {
            self.generation.load(Ordering::SeqCst)
        }
    }

    fn run<F: Future<Output = ()> + Send + 'static>(
        history: impl FnOnce(Env, Arc<Service>, Arc<Renewing<AzureCredential>>) -> F,
    ) {
        let simulation = Simulation::new(1);
        let env = simulation.machine("edge").env();
        let service = Arc::new(Service {
            env: env.clone(),
            asked: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            generation: AtomicU64::new(0),
        });
        let provider = Arc::new(azure(&env, service.clone()));
        simulation
            .run(history(env, service, provider))
            .expect("it comes to its end");
    }

    async fn number(provider: &Renewing<AzureCredential>) -> Option<String> {
        match &*provider.get_credential().await.ok()? {
            AzureCredential::SASToken(pairs) => Some(pairs[1].1.clone()),
            _ => None,
        }
    }

    #[test]
    fn many_requests_at_once_share_one_session_and_it_is_renewed_before_it_ends() {
        run(|env, service, provider| async move {
            let many: Vec<_> = (0..8)
                .map(|_| {
                    let provider = provider.clone();
                    env.spawn("request", async move { number(&provider).await })
                })
                .collect();
            for one in many {
                assert_eq!(one.await.expect("no panic").as_deref(), Some("1"));
            }
            let end = env.now().after(Duration::from_secs(24 * 3600));
            let mut last = 1;
            while env.now() < end {
                let shown: u64 = number(&provider)
                    .await
                    .expect("a session")
                    .parse()
                    .expect("a number");
                assert!(shown == last || shown == last + 1);
                last = shown;
                env.sleep(Duration::from_secs(60)).await;
            }
            // A session for each ten minutes, not for each request.
            assert!((140..=150).contains(&last), "{last}");
            assert_eq!(service.asked.load(Ordering::SeqCst), last);
        });
    }

    #[test]
    fn a_session_that_opens_too_little_is_replaced_at_the_next_request_and_bridged_while_none_is_given() {
        run(|env, service, provider| async move {
            assert_eq!(number(&provider).await.as_deref(), Some("1"));
            service.generation.store(1, Ordering::SeqCst);
            assert_eq!(number(&provider).await.as_deref(), Some("2"));
            assert_eq!(number(&provider).await.as_deref(), Some("2"));
            service.is_away.store(true, Ordering::SeqCst);
            service.generation.store(2, Ordering::SeqCst);
            for _ in 0..60 {
                assert_eq!(number(&provider).await.as_deref(), Some("2"));
                env.sleep(Duration::from_secs(1)).await;
            }
            let asked = service.asked.load(Ordering::SeqCst);
            assert!((5..12).contains(&asked), "asked {asked} times in a minute");
            service.is_away.store(false, Ordering::SeqCst);
            env.sleep(ASK_AGAIN).await;
            assert_ne!(number(&provider).await.as_deref(), Some("2"));
        });
    }

    #[test]
    fn a_service_that_is_away_is_bridged_until_the_session_ends_and_no_longer() {
        run(|env, service, provider| async move {
            assert_eq!(number(&provider).await.as_deref(), Some("1"));
            let began = env.now();
            service.is_away.store(true, Ordering::SeqCst);
            env.sleep(Duration::from_secs(600)).await;
            let mut answered = 0;
            while number(&provider).await.is_some() {
                answered += 1;
                env.sleep(Duration::from_secs(1)).await;
            }
            let lasted = env.now().since(began);
            assert!(
                lasted >= GOOD_FOR - MARGIN - Duration::from_secs(30),
                "{lasted:?}"
            );
            assert!(
                lasted <= GOOD_FOR,
                "nothing is signed by what has ended: {lasted:?}"
            );
            assert!(answered > 100);
            let asked = service.asked.load(Ordering::SeqCst);
            assert!(asked < 40, "asked for {asked} times in five minutes");
            service.is_away.store(false, Ordering::SeqCst);
            assert!(number(&provider).await.is_some());
        });
    }

    #[test]
    fn an_idle_store_asks_for_nothing_and_a_session_of_another_cloud_is_none() {
        run(|env, service, provider| async move {
            env.sleep(Duration::from_secs(3600)).await;
            assert_eq!(service.asked.load(Ordering::SeqCst), 0);
            drop(provider);
            let error = s3(&env, service).get_credential().await.expect_err("of Azure");
            let said = format!("{error:?} {error}");
            assert!(said.contains("one of Azure") && !said.contains("sig="), "{said}");
        });
    }
}
