//! Address of an anchor service, as edges and cleaners write it.
//!
//! ```text
//! https://HOST[:PORT]/TENANT/VOLUME                              a firn-anchor; the caller has a client certificate
//! lambda://ID/TENANT/VOLUME?region=R[&endpoint=http://IP:PORT]   the function whose URL begins with ID; the caller has credentials of AWS
//! ```
//!
//! `endpoint` is an emulator's address.

use firn_identity::TenantVolume;
use std::{fmt, str::FromStr};

/// The address of an anchor service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnchorUrl {
    /// A process, reached by mutual TLS.
    Host {
        /// Host and port.
        host: String,
        /// Whose tuples are asked for.
        volume: TenantVolume,
    },
    /// An AWS Lambda function, reached by its URL.
    Function(FunctionUrl),
}

/// The address of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionUrl {
    /// What its URL begins with.
    pub id: String,
    /// Its region.
    pub region: String,
    /// An address other than AWS's own.
    pub endpoint: Option<String>,
    /// Whose tuples are asked for.
    pub volume: TenantVolume,
}

const FORM: &str = "https://HOST[:PORT]/TENANT/VOLUME, or lambda://ID/TENANT/VOLUME?region=REGION";

impl AnchorUrl {
    /// Whether a text is meant to be one.
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with("https://") || text.starts_with("lambda://")
    }

    /// Whose tuples are asked for.
    pub fn volume(&self) -> TenantVolume {
        match self {
            Self::Host { volume, .. } | Self::Function(FunctionUrl { volume, .. }) => *volume,
        }
    }
}

impl FunctionUrl {
    /// The name by which AWS reaches it.
    pub fn host(&self) -> String {
        let zone = match self.endpoint {
            Some(_) => "emulator",
            None => "on.aws",
        };
        format!("{}.lambda-url.{}.{zone}", self.id, self.region)
    }
}

fn volume(host: &str, text: &str) -> Result<TenantVolume, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    if host.is_empty() || !host.bytes().all(plain) {
        return Err(format!("{host:?} is no host: write {FORM}"));
    }
    text.parse().map_err(|error| format!("{text}: {error}"))
}

impl FromStr for AnchorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unnamed = || format!("{text} names no volume: write {FORM}");
        if let Some(place) = text.strip_prefix("https://") {
            let (host, named) = place.split_once('/').ok_or_else(unnamed)?;
            let volume = volume(host, named)?;
            let host = host.to_owned();
            return Ok(Self::Host { host, volume });
        }
        let Some(place) = text.strip_prefix("lambda://") else {
            return Err(format!("{text:?} is no anchor service: write {FORM}"));
        };
        let (place, query) = place.split_once('?').unwrap_or((place, ""));
        let (id, named) = place.split_once('/').ok_or_else(unnamed)?;
        let volume = volume(id, named)?;
        let (mut region, mut endpoint) = (None, None);
        let word = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("region", value)) if region.is_none() && !value.is_empty() && word(value) => {
                    region = Some(value.to_owned());
                }
                Some(("endpoint", value)) if endpoint.is_none() && value.starts_with("http://") => {
                    endpoint = Some(value.trim_end_matches('/').to_owned());
                }
                _ => {
                    return Err(format!(
                        "{part:?} is not region=REGION or endpoint=http://HOST:PORT, or is there twice"
                    ));
                }
            }
        }
        if !word(id) {
            return Err(format!(
                "{id:?} is not what a function's URL begins with: write {FORM}"
            ));
        }
        Ok(Self::Function(FunctionUrl {
            id: id.to_owned(),
            region: region.ok_or_else(|| format!("{text} names no region: write {FORM}"))?,
            endpoint,
            volume,
        }))
    }
}

impl fmt::Display for AnchorUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { host, volume } => write!(formatter, "https://{host}/{volume}"),
            Self::Function(FunctionUrl {
                id,
                region,
                endpoint,
                volume,
            }) => {
                write!(formatter, "lambda://{id}/{volume}?region={region}")?;
                match endpoint {
                    Some(endpoint) => write!(formatter, "&endpoint={endpoint}"),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_who_is_asked_and_for_which_volume() {
        let volume = format!("ten_{}/vol_{}", "01".repeat(16), "02".repeat(16));
        for url in [
            format!("https://anchor.example:8443/{volume}"),
            format!("https://[::1]:8443/{volume}"),
            format!("lambda://abc123/{volume}?region=eu-central-1"),
            format!("lambda://abc123/{volume}?region=eu-central-1&endpoint=http://127.0.0.1:4566"),
        ] {
            let read: AnchorUrl = url.parse().expect("an address");
            assert_eq!(
                (read.to_string(), read.volume().to_string()),
                (url, volume.clone())
            );
        }
        for (wrong, why) in [
            ("http://anchor.example/", "no anchor service"),
            ("https://anchor.example", "names no volume"),
            ("https:///ten_1/vol_1", "is no host"),
            ("https://user@anchor.example/ten_1/vol_1", "is no host"),
            ("https://anchor.example/ten_1/vol_1", "not TENANT/VOLUME"),
            ("https://anchor.example/ten_1/vol_1?x=1", "not TENANT/VOLUME"),
            ("lambda://abc", "names no volume"),
            (&format!("lambda://abc/{volume}"), "names no region"),
            (
                &format!("lambda://a.evil/{volume}?region=x"),
                "not what a function's URL begins with",
            ),
            (
                &format!("lambda://abc/{volume}?region=x.evil"),
                "is not region=REGION",
            ),
            (
                &format!("lambda://abc/{volume}?region=x&region=y"),
                "is there twice",
            ),
            (
                &format!("lambda://abc/{volume}?region=x&endpoint=ftp://y"),
                "is not region=REGION",
            ),
        ] {
            let error = wrong.parse::<AnchorUrl>().expect_err(wrong);
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
