//! Address of the roots: a table, or an anchor service.

use firn_anchor::{Anchor, AnchorBackend, AnchorRole};
use firn_anchor_service::{AnchorUrl, FunctionAnchor, HttpsAnchor, PemClients};
use firn_env::Env;
use firn_table::{Metered, TableError, TableUrl};
use std::{path::PathBuf, sync::Arc};

/// What the settings say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnchorAt {
    /// A table that this cleaner has credentials of.
    Table(TableUrl),
    /// An anchor service, where it is granted the role of a cleaner.
    Service {
        /// Its address.
        url: AnchorUrl,
        /// Files with the cleaner's key and certificate, and with the authority of the service's; for `https://` only.
        certificate: Option<(PathBuf, PathBuf)>,
    },
}

impl AnchorAt {
    /// Reads an address of either kind; `certificate` holds the files, as far as they are named.
    ///
    /// # Errors
    /// What is wrong, for a person.
    pub fn read(text: &str, certificate: (Option<PathBuf>, Option<PathBuf>)) -> Result<Self, String> {
        if !AnchorUrl::is_meant_by(text) {
            let table = text.parse().map(Self::Table);
            return match certificate {
                (None, None) => table.map_err(|error: firn_table::TableUrlError| {
                    format!("{error}; or https://…, or lambda://…")
                }),
                _ => Err("a table is reached with credentials, not with a certificate".into()),
            };
        }
        let url: AnchorUrl = text.parse()?;
        let certificate = match (&url, certificate) {
            (AnchorUrl::Host { .. }, (Some(identity), Some(authority))) => Some((identity, authority)),
            (AnchorUrl::Host { .. }, _) => {
                return Err("an https:// anchor needs two files: the cleaner's key and certificate, and the authority".into());
            }
            (AnchorUrl::Function(_), (None, None)) => None,
            (AnchorUrl::Function(_), _) => {
                return Err("a function is reached with credentials of AWS, not with a certificate".into());
            }
        };
        Ok(Self::Service { url, certificate })
    }

    pub(crate) async fn open(&self, env: &Env) -> Result<Roots, TableError> {
        Ok(match self {
            Self::Table(url) => {
                let (table, prices) = firn_table_cloud::open(env, url).await?;
                Roots::Table(Arc::new(Metered::new(table, prices)))
            }
            Self::Service { url, certificate } => Roots::Service(match (url, certificate) {
                (AnchorUrl::Host { host, volume }, Some((identity, authority))) => {
                    let url = format!("https://{host}/v1/anchor/{volume}");
                    Arc::new(HttpsAnchor::new(url, PemClients::new(identity, authority)))
                }
                (AnchorUrl::Host { .. }, None) => {
                    return Err(TableError::Refused(
                        "there is no certificate for the anchor".into(),
                    ));
                }
                (AnchorUrl::Function(url), _) => {
                    Arc::new(FunctionAnchor::new(url).map_err(TableError::Refused)?)
                }
            }),
        })
    }
}

/// What was opened.
pub(crate) enum Roots {
    Table(Arc<Metered>),
    Service(Arc<dyn AnchorBackend>),
}

impl Roots {
    /// The anchor of a target.
    pub(crate) fn anchor(&self, env: &Env, target: crate::Target) -> Anchor {
        let (env, family) = (env.clone(), target.family);
        match (self, target.volume) {
            (Self::Service(service), _) => Anchor::over(service.clone(), env, family),
            (Self::Table(table), None) => Anchor::new(table.clone(), env, family),
            (Self::Table(table), Some(volume)) => {
                let kept = volume.roots_partition();
                Anchor::within(table.clone(), env, family, kept, AnchorRole::Cleaner)
            }
        }
    }

    /// What requests to a table cost, in 10⁻⁹ dollars; a service's are its own matter.
    pub(crate) fn nano_dollars(&self) -> u64 {
        match self {
            Self::Table(table) => table.usage().nano_dollars,
            Self::Service(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_named_like_a_table_and_needs_what_it_knows_callers_by() {
        let volume = format!("ten_{}/vol_{}", "01".repeat(16), "02".repeat(16));
        let (https, lambda) = (
            format!("https://anchor.example:8447/{volume}"),
            format!("lambda://abc/{volume}?region=eu-central-1"),
        );
        let (none, both) = ((None, None), (Some("a".into()), Some("b".into())));
        for (text, certificate, said) in [
            ("redb:/srv/roots.redb", none.clone(), None),
            (&https, both.clone(), None),
            (&lambda, none.clone(), None),
            (
                "redb:/srv/roots.redb",
                both.clone(),
                Some("not with a certificate"),
            ),
            (&https, none.clone(), Some("needs two files")),
            (&https, (Some("a".into()), None), Some("needs two files")),
            (&lambda, both, Some("not with a certificate")),
            ("postgres://x", none, Some("or https://")),
        ] {
            match (AnchorAt::read(text, certificate), said) {
                (Ok(_), None) => {}
                (Err(why), Some(said)) => assert!(why.contains(said), "{why}"),
                (read, said) => panic!("{text}: {read:?} instead of {said:?}"),
            }
        }
    }
}
