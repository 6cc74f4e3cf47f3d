//! Where the roots are: in a table of the installation's own, or with the service that the edge joined.
//!
//! With the service an edge holds no credentials of a table. Each call goes with the edge's certificate, and a removed edge is
//! refused in the transaction itself: its roots end with its removal, whatever it still holds.

use crate::{
    config::Config,
    failure::Failure,
    joined::{Joined, Reply},
};
use async_trait::async_trait;
use firn_table::{TableAnswer, TableCall, TableError, TableService, TableUrl};
use std::{fmt, str::FromStr};

/// What `volume.table` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootsAt {
    /// The service that this edge joined.
    Service,
    /// A table that this edge has credentials of.
    Table(TableUrl),
}

impl FromStr for RootsAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "service" {
            return Ok(Self::Service);
        }
        text.parse()
            .map(Self::Table)
            .map_err(|error: firn_table::TableUrlError| format!("{error}; or write service"))
    }
}

impl fmt::Display for RootsAt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service => formatter.write_str("service"),
            Self::Table(url) => url.fmt(formatter),
        }
    }
}

/// The service as the keeper of this edge's roots.
pub struct ServiceRoots {
    config: Config,
    joined: Joined,
    path: String,
}

impl ServiceRoots {
    /// Reads what `firn edge join` left; makes no request.
    pub fn open(config: &Config) -> Result<Self, Failure> {
        let joined = Joined::load(config)?;
        let path = format!("edges/{}/volumes/{}/roots", joined.edge(), joined.volume);
        Ok(Self {
            config: config.clone(),
            joined,
            path,
        })
    }
}

#[async_trait]
impl TableService for ServiceRoots {
    async fn call(&self, call: &TableCall) -> Result<TableAnswer, TableError> {
        let body = serde_json::to_value(call)
            .map_err(|error| TableError::Limit(format!("the call has no JSON form: {error}")))?;
        // Files that cannot be read now may be readable again; meanwhile clients wait, and nothing is lost.
        let replied = self
            .joined
            .exchange(&self.config, &self.path, Some(&body))
            .await
            .map_err(|failure| TableError::Unavailable(failure.to_string()))?;
        understood(
            &replied.map_err(|why| TableError::Unavailable(format!("the service did not answer: {why}")))?,
        )
    }
}

fn understood(reply: &Reply) -> Result<TableAnswer, TableError> {
    if reply.status == 200 {
        return serde_json::from_slice(&reply.text).map_err(|error| {
            TableError::Unavailable(format!("the service's answer cannot be read: {error}"))
        });
    }
    let problem = reply.problem();
    let why = format!(
        "the service says {} {}: {}",
        reply.status, problem.code, problem.detail
    );
    Err(match (reply.status, &*problem.code) {
        (409, "changed_meanwhile") => TableError::Unavailable(why),
        (400 | 413 | 422, _) => TableError::Limit(why),
        _ => TableError::Refused(why),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, text: &str) -> Reply {
        Reply {
            status,
            text: text.as_bytes().to_vec(),
        }
    }

    #[test]
    fn the_service_is_named_by_a_word_and_a_table_by_its_address() {
        assert_eq!("service".parse(), Ok(RootsAt::Service));
        let url = "dynamodb://firn-roots?region=eu-central-1";
        assert_eq!(url.parse::<RootsAt>().expect("a table").to_string(), url);
        let error = "servise".parse::<RootsAt>().unwrap_err();
        assert!(
            error.contains("servise") && error.contains("or write service"),
            "{error}"
        );
    }

    #[test]
    fn only_a_clear_no_is_taken_for_one() {
        let good = reply(200, r#"{"condition_failed":{"index":3}}"#);
        assert_eq!(
            understood(&good).expect("an answer"),
            TableAnswer::ConditionFailed { index: 3 }
        );
        for (status, text) in [
            (200, "<html>a gateway's page</html>"),
            (409, r#"{"code":"changed_meanwhile","detail":"read it again"}"#),
        ] {
            let answer = understood(&reply(status, text));
            assert!(matches!(answer, Err(TableError::Unavailable(_))), "{answer:?}");
        }
        for (status, code) in [
            (401, "certificate_refused"),
            (403, "not_allowed"),
            (404, "not_found"),
            (409, "wrong_state"),
            (418, ""),
        ] {
            let text = format!(r#"{{"code":"{code}","detail":"its holder was removed"}}"#);
            let answer = understood(&reply(status, &text));
            assert!(
                matches!(&answer, Err(TableError::Refused(why)) if why.contains("its holder was removed")),
                "{answer:?}"
            );
        }
        let answer = understood(&reply(422, r#"{"code":"invalid_field","detail":"too many"}"#));
        assert!(matches!(answer, Err(TableError::Limit(_))), "{answer:?}");
    }
}
