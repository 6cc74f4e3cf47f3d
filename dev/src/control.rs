//! The API, over TLS, as `firn-api serve` runs it.

use crate::{
    blocks::TRUST_DOMAIN,
    layout::{Layout, write_whole},
};
use anyhow::{Context as _, Result, bail};
use firn_api::{
    App, Bound, FileMailer, Fleet, Limits, Listening, MasterSecret, NoCloud, POLICY, Parts, Recorder,
    RegoPolicy,
};
use firn_blockd_placement::Placement;
use firn_identity::pem;
use firn_table::Table;
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};

/// A running API.
pub struct Api {
    pub url: String,
    serving: JoinHandle<()>,
}

/// Serves until `stopping` says so.
pub async fn start(
    layout: &Layout,
    master: MasterSecret,
    table: Arc<dyn Table>,
    cluster: Placement,
    address: SocketAddr,
    recorder: Option<Recorder>,
    mut stopping: watch::Receiver<bool>,
) -> Result<Api> {
    let authority = master.authority(TRUST_DOMAIN)?;
    let text = pem("CERTIFICATE", authority.certificate());
    write_whole(&layout.path("authority.pem"), text.as_bytes(), 0o644)?;
    let env = firn_env::real(&layout.path("api"))?;
    let url = format!("https://localhost:{}", address.port());
    let app = App::new(Parts {
        table,
        master,
        policy: Arc::new(RegoPolicy::compile(POLICY)?),
        mailer: Arc::new(FileMailer::new(&env)),
        pool: None,
        fleet_tenant: None,
        placement: Arc::new(Fleet::new(cluster)),
        cloud: Arc::new(NoCloud),
        issuer: url.clone(),
        machine_server: None,
        trust_domain: TRUST_DOMAIN.into(),
        token_generation: 0,
        disk_capability_seconds: firn_api::DISK_CAPABILITY_SECONDS,
        spread_ledger: false,
        limits: Limits::default(),
        env,
    })?;
    let names = vec!["localhost".into(), address.ip().to_string()];
    let listening = Listening::new(address, Some(names), "dev");
    let (ready, told) = oneshot::channel();
    let serving = tokio::spawn(async move {
        let stop = async move {
            // A sender that is gone stops us too.
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        let ready = |bound: Bound| {
            // Nobody waits any more if the start failed elsewhere.
            let _ = ready.send(bound.tenants);
        };
        if let Err(error) = firn_api::serve_recorded(&app, &listening, recorder, ready, stop).await {
            tracing::error!(%error, "the API ended");
            firn_env::eprintln!("firn-dev: the API ended: {error}");
        }
    });
    let Ok(address) = told.await else {
        serving.await.context("the API panicked")?;
        bail!("the API cannot listen on {address}; name another place with --api");
    };
    Ok(Api {
        url: format!("https://localhost:{}", address.port()),
        serving,
    })
}

impl Api {
    pub async fn ended(self) {
        // A panic is in the log already.
        let _ = self.serving.await;
    }
}
