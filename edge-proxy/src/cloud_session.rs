//! Credentials of the cloud from the service that this edge joined: for a quarter of an hour, for this volume's place, without the
//! right to delete or to overwrite. Whoever steals the edge has no others.

use crate::{anchor::Draws, config::Config, failure::Failure, joined::Joined};
use async_trait::async_trait;
use firn_env::Env;
use firn_store::StoreUrl;
use firn_store_cloud::{Session, SessionCredential, Sessions};
use serde::Deserialize;
use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

/// What `volume.credentials` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CredentialsFrom {
    /// What the environment of this process holds.
    #[default]
    Environment,
    /// The service that this edge joined.
    Service,
}

/// Clouds give none that are shorter, and the service asks for none that are longer: where this machine's clock says otherwise, it is
/// the clock that is wrong.
const SESSION: Duration = Duration::from_secs(900);
/// However wrong the clock, the service is not asked for each request.
const SESSION_LEAST: Duration = Duration::from_secs(60);

/// What the service answers.
#[derive(Deserialize)]
struct Started {
    bucket: String,
    prefix: String,
    #[serde(default)]
    access_key_id: String,
    #[serde(default)]
    secret_access_key: String,
    #[serde(default)]
    session_token: String,
    #[serde(default)]
    azure_account: String,
    #[serde(default)]
    azure_signature: String,
    #[serde(default)]
    is_held_to_its_logs: bool,
    expires: u64,
}

/// The service as the giver of this edge's sessions.
pub struct ServiceSessions {
    env: Env,
    config: Config,
    joined: Joined,
    path: String,
    draws: Draws,
    /// The volume was granted to this edge: a session opens the logs of the writers that were drawn before it.
    is_held: AtomicBool,
}

impl ServiceSessions {
    /// Reads what `firn edge join` left; makes no request.
    pub fn open(env: &Env, config: &Config, draws: Draws) -> Result<Self, Failure> {
        let joined = Joined::load(config)?;
        let path = format!("edges/{}/volumes/{}/session", joined.edge(), joined.volume);
        Ok(Self {
            env: env.clone(),
            config: config.clone(),
            joined,
            path,
            draws,
            is_held: AtomicBool::new(false),
        })
    }
}

#[async_trait]
impl Sessions for ServiceSessions {
    async fn start(&self) -> Result<Session, String> {
        let body = serde_json::json!({});
        let replied = self
            .joined
            .exchange(&self.config, &self.path, Some(&body))
            .await
            .map_err(|failure| failure.to_string())?;
        let reply = replied.map_err(|why| format!("the service did not answer: {why}"))?;
        if reply.status != 201 {
            let problem = reply.problem();
            return Err(format!(
                "the service says {} {}: {}",
                reply.status, problem.code, problem.detail
            ));
        }
        // The reply itself is not shown: it holds secrets.
        let started: Started = serde_json::from_slice(&reply.text)
            .map_err(|_| "the service's answer cannot be read".to_owned())?;
        self.is_held.store(started.is_held_to_its_logs, SeqCst);
        let now = self.env.wall().as_millis() / 1000;
        taken(started, &self.config.volume.store, now)
    }

    fn generation(&self) -> u64 {
        match self.is_held.load(SeqCst) {
            true => self.draws.count(),
            false => 0,
        }
    }
}

/// The session, if it is of the store that this edge is configured for. `now` is in seconds since 1970.
fn taken(started: Started, store: &StoreUrl, now: i64) -> Result<Session, String> {
    let Started { bucket, prefix, .. } = &started;
    let (is_ours, given) = match store {
        StoreUrl::S3 {
            bucket: own,
            prefix: below,
            ..
        } => (
            started.azure_account.is_empty() && own == bucket && below == prefix,
            format!("s3://{bucket}/{prefix}"),
        ),
        StoreUrl::Azure {
            container,
            prefix: below,
            account,
            ..
        } => {
            let given = &started.azure_account;
            let is_account = account.as_ref().is_none_or(|account| account == given);
            (
                !given.is_empty() && is_account && container == bucket && below == prefix,
                format!("azure://{bucket}/{prefix}?account={given}"),
            )
        }
        StoreUrl::Directory { .. } | StoreUrl::Gcs { .. } => (false, format!("{bucket}/{prefix}")),
    };
    if !is_ours {
        return Err(format!(
            "the service keeps this volume in {given}, and volume.store names another place"
        ));
    }
    let left = i64::try_from(started.expires)
        .unwrap_or(i64::MAX)
        .saturating_sub(now);
    let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
    Ok(Session {
        credential: if started.azure_signature.is_empty() {
            SessionCredential::S3 {
                access_key_id: started.access_key_id,
                secret_access_key: started.secret_access_key,
                session_token: started.session_token,
            }
        } else {
            SessionCredential::AzureSas(started.azure_signature)
        },
        good_for: left.clamp(SESSION_LEAST, SESSION),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_795_302_000;

    fn started(text: &str) -> Started {
        serde_json::from_str(text).expect("an answer")
    }

    fn s3(expires: i64) -> Started {
        let text = r#"{"bucket":"firn-eu","prefix":"ten_1/vol_1","access_key_id":"ASIA","secret_access_key":"s",
            "session_token":"t","expires":EXPIRES}"#;
        started(&text.replace("EXPIRES", &expires.to_string()))
    }

    fn azure() -> Started {
        started(
            r#"{"bucket":"vol-1","prefix":"","azure_account":"acme","azure_signature":"sv=1&sig=2","expires":1795302900}"#,
        )
    }

    #[test]
    fn a_session_is_taken_for_the_store_it_opens_and_for_no_other() {
        for (url, is_s3) in [
            ("s3://firn-eu/ten_1/vol_1?region=eu-central-1", Some(true)),
            ("s3://firn-eu/ten_1/vol_2", None),
            ("s3://firn-us/ten_1/vol_1", None),
            ("azure://firn-eu/ten_1/vol_1?account=acme", None),
            ("gs://firn-eu/ten_1/vol_1", None),
            ("file:///srv", None),
            ("azure://vol-1?account=acme", Some(false)),
            ("azure://vol-1", Some(false)),
            ("azure://vol-1?account=other", None),
            ("azure://vol-1/x?account=acme", None),
        ] {
            let store = url.parse().expect("a store");
            for (session, is_given) in [
                (s3(NOW + 900), is_s3 == Some(true)),
                (azure(), is_s3 == Some(false)),
            ] {
                match taken(session, &store, NOW) {
                    Ok(_) => assert!(is_given, "{url}"),
                    Err(said) => assert!(!is_given && said.contains("another place"), "{url}: {said}"),
                }
            }
        }
        // A bucket of the same name in the other cloud is another place.
        let store = "s3://vol-1".parse().expect("a store");
        assert!(taken(azure(), &store, NOW).is_err());
    }

    #[test]
    fn a_clock_that_is_wrong_neither_stretches_a_session_nor_asks_for_one_each_request() {
        let store = "s3://firn-eu/ten_1/vol_1".parse().expect("a store");
        for (ahead, seconds) in [(0, 900), (-600, 900), (600, 300), (7200, 60), (i64::MIN / 2, 900)] {
            let session = taken(s3(NOW + 900), &store, NOW.saturating_add(ahead)).expect("a session");
            assert_eq!(session.good_for.as_secs(), seconds, "{ahead}");
        }
    }
}
