//! Store URL: where a store is, as one line of a configuration file.
//!
//! ```text
//! file:///var/lib/firn/store
//! s3://bucket/prefix?region=eu-central-1&endpoint=https://s3.example.com&path_style=true
//! azure://container/prefix?account=name&endpoint=http://127.0.0.1:10000/devstoreaccount1
//! gs://bucket/prefix
//! ```
//!
//! Secrets never stand in it: it is printed in logs and status pages. They come from the environment or the configuration's
//! own fields. Plain HTTP is accepted for this machine only, unless `insecure_http=true` says that the line is trusted:
//! objects are sealed, but whoever taps the line could still refuse, replay or roll back.

use crate::ObjectKey;
use std::{fmt, path::PathBuf, str::FromStr};

/// The longest prefix: with a key of 512 bytes the name stays below the 1024 of S3 and Azure.
const PREFIX_BYTES_MAX: usize = 256;

/// The place of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// A local directory.
    Directory {
        /// Absolute.
        path: PathBuf,
    },
    /// A bucket of Amazon S3 or of a server that speaks its protocol.
    S3 {
        /// The bucket.
        bucket: String,
        /// What all keys start with; without a slash at the end, empty for the whole bucket.
        prefix: String,
        /// `http://…` or `https://…` without the bucket; Amazon's own if absent.
        endpoint: Option<String>,
        /// The region; from the environment if absent.
        region: Option<String>,
        /// `endpoint/bucket/key` rather than `bucket.endpoint/key`. By default true iff an endpoint is given.
        path_style: bool,
    },
    /// A container of Azure Blob Storage.
    Azure {
        /// The container.
        container: String,
        /// What all keys start with; without a slash at the end, empty for the whole container.
        prefix: String,
        /// The storage account; from the environment if absent.
        account: Option<String>,
        /// Where the account's blobs are served; Microsoft's own if absent.
        endpoint: Option<String>,
    },
    /// A bucket of Google Cloud Storage.
    Gcs {
        /// The bucket.
        bucket: String,
        /// What all keys start with; without a slash at the end, empty for the whole bucket.
        prefix: String,
        /// Another server than Google's, such as an emulator.
        endpoint: Option<String>,
    },
}

/// A URL that names no store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("store URL {url:?}: {problem}")]
pub struct StoreUrlError {
    /// What was written; with user information removed.
    pub url: String,
    /// What is wrong, and what to write instead.
    pub problem: String,
}

impl StoreUrl {
    /// The name that error messages and metrics use: the scheme.
    pub fn scheme(&self) -> &'static str {
        match self {
            Self::Directory { .. } => "file",
            Self::S3 { .. } => "s3",
            Self::Azure { .. } => "azure",
            Self::Gcs { .. } => "gs",
        }
    }

    /// The same place one prefix deeper.
    ///
    /// # Errors
    /// If a URL could not have said it.
    pub fn below(mut self, deeper: &str) -> Result<Self, StoreUrlError> {
        let wrong = |problem| StoreUrlError {
            url: deeper.to_owned(),
            problem,
        };
        let deeper = prefix(deeper).map_err(wrong)?;
        match &mut self {
            Self::Directory { path } => path.push(deeper),
            Self::S3 { prefix: known, .. }
            | Self::Azure { prefix: known, .. }
            | Self::Gcs { prefix: known, .. } => {
                let whole = [&**known, &deeper].join("/");
                *known = prefix(whole.trim_start_matches('/')).map_err(wrong)?;
            }
        }
        Ok(self)
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(url: &str) -> Result<Self, StoreUrlError> {
        parse(url).map_err(|problem| StoreUrlError {
            url: without_user(url),
            problem,
        })
    }
}

