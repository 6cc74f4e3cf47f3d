//! Client certificate of this edge towards the service: it ends after a week, and is renewed when half of it is over.
//!
//! ```text
//! key.der, certificate.der     as `firn edge join` left them
//! peer.pem                     the newest key with its certificate, once there was a renewal; replaced whole
//! ```
//!
//! Each renewal makes a new key, so that a stolen one is of use for a week at most after the thief has lost the machine.

use crate::{
    config::Config,
    failure::Failure,
    joined::{Asked, Joined, enrolment_file as file, read},
    replace::replace,
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_env::Env;
use firn_identity::{
    CERTIFICATE_SECONDS, CertificateDer, PeerIdentity, SigningKey, certificate_request, pem,
};
use serde::Deserialize;
use std::{
    fs,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use zeroize::Zeroizing;

/// Between two looks whether it is time.
const LOOK: Duration = Duration::from_secs(3600);

fn newest(config: &Config) -> PathBuf {
    file(config, "peer.pem")
}

/// The newest key and certificate.
pub fn identity(config: &Config) -> Result<reqwest::Identity, Failure> {
    let path = newest(config);
    let text = if path.exists() {
        read(&path)?
    } else {
        let key = read(&file(config, "key.der"))?;
        let certificate = read(&file(config, "certificate.der"))?;
        together(&key, &certificate)
    };
    reqwest::Identity::from_pem(&text)
        .map_err(|error| Failure::usage(format!("this edge's certificate: {error}")))
}

fn together(key: &[u8], certificate: &[u8]) -> Zeroizing<Vec<u8>> {
    let texts = [pem("PRIVATE KEY", key), pem("CERTIFICATE", certificate)];
    Zeroizing::new(texts.iter().flat_map(|text| text.bytes()).collect())
}

/// When the newest certificate was written, which tells it from the one before.
pub fn written(config: &Config) -> Result<SystemTime, Failure> {
    let path = newest(config);
    let path = if path.exists() {
        path
    } else {
        file(config, "certificate.der")
    };
    fs::metadata(&path)
        .and_then(|metadata| metadata.modified())
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Whether half of the certificate's time is over, by the age of its file.
fn is_due(config: &Config, env: &Env) -> Result<bool, Failure> {
    let written = written(config)?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Duration::from_millis(u64::try_from(env.wall().as_millis()).unwrap_or(0));
    Ok(now.saturating_sub(written) >= Duration::from_secs(CERTIFICATE_SECONDS / 2))
}

/// Renews for ever, when it is time; end it by aborting its task.
pub async fn keep_renewed(config: Config, env: Env) {
    loop {
        match renew_if_due(&config, &env).await {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, "the certificate was not renewed; the next look tries again")
            }
        }
        env.sleep(LOOK).await;
    }
}

#[derive(Deserialize)]
struct Issued {
    certificate: String,
}

async fn renew_if_due(config: &Config, env: &Env) -> Result<(), Failure> {
    if !is_due(config, env)? {
        return Ok(());
    }
    let joined = Joined::load(config)?;
    // The name is for ever that of the first certificate.
    let first = CertificateDer::from(read(&file(config, "certificate.der"))?.to_vec());
    let name = PeerIdentity::of_certificate(&first)
        .map_err(|error| Failure::usage(format!("this edge's certificate names nobody: {error}")))?;
    let key = SigningKey::from_seed(env.random_bytes());
    let request = certificate_request(&key, &name);
    let body = serde_json::json!({ "certificate_request": STANDARD_NO_PAD.encode(request) });
    let path = format!("edges/{}/certificate", joined.edge());
    let text = match joined.ask(config, &path, Some(&body)).await? {
        Asked::Answer(text) => text,
        Asked::Nothing => return Err(Failure::new("the service knows no such edge")),
        Asked::Silent(why) => return Err(Failure::new(format!("the service did not answer: {why}"))),
    };
    let issued = serde_json::from_slice::<Issued>(&text)
        .ok()
        .and_then(|issued| STANDARD_NO_PAD.decode(issued.certificate).ok())
        .map(CertificateDer::from)
        .filter(|certificate| PeerIdentity::of_certificate(certificate).ok().as_ref() == Some(&name))
        .ok_or_else(|| Failure::new("what the service issued is no certificate of this edge's name"))?;
    replace(&newest(config), &together(&key.to_pkcs8(), &issued))
        .map_err(|error| Failure::new(format!("{}: {error}", newest(config).display())))?;
    tracing::info!("the certificate was renewed");
    Ok(())
}
