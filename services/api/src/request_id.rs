//! Request identifiers: one text that the caller's reply, the gateway's log and the service's log have in common.

use crate::app::App;
use axum::{
    extract::{MatchedPath, Request, State},
    http::HeaderValue,
    middleware::Next,
    response::Response,
};
use firn_env::LogLimiter;
use std::time::Duration;
use tracing::Instrument;

/// The header, as gateways send it and as callers get it back.
pub const REQUEST_ID: &str = "x-request-id";

/// A UUID as Envoy makes them has 36.
const LENGTH_MAX: usize = 64;

/// Requests that take as long are logged.
const SLOW: Duration = Duration::from_secs(1);
/// Lines a minute about them; a table that hangs makes every request slow.
const SLOW_LINES_A_MINUTE: u32 = 10;

/// What the layer needs.
pub(crate) struct RequestIds {
    app: App,
    slow: LogLimiter,
}

impl RequestIds {
    pub(crate) fn new(app: &App) -> Self {
        Self {
            app: app.clone(),
            slow: LogLimiter::lines(SLOW_LINES_A_MINUTE),
        }
    }
}

/// Whether a text that came from outside may stand in a log and a header.
fn is_well_formed(text: &str) -> bool {
    (1..=LENGTH_MAX).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Gives the request the identifier that it came with, or one of its own; every line that is logged meanwhile has it, and so has
/// the reply.
pub(crate) async fn identify(
    State(ids): State<std::sync::Arc<RequestIds>>,
    path: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let env = ids.app.env();
    let given = request
        .headers()
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok());
    let id = match given.filter(|text| is_well_formed(text)) {
        Some(given) => given.to_owned(),
        None => format!("{:016x}", env.random_u64()),
    };
    // The pattern, not the path: ids of tenants and things are many, and their names are nobody's business in a log.
    let path = path.as_ref().map_or("unknown", MatchedPath::as_str).to_owned();
    let method = request.method().clone();
    let span = tracing::info_span!("request", id, %method, path);
    let began = env.now();
    let mut response = next.run(request).instrument(span.clone()).await;
    let took = env.now().since(began);
    // Whoever follows the revocations asks to be kept waiting.
    let is_slow = took >= SLOW && !path.contains("/revocations/after/");
    ids.app.served().count(response.status(), is_slow);
    if let Some(slow_requests) = is_slow.then(|| ids.slow.count(env.now())).flatten() {
        let status = response.status().as_u16();
        span.in_scope(|| {
            tracing::warn!(
                status,
                took = format_args!("{took:.2?}"),
                slow_requests,
                "slow request"
            );
        });
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_stand_in_a_log_is_taken_from_outside() {
        for fine in ["a", "7f3b-1.2_x", "0f0e0d0c-0b0a-0908-0706-050403020100"] {
            assert!(is_well_formed(fine), "{fine}");
        }
        for bad in ["", "a b", "a\nb", "a\"b", "é", "{}", &"a".repeat(LENGTH_MAX + 1)] {
            assert!(!is_well_formed(bad), "{bad:?}");
        }
    }
}