fn parse(url: &str) -> Result<StoreUrl, String> {
    if url.bytes().any(|byte| byte.is_ascii_control() || byte == b' ') {
        return Err("it contains a space or a control character; write it as %20, or remove it".into());
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(
            "it has no scheme; write file:///directory, s3://bucket/prefix, azure://container/prefix or gs://bucket/prefix"
                .into(),
        );
    };
    if rest.contains('#') {
        return Err("it has a fragment (#…), which means nothing here; remove it".into());
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut parameters = Parameters::parse(query)?;
    let (host, path) = place.split_once('/').unwrap_or((place, ""));
    if host.contains('@') {
        return Err(
            "it contains credentials; leave them to the environment or to the configuration's own fields"
                .into(),
        );
    }
    let store = match scheme {
        "file" => {
            if !host.is_empty() {
                return Err(format!(
                    "a directory has no host; write file:///{host}/{path} for an absolute path"
                ));
            }
            let path = decode(path)?;
            if path.is_empty() || path.split('/').any(|part| part == "..") {
                return Err(
                    "it needs an absolute path without \"..\", such as file:///var/lib/firn/store".into(),
                );
            }
            StoreUrl::Directory {
                path: PathBuf::from(format!("/{path}")),
            }
        }
        "s3" => {
            let insecure = parameters.boolean("insecure_http")?.unwrap_or(false);
            let endpoint = parameters.endpoint(insecure)?;
            StoreUrl::S3 {
                bucket: bucket("bucket", host)?,
                prefix: prefix(path)?,
                region: parameters.take("region"),
                path_style: parameters.boolean("path_style")?.unwrap_or(endpoint.is_some()),
                endpoint,
            }
        }
        "azure" => {
            let insecure = parameters.boolean("insecure_http")?.unwrap_or(false);
            StoreUrl::Azure {
                container: bucket("container", host)?,
                prefix: prefix(path)?,
                account: parameters.take("account"),
                endpoint: parameters.endpoint(insecure)?,
            }
        }
        "gs" => {
            let insecure = parameters.boolean("insecure_http")?.unwrap_or(false);
            StoreUrl::Gcs {
                bucket: bucket("bucket", host)?,
                prefix: prefix(path)?,
                endpoint: parameters.endpoint(insecure)?,
            }
        }
        other => {
            return Err(format!("the scheme {other:?} is none of file, s3, azure, gs"));
        }
    };
    parameters.finish(match &store {
        StoreUrl::Directory { .. } => "takes none",
        StoreUrl::S3 { .. } => "takes region, endpoint, path_style and insecure_http",
        StoreUrl::Azure { .. } => "takes account, endpoint and insecure_http",
        StoreUrl::Gcs { .. } => "takes endpoint and insecure_http",
    })?;
    Ok(store)
}

/// The names all three providers agree on, with Google's underscore and dot; each has more rules, and says so itself.
fn bucket(what: &str, name: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
    if (3..=63).contains(&name.len()) && name.bytes().all(allowed) && !name.contains("..") {
        return Ok(name.to_owned());
    }
    Err(format!(
        "{name:?} is no name of a {what}: 3 to 63 lower-case letters, digits, hyphens and dots"
    ))
}

fn prefix(path: &str) -> Result<String, String> {
    let path = decode(path)?;
    let prefix = path.strip_suffix('/').unwrap_or(&path);
    if prefix.is_empty() || (prefix.len() <= PREFIX_BYTES_MAX && ObjectKey::is_valid(prefix)) {
        return Ok(prefix.to_owned());
    }
    Err(format!(
        "the prefix {prefix:?} must be at most {PREFIX_BYTES_MAX} of A-Z a-z 0-9 . _ - and /, without empty parts"
    ))
}

struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn parse(query: &str) -> Result<Self, String> {
        let mut parameters: Vec<(String, String)> = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("the parameter {part:?} has no value; write {part}=…"))?;
            if parameters.iter().any(|(known, _)| known == name) {
                return Err(format!("the parameter {name:?} stands there twice"));
            }
            parameters.push((name.to_owned(), decode(value)?));
        }
        Ok(Self(parameters))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1).filter(|value| !value.is_empty())
    }

    fn boolean(&mut self, name: &str) -> Result<Option<bool>, String> {
        match self.take(name).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => Err(format!("{name}={other} is neither true nor false")),
        }
    }

    fn endpoint(&mut self, insecure_allowed: bool) -> Result<Option<String>, String> {
        let Some(endpoint) = self.take("endpoint") else {
            return Ok(None);
        };
        let (secure, rest) = match (
            endpoint.strip_prefix("https://"),
            endpoint.strip_prefix("http://"),
        ) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => {
                return Err(format!(
                    "the endpoint {endpoint:?} must start with https:// (or http:// on this machine)"
                ));
            }
        };
        let host = rest.split('/').next().unwrap_or_default();
        if host.is_empty() || rest.contains(['?', '@']) {
            return Err(format!(
                "the endpoint {endpoint:?} must be https://host or https://host:port"
            ));
        }
        if !secure && !insecure_allowed && !is_loopback(host) {
            return Err(format!(
                "the endpoint {endpoint:?} would send requests in the clear; use https://, or add insecure_http=true if you trust the line"
            ));
        }
        Ok(Some(endpoint.trim_end_matches('/').to_owned()))
    }

    fn finish(self, takes: &str) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(format!("there is no parameter {name:?}; this store {takes}")),
        }
    }
}

