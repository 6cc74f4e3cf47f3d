//! Hosts that an edge will ask: of its store, of its table or anchor, of the service that it joined.

use super::Subject;
use crate::{
    anchor::AnchorAt,
    cloud_session::CredentialsFrom,
    config::Config,
    joined::{Joined, is_joined},
};
use firn_anchor_service::AnchorUrl;
use firn_store::StoreUrl;
use firn_table::TableUrl;

/// The region of requests where nothing names one.
const DEFAULT_REGION: &str = "us-east-1";

/// See the module.
#[derive(Clone)]
pub struct Host {
    /// What it is asked for.
    pub what: &'static str,
    /// `https://host` or `http://host:port`.
    pub base: String,
    /// The volume whose certificate opens it, if it wants one.
    pub certificate: Option<Config>,
}

impl Host {
    /// Host and port, as they are connected to.
    pub fn address(&self) -> Option<String> {
        let (scheme, rest) = self.base.split_once("://")?;
        let host = rest.split('/').next()?;
        let has_port = match host.rsplit_once(':') {
            Some((_, port)) => !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()),
            None => false,
        };
        Some(match (has_port, scheme) {
            (true, _) => host.to_owned(),
            (false, "http") => format!("{host}:80"),
            (false, _) => format!("{host}:443"),
        })
    }
}

/// Each once.
pub fn all(subject: &Subject<'_>) -> Vec<Host> {
    let mut hosts: Vec<Host> = Vec::new();
    for config in &subject.edge.volumes {
        let store = store(&config.volume.store).map(|base| ("store", base, None));
        let anchor = match &config.volume.anchor {
            AnchorAt::Table(url) => table(url).map(|base| ("table", base, None)),
            AnchorAt::Url(AnchorUrl::Host { host, .. }) => {
                Some(("anchor", format!("https://{host}"), Some(config.clone())))
            }
            AnchorAt::Url(AnchorUrl::Function(url)) => {
                let base = url
                    .endpoint
                    .clone()
                    .unwrap_or_else(|| format!("https://{}", url.host()));
                Some(("anchor", base, None))
            }
            AnchorAt::Service => service(config),
        };
        let session = match config.volume.credentials {
            CredentialsFrom::Service => service(config),
            CredentialsFrom::Environment => None,
        };
        for (what, base, certificate) in [store, anchor, session].into_iter().flatten() {
            if hosts.iter().all(|known| known.base != base) {
                hosts.push(Host {
                    what,
                    base,
                    certificate,
                });
            }
        }
    }
    hosts
}

fn service(config: &Config) -> Option<(&'static str, String, Option<Config>)> {
    if !is_joined(config) {
        return None;
    }
    let joined = Joined::load(config).ok()?;
    let server = joined.invitation.server.trim_end_matches('/').to_owned();
    Some(("service", server, Some(config.clone())))
}

fn region(of: Option<&String>) -> String {
    let named = ["AWS_REGION", "AWS_DEFAULT_REGION"];
    let variable = || named.iter().find_map(|name| std::env::var(name).ok());
    of.cloned()
        .or_else(variable)
        .unwrap_or_else(|| DEFAULT_REGION.into())
}

fn store(url: &StoreUrl) -> Option<String> {
    match url {
        StoreUrl::Directory { .. } => None,
        StoreUrl::S3 {
            endpoint: Some(endpoint),
            ..
        }
        | StoreUrl::Azure {
            endpoint: Some(endpoint),
            ..
        }
        | StoreUrl::Gcs {
            endpoint: Some(endpoint),
            ..
        } => Some(endpoint.clone()),
        StoreUrl::S3 { region: named, .. } => Some(
            std::env::var("AWS_ENDPOINT_URL")
                .unwrap_or_else(|_| format!("https://s3.{}.amazonaws.com", region(named.as_ref()))),
        ),
        StoreUrl::Azure { account, .. } => {
            let account = account
                .clone()
                .or_else(|| std::env::var("AZURE_STORAGE_ACCOUNT_NAME").ok())?;
            Some(format!("https://{account}.blob.core.windows.net"))
        }
        StoreUrl::Gcs { .. } => Some("https://storage.googleapis.com".into()),
    }
}

fn table(url: &TableUrl) -> Option<String> {
    match url {
        TableUrl::Redb { .. } => None,
        TableUrl::DynamoDb(url) => {
            let own = || format!("https://dynamodb.{}.amazonaws.com", region(url.region.as_ref()));
            Some(url.endpoint.clone().unwrap_or_else(own))
        }
        TableUrl::AzureTable(url) => {
            let account = url
                .account
                .clone()
                .or_else(|| std::env::var("AZURE_STORAGE_ACCOUNT_NAME").ok());
            let own = || account.map(|account| format!("https://{account}.table.core.windows.net"));
            url.endpoint.clone().or_else(own)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_the_schemes_unless_it_is_named() {
        let address = |base: &str| {
            let host = Host {
                what: "store",
                base: base.into(),
                certificate: None,
            };
            host.address().expect("an address")
        };
        assert_eq!(
            address("https://s3.eu-west-1.amazonaws.com"),
            "s3.eu-west-1.amazonaws.com:443"
        );
        assert_eq!(address("http://127.0.0.1:9000/x"), "127.0.0.1:9000");
        assert_eq!(address("http://[::1]:9000"), "[::1]:9000");
        assert_eq!(address("https://[::1]"), "[::1]:443");
    }
}
