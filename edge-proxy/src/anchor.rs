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
use async_trait::async_trait;
use firn_anchor::{Anchor, AnchorAnswer, AnchorBackend, AnchorCall};
use firn_anchor_service::{AnchorUrl, Clients, FunctionAnchor, HttpsAnchor, PemClients};
use firn_env::Env;
use firn_format::FamilyId;
use firn_table::{Metered, Table, TableError, TablePrices, TableUrl, TableUsage};
use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

/// What `volume.anchor` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnchorAt {
    /// `service`: the control plane that this edge joined.
    Service,
    /// `https://…` or `lambda://…`: an anchor service of its own.
    Url(AnchorUrl),
    /// A table that this edge has credentials of.
    Table(TableUrl),
}

impl FromStr for AnchorAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "service" {
            return Ok(Self::Service);
        }
        if AnchorUrl::is_meant_by(text) {
            return text.parse().map(Self::Url);
        }
        text.parse()
            .map(Self::Table)
            .map_err(|error: firn_table::TableUrlError| {
                format!("{error}; or write service, https://… or lambda://…")
            })
    }
}

impl fmt::Display for AnchorAt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service => formatter.write_str("service"),
            Self::Url(url) => url.fmt(formatter),
            Self::Table(url) => url.fmt(formatter),
        }
    }
}

/// How many writers this process drew at a service: sessions of the store that were given before a draw may not open the new writer's log.
#[derive(Clone, Debug, Default)]
pub struct Draws(Arc<AtomicU64>);

impl Draws {
    /// So far.
    pub fn count(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

/// A service, of which draws are counted.
struct Counting {
    service: Arc<HttpsAnchor<Certificates>>,
    draws: Draws,
}

#[async_trait]
impl AnchorBackend for Counting {
    async fn call(&self, call: AnchorCall) -> Result<AnchorAnswer, TableError> {
        let is_draw = matches!(call, AnchorCall::DrawWriter { .. });
        let answer = self.service.call(call).await;
        // Also one whose answer was lost: it may have happened.
        if is_draw {
            self.draws.0.fetch_add(1, SeqCst);
        }
        answer
    }
}

/// What this edge's roots are reached by, with its meter.
#[derive(Clone)]
pub enum Roots {
    Table(Arc<Metered>),
    Service(Arc<HttpsAnchor<Certificates>>, Draws),
    Function(Arc<FunctionAnchor>),
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
        Ok(Self::Service(
            Arc::new(HttpsAnchor::new(url, clients)),
            Draws::default(),
        ))
    }

    /// A `firn-anchor`, or a function. Makes no request.
    pub fn at(config: &Config, url: &AnchorUrl) -> Result<Self, Failure> {
        // What is missing is told at the start, not at the first commit.
        let (host, volume) = match url {
            AnchorUrl::Host { host, volume } => (host, volume),
            AnchorUrl::Function(url) => {
                let function = FunctionAnchor::new(url)
                    .map_err(|why| Failure::usage(format!("the anchor at {}: {why}", url.host())))?;
                return Ok(Self::Function(Arc::new(function)));
            }
        };
        let clients = PemClients::new(file(config, "anchor.pem"), file(config, "anchor-authority.pem"));
        clients
            .client()
            .map_err(|why| Failure::usage(format!("the certificate for {host}: {why}")))?;
        let url = format!("https://{host}/v1/anchor/{volume}");
        let service = HttpsAnchor::new(url, Certificates::Own(clients));
        Ok(Self::Service(Arc::new(service), Draws::default()))
    }

    /// A table of the installation's own.
    pub fn over(table: Arc<dyn Table>, prices: TablePrices) -> Self {
        Self::Table(Arc::new(Metered::new(table, prices)))
    }

    /// The anchor of a family there.
    pub fn anchor(&self, env: &Env, family: FamilyId) -> Anchor {
        match self {
            Self::Table(table) => Anchor::new(table.clone(), env.clone(), family),
            Self::Service(service, draws) => {
                let counting = Counting {
                    service: service.clone(),
                    draws: draws.clone(),
                };
                Anchor::over(Arc::new(counting), env.clone(), family)
            }
            Self::Function(function) => {
                let backend: Arc<dyn AnchorBackend> = function.clone();
                Anchor::over(backend, env.clone(), family)
            }
        }
    }

    /// How many writers were drawn there; none at what gives no sessions.
    pub fn draws(&self) -> Draws {
        match self {
            Self::Service(_, draws) => draws.clone(),
            Self::Table(_) | Self::Function(_) => Draws::default(),
        }
    }

    /// What was used since the start.
    pub fn usage(&self) -> TableUsage {
        match self {
            Self::Table(table) => table.usage(),
            Self::Service(service, _) => service.usage(),
            Self::Function(function) => function.usage(),
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
            "azure-table://firnroots?account=acme".to_owned(),
            format!("https://anchor.example:8443/{volume}"),
            format!("lambda://abc123/{volume}?region=eu-central-1"),
        ] {
            assert_eq!(url.parse::<AnchorAt>().expect("a place").to_string(), url);
        }
        for (wrong, why) in [
            ("servise", "or write service"),
            ("http://anchor.example/", "or write service"),
            ("https://anchor.example", "names no volume"),
            ("lambda://abc123", "names no volume"),
        ] {
            let error = wrong.parse::<AnchorAt>().unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