/// Whether `host` or `host:port` is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost"
        || name.ends_with(".localhost")
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let code = rest.get(..2).and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            digits
                .bytes()
                .all(|digit| digit.is_ascii_hexdigit())
                .then_some(())?;
            u8::from_str_radix(digits, 16).ok()
        });
        match code {
            Some(0) | None => {
                return Err("it has a '%' that is not followed by two hexadecimal digits".into());
            }
            Some(code) => bytes.push(code),
        }
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 once decoded".into())
}

/// For messages: a secret someone put into the URL is not repeated.
fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (host, path) = match rest.find(['/', '?']) {
        Some(end) => rest.split_at(end),
        None => (rest, ""),
    };
    match host.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://…@{host}{path}"),
        None => url.to_owned(),
    }
}

/// What reads back to the same place.
impl fmt::Display for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encode = |text: &str| {
            let mut encoded = String::with_capacity(text.len());
            for byte in text.bytes() {
                match byte {
                    b'A'..=b'Z'
                    | b'a'..=b'z'
                    | b'0'..=b'9'
                    | b'-'
                    | b'.'
                    | b'_'
                    | b'~'
                    | b'/'
                    | b':'
                    | b'['
                    | b']' => {
                        encoded.push(char::from(byte));
                    }
                    _ => encoded.push_str(&format!("%{byte:02X}")),
                }
            }
            encoded
        };
        let mut parameters: Vec<(&str, String)> = Vec::new();
        let mut add = |name, value: &Option<String>| {
            if let Some(value) = value {
                parameters.push((name, encode(value)));
                let host = value
                    .strip_prefix("http://")
                    .map(|rest| rest.split('/').next().unwrap_or_default());
                if name == "endpoint" && host.is_some_and(|host| !is_loopback(host)) {
                    parameters.push(("insecure_http", "true".into()));
                }
            }
        };
        let (place, prefix) = match self {
            Self::Directory { path } => {
                return write!(formatter, "file://{}", encode(&path.to_string_lossy()));
            }
            Self::S3 {
                bucket,
                prefix,
                endpoint,
                region,
                path_style,
            } => {
                add("region", region);
                add("endpoint", endpoint);
                if *path_style != endpoint.is_some() {
                    parameters.push(("path_style", path_style.to_string()));
                }
                (bucket, prefix)
            }
            Self::Azure {
                container,
                prefix,
                account,
                endpoint,
            } => {
                add("account", account);
                add("endpoint", endpoint);
                (container, prefix)
            }
            Self::Gcs {
                bucket,
                prefix,
                endpoint,
            } => {
                add("endpoint", endpoint);
                (bucket, prefix)
            }
        };
        write!(formatter, "{}://{place}", self.scheme())?;
        if !prefix.is_empty() {
            write!(formatter, "/{prefix}")?;
        }
        for (number, (name, value)) in parameters.iter().enumerate() {
            write!(formatter, "{}{name}={value}", if number == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(url: &str) -> StoreUrl {
        url.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_place_has_places_below_it() {
        for (url, deeper) in [
            ("s3://bucket?region=r", "s3://bucket/a/b?region=r"),
            ("s3://bucket/p?region=r", "s3://bucket/p/a/b?region=r"),
            ("azure://box/p?account=x", "azure://box/p/a/b?account=x"),
            ("gs://bucket", "gs://bucket/a/b"),
            ("file:///srv/store", "file:///srv/store/a/b"),
        ] {
            let below = url.parse::<StoreUrl>().unwrap().below("a/b");
            assert_eq!(below, deeper.parse());
        }
        for wrong in ["../a", "/a", "a//b", &"x".repeat(300)] {
            for url in ["s3://bucket", "file:///srv"] {
                assert!(url.parse::<StoreUrl>().unwrap().below(wrong).is_err(), "{wrong}");
            }
        }
    }

    #[test]
    fn each_scheme_names_its_store() {
        assert_eq!(
            parsed("file:///var/lib/firn%20store"),
            StoreUrl::Directory {
                path: "/var/lib/firn store".into()
            }
        );
        assert_eq!(
            parsed("s3://bucket/a/b/?region=eu-central-1"),
            StoreUrl::S3 {
                bucket: "bucket".into(),
                prefix: "a/b".into(),
                endpoint: None,
                region: Some("eu-central-1".into()),
                path_style: false,
            }
        );
        assert_eq!(
            parsed("azure://firn?account=acme&endpoint=http://127.0.0.1:10000/devstoreaccount1"),
            StoreUrl::Azure {
                container: "firn".into(),
                prefix: String::new(),
                account: Some("acme".into()),
                endpoint: Some("http://127.0.0.1:10000/devstoreaccount1".into()),
            }
        );
        assert_eq!(
            parsed("gs://bucket/p"),
            StoreUrl::Gcs {
                bucket: "bucket".into(),
                prefix: "p".into(),
                endpoint: None,
            }
        );
    }

    #[test]
    fn a_server_of_ones_own_is_addressed_by_path_unless_said_otherwise() {
        for (url, expected) in [
            ("s3://bucket?endpoint=https://s3.acme.example/", true),
            (
                "s3://bucket?endpoint=https://s3.acme.example&path_style=false",
                false,
            ),
            ("s3://bucket", false),
            ("s3://bucket?path_style=true", true),
        ] {
            let StoreUrl::S3 {
                path_style, endpoint, ..
            } = parsed(url)
            else {
                panic!("an S3 store");
            };
            assert_eq!(path_style, expected, "{url}");
            assert!(endpoint.is_none_or(|endpoint| endpoint == "https://s3.acme.example"));
        }
    }

    #[test]
    fn plain_http_is_for_this_machine_or_a_trusted_line() {
        for good in [
            "http://localhost:1",
            "http://[::1]:9000",
            "http://127.3.2.1",
            "http://b.localhost:1",
        ] {
            parsed(&format!("s3://bucket?endpoint={good}"));
        }
        for bad in [
            "http://10.0.0.1:9000",
            "http://localhost.acme.example",
            "http://[2001:db8::1]",
        ] {
            let url = format!("s3://bucket?endpoint={bad}");
            let error = url.parse::<StoreUrl>().expect_err(bad).to_string();
            assert!(error.contains("insecure_http=true"), "{error}");
            parsed(&format!("{url}&insecure_http=true"));
        }
    }

    #[test]
    fn a_wrong_url_says_what_to_write() {
        for (url, advice) in [
            ("/var/lib/firn", "file:///directory"),
            ("http://bucket", "none of file, s3, azure, gs"),
            ("file://var/lib", "file:///var/lib"),
            ("file:///", "absolute path"),
            ("file:///a/../b", "without \"..\""),
            ("s3://", "3 to 63"),
            ("s3://My_Bucket", "3 to 63"),
            ("s3://bucket/a//b", "without empty parts"),
            ("s3://bucket?regoin=x", "takes region"),
            ("s3://bucket?region", "region=…"),
            ("s3://bucket?region=a&region=b", "twice"),
            ("s3://bucket?path_style=1", "neither true nor false"),
            ("s3://bucket?endpoint=s3.acme.example", "https://"),
            ("s3://bucket?endpoint=https://", "https://host"),
            ("s3://bucket/a%2", "two hexadecimal digits"),
            ("s3://bucket/a b", "%20"),
            ("s3://bucket#x", "fragment"),
            ("file:///a?b=c", "takes none"),
        ] {
            let error = url.parse::<StoreUrl>().expect_err(url).to_string();
            assert!(error.contains(advice), "{url}: {error}");
        }
    }

    #[test]
    fn a_secret_in_a_url_is_refused_and_not_repeated() {
        let error = "s3://AKIA:sesame@bucket/p"
            .parse::<StoreUrl>()
            .expect_err("credentials")
            .to_string();
        assert!(
            error.contains("environment") && !error.contains("sesame"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_store_or_an_error(text in "(file|s3|azure|gs|x)?(://)?[a-z0-9/?&=%@#.:_ é-]{0,60}") {
            if let Ok(store) = text.parse::<StoreUrl>() {
                prop_assert_eq!(store.to_string().parse::<StoreUrl>(), Ok(store));
            }
        }

        #[test]
        fn a_printed_url_reads_back(
            bucket in "[a-z0-9][a-z0-9-]{2,20}",
            prefix in "([A-Za-z0-9_-]{1,9}(/[A-Za-z0-9_-]{1,9}){0,3})?",
            region in proptest::option::of("[a-z0-9-]{1,12}"),
            endpoint in proptest::option::of("https?://[a-z]{1,9}(\\.example)?(:[0-9]{1,4})?(/[a-z]{1,5})?"),
            path_style in any::<bool>(),
        ) {
            let store = StoreUrl::S3 { bucket, prefix, endpoint, region, path_style };
            prop_assert_eq!(store.to_string().parse::<StoreUrl>(), Ok(store));
        }
    }
}
