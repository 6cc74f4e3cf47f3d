//! The edge's certificate after a long rest of the directory. An edge renews its certificate by means of the one it has, and that ends
//! after a week. Whoever has the directory has the service's secret too, so the next one is issued here.

use crate::{
    blocks::TRUST_DOMAIN,
    layout::{Layout, write_whole},
};
use anyhow::{Context as _, Result};
use firn_api::MasterSecret;
use firn_env::Env;
use firn_identity::{
    CERTIFICATE_SECONDS, CertificateDer, PeerIdentity, SigningKey, UnixTime, certificate_request, pem,
};
use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use zeroize::Zeroizing;

/// An edge that runs renews long before; with less than this left, none of its requests would be answered much longer.
const LEFT_LEAST: Duration = Duration::from_secs(3600);

/// Issues a certificate for the edge if it has joined and the one it has is over.
pub fn renew_if_over(env: &Env, layout: &Layout, master: &MasterSecret) -> Result<()> {
    let first = layout.path("edge/certificate.der");
    if !layout.has_edge() || !first.exists() {
        return Ok(());
    }
    let newest = layout.path("edge/peer.pem");
    let held = if newest.exists() { &newest } else { &first };
    let now = UNIX_EPOCH + Duration::from_millis(u64::try_from(env.wall().as_millis()).unwrap_or(0));
    let written = fs::metadata(held).and_then(|metadata| metadata.modified());
    let written = written.with_context(|| held.display().to_string())?;
    if !is_over(written, now) {
        return Ok(());
    }
    let first = CertificateDer::from(fs::read(&first).with_context(|| first.display().to_string())?);
    let name = PeerIdentity::of_certificate(&first).context("edge/certificate.der names nobody")?;
    let key = SigningKey::from_seed(env.random_bytes());
    let mut entropy = |bytes: &mut [u8]| {
        for chunk in bytes.chunks_mut(32) {
            chunk.copy_from_slice(&env.random_bytes::<32>()[..chunk.len()]);
        }
    };
    let issued = master
        .authority(TRUST_DOMAIN)?
        .issue(
            &certificate_request(&key, &name),
            &name,
            &[],
            UnixTime::from_wall(env.wall()),
            &mut entropy,
        )
        .context("the edge's certificate")?;
    let texts = [
        pem("PRIVATE KEY", &key.to_pkcs8()),
        pem("CERTIFICATE", &issued.certificate),
    ];
    let text: Zeroizing<String> = Zeroizing::new(texts.iter().map(|text| text.as_str()).collect());
    write_whole(&newest, text.as_bytes(), 0o600)?;
    tracing::info!("the edge's certificate was over; a new one was issued");
    Ok(())
}

fn is_over(written: SystemTime, now: SystemTime) -> bool {
    let age = now.duration_since(written).unwrap_or_default();
    age + LEFT_LEAST >= Duration::from_secs(CERTIFICATE_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_over_after_its_week_and_not_before() {
        let written = UNIX_EPOCH + Duration::from_secs(1_795_000_000);
        let after = |seconds: u64| is_over(written, written + Duration::from_secs(seconds));
        assert!(!after(0) && !after(CERTIFICATE_SECONDS / 2) && !after(CERTIFICATE_SECONDS - 3601));
        assert!(after(CERTIFICATE_SECONDS - 3600) && after(CERTIFICATE_SECONDS + 1));
        // A clock that is behind says nothing.
        assert!(!is_over(written, UNIX_EPOCH));
    }
}
