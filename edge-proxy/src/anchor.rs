//! Anchor selection: the roots are in a table of the installation's own, or behind an anchor service.
//!
//! With a service an edge holds no credentials of a table. Each call goes with the edge's certificate. Where the service is the
//! control plane that the edge joined, a removed edge is refused in the transaction itself: its roots end with its removal, whatever it
//! still holds.

use crate::{
    config::Config,
    failure::Failure,
    joined::{Joined, file},
};
use firn_anchor::{Anchor, AnchorBackend};
use firn_anchor_service::{Clients, HttpsAnchor, PemClients};
use firn_env::Env;
use firn_format::FamilyId;
use firn_identity::TenantVolume;
use firn_table::{Metered, Table, TablePrices, TableUrl, TableUsage};
use std::{fmt, str::FromStr, sync::Arc};

/// What `volume.anchor` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnchorAt {
    /// `service`: the control plane that this edge joined.
    Service,
    /// `https://…`: an anchor service of its own.
    Url(AnchorUrl),
    /// A table that this edge has credentials of.
    Table(TableUrl),
}

/// The address of an anchor service: `https://HOST[:PORT]/TENANT/VOLUME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorUrl {
    host: String,
    volume: TenantVolume,
}

impl FromStr for AnchorAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "service" {
            return Ok(Self::Service);
        }
        if let Some(place) = text.strip_prefix("https://") {
            let (host, volume) = place
                .split_once('/')
                .ok_or_else(|| format!("{text} names no volume: https://HOST[:PORT]/TENANT/VOLUME"))?;
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
            if host.is_empty() || !host.bytes().all(plain) {
                return Err(format!("{host:?} is no host: https://HOST[:PORT]/TENANT/VOLUME"));
            }
            return Ok(Self::Url(AnchorUrl {
                host: host.to_owned(),
                volume: volume.parse().map_err(|error| format!("{volume}: {error}"))?,
            }));
        }
        text.parse()
            .map(Self::Table)
            .map_err(|error: firn_table::TableUrlError| format!("{error}; or write service, or https://…"))
    }
}

impl fmt::Display for AnchorAt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service => formatter.write_str("service"),
            Self::Url(AnchorUrl { host, volume }) => write!(formatter, "https://{host}/{volume}"),
            Self::Table(url) => url.fmt(formatter),
        }
    }
}

/// What this edge's roots are reached by, with its meter.
#[derive(Clone)]
pub enum Roots {
    Table(Arc<Metered>),
    Service(Arc<HttpsAnchor<Certificates>>),
}

impl Roots {
    /// The control plane that this edge joined. Makes no request.
    pub fn of_joined(config: &Config) -> Result<Self, Failure> {
        let joined = Joined::load(config)?;
        let url = joined.at(&format!(
            "edges/{}/volumes/{}/anchor",
            joined.edge(),
            joined.volume
        ));
        let clients = Certificates::Joined(Box::new(config.clone()), Box::new(joined));
        Ok(Self::Service(Arc::new(HttpsAnchor::new(url, clients))))
    }

    /// A `firn-anchor`. Makes no request.
    pub fn at(config: &Config, url: &AnchorUrl) -> Result<Self, Failure> {
        let clients = PemClients::new(file(config, "anchor.pem"), file(config, "anchor-authority.pem"));
        // Told at the start, not at the first commit.
        clients
            .client()
            .map_err(|why| Failure::usage(format!("the certificate for {}: {why}", url.host)))?;
        let url = format!("https://{}/v1/anchor/{}", url.host, url.volume);
        let service = HttpsAnchor::new(url, Certificates::Own(clients));
        Ok(Self::Service(Arc::new(service)))
    }

    /// A table of the installation's own.
    pub fn over(table: Arc<dyn Table>, prices: TablePrices) -> Self {
        Self::Table(Arc::new(Metered::new(table, prices)))
    }

    /// The anchor of a family there.
    pub fn anchor(&self, env: &Env, family: FamilyId) -> Anchor {
        match self {
            Self::Table(table) => Anchor::new(table.clone(), env.clone(), family),
            Self::Service(service) => {
                let backend: Arc<dyn AnchorBackend> = service.clone();
                Anchor::over(backend, env.clone(), family)
            }
        }
    }

    /// What was used since the start.
    pub fn usage(&self) -> TableUsage {
        match self {
            Self::Table(table) => table.usage(),
            Self::Service(service) => service.usage(),
        }
    }
}

/// Who this edge is towards the service.
pub enum Certificates {
    /// What `firn edge join` left, renewed by the control plane.
    Joined(Box<Config>, Box<Joined>),
    /// Files that the operator puts and replaces.
    Own(PemClients),
}

impl Clients for Certificates {
    fn client(&self) -> Result<reqwest::Client, String> {
        match self {
            // Files that cannot be read now may be readable again; meanwhile clients wait, and nothing is lost.
            Self::Joined(config, joined) => joined.client(config).map_err(|failure| failure.to_string()),
            Self::Own(clients) => clients.client(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_named_by_a_word_an_anchor_and_a_table_by_their_addresses() {
        assert_eq!("service".parse(), Ok(AnchorAt::Service));
        let volume = format!("ten_{}/vol_{}", "01".repeat(16), "02".repeat(16));
        for url in [
            "dynamodb://firn-roots?region=eu-central-1".to_owned(),
            format!("https://anchor.example:8443/{volume}"),
            format!("https://[::1]:8443/{volume}"),
        ] {
            assert_eq!(url.parse::<AnchorAt>().expect("a place").to_string(), url);
        }
        for (wrong, why) in [
            ("servise", "or write service"),
            ("http://anchor.example/", "or write service"),
            ("https://anchor.example", "names no volume"),
            ("https:///ten_1/vol_1", "is no host"),
            ("https://user@anchor.example/ten_1/vol_1", "is no host"),
            ("https://anchor.example/ten_1/vol_1", "not TENANT/VOLUME"),
            ("https://anchor.example/ten_1/vol_1?x=1", "not TENANT/VOLUME"),
        ] {
            let error = wrong.parse::<AnchorAt>().unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
