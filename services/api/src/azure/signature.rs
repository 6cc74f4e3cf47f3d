//! Shared access signatures of Azure's Blob service for edges: one container, or one directory of it, for a short time.
//!
//! ```text
//! string to sign   permissions, start, expiry, /blob/<account>/<container>[/<directory>], identifier, address, protocol, version,
//!                  resource, snapshot, encryption scope, five response headers; a line each, empty where nothing is said
//! signature        HMAC-SHA256 with the account's key, in base 64
//! as query         sv spr se sr [sdd] sp sig
//! ```
//!
//! Permissions are `rcl`: read, create, list. *Create* puts a blob where there is none and is refused where there is one, so no edge can
//! overwrite; *delete* is nobody's but the cleaner's. Who only reads has `rl`. Source: Microsoft's "Create a service SAS", version 2020-12-06.

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use firn_identity::UnixTime;
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The oldest version that signs what is signed here.
const VERSION: &str = "2020-12-06";
/// In the order that Azure demands.
const EDGE_PERMISSIONS: &str = "rcl";
/// Of an edge that a volume was granted to for reading.
const READER_PERMISSIONS: &str = "rl";

/// What a signature opens.
pub(super) struct Signed<'a> {
    pub account: &'a str,
    pub container: &'a str,
    /// Without a slash at its ends; empty: the whole container. A directory needs an account with a hierarchical namespace.
    pub directory: &'a str,
    pub expires: UnixTime,
    /// Whether it adds nothing.
    pub is_read_only: bool,
    /// Whether it may travel in the clear, as to an emulator.
    pub plain_http: bool,
}

impl Signed<'_> {
    /// The signature as a query, without a question mark.
    pub(super) fn query(&self, key: &hmac::Key) -> String {
        let expiry = iso8601(self.expires);
        let protocol = if self.plain_http { "https,http" } else { "https" };
        let (resource, depth) = if self.directory.is_empty() {
            ("c", String::new())
        } else {
            let depth = self.directory.split('/').count();
            ("d", format!("&sdd={depth}"))
        };
        let signature = STANDARD.encode(hmac::sign(key, self.text(&expiry, protocol, resource).as_bytes()));
        format!(
            "sv={VERSION}&spr={}&se={}&sr={resource}{depth}&sp={}&sig={}",
            utf8_percent_encode(protocol, ESCAPED),
            utf8_percent_encode(&expiry, ESCAPED),
            self.permissions(),
            utf8_percent_encode(&signature, ESCAPED)
        )
    }

    fn permissions(&self) -> &'static str {
        match self.is_read_only {
            true => READER_PERMISSIONS,
            false => EDGE_PERMISSIONS,
        }
    }

    fn text(&self, expiry: &str, protocol: &str, resource: &str) -> String {
        let mut canonical = format!("/blob/{}/{}", self.account, self.container);
        if !self.directory.is_empty() {
            canonical.push('/');
            canonical.push_str(self.directory);
        }
        let (start, identifier, address, snapshot, scope) = ("", "", "", "", "");
        let response_headers = ["", "", "", "", ""];
        let head = [
            self.permissions(),
            start,
            expiry,
            &canonical,
            identifier,
            address,
            protocol,
            VERSION,
            resource,
            snapshot,
            scope,
        ];
        let lines: Vec<&str> = head.into_iter().chain(response_headers).collect();
        lines.join("\n")
    }
}

/// What a query keeps as it is: what RFC 3986 calls unreserved.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// `2026-11-21T23:00:00Z`.
fn iso8601(time: UnixTime) -> String {
    i64::try_from(time.0)
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .unwrap_or(Timestamp::MAX)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_azure_reads_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_825_599, "2000-02-29T11:59:59Z"),
            (1_795_302_061, "2026-11-21T23:01:01Z"),
        ] {
            assert_eq!(iso8601(UnixTime(seconds)), text);
        }
    }
}
