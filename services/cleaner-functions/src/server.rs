//! The HTTP server that the Functions host calls.
//!
//! | request | answer |
//! |---|---|
//! | `GET /` | 200 as soon as calls are taken; the host polls it |
//! | `POST /CleanOnSchedule` | 200 with the round; 500 if a family failed |
//! | `POST /CleanOnMessage` | 200 with the run; 400 for a message that asks for nothing; 500 if it failed; 503 if too many wait |
//!
//! Any status but 200 is a failure to the host: a message then comes again, and after `maxDequeueCount` tries goes to the
//! queue `firn-cleaner-poison`.

use crate::call::{self, Answer, CallError, MAX_CALL_BYTES};
use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use firn_cleaner_host::{Host, HostError};
use serde::Serialize;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// The routes. `left` is what a call may take, a little less than `functionTimeout` of host.json.
pub fn router(host: Arc<Host>, left: Duration) -> Router {
    let state = Served { host, left };
    Router::new()
        .route("/", get(|| async { "ready\n" }))
        .route("/CleanOnSchedule", post(on_schedule))
        .route("/CleanOnMessage", post(on_message))
        .with_state(state)
}

#[derive(Clone)]
struct Served {
    host: Arc<Host>,
    left: Duration,
}

async fn on_schedule(State(served): State<Served>, body: Body) -> Response {
    let checked = bounded(body).await.and_then(|body| call::timer(&body));
    if let Err(error) = checked {
        return refused(&error);
    }
    match served.host.clean_all(served.left).await {
        Ok(round) if round.failed.is_empty() => answered(&round),
        Ok(round) => failed(StatusCode::INTERNAL_SERVER_ERROR, json!({ "round": round })),
        Err(error) => not_cleaned(&error),
    }
}

async fn on_message(State(served): State<Served>, body: Body) -> Response {
    let work = match bounded(body).await.and_then(|body| call::message(&body)) {
        Ok(work) => work,
        Err(error) => return refused(&error),
    };
    match served.host.clean(work, served.left).await {
        Ok(cleaned) => answered(&cleaned),
        Err(error) => not_cleaned(&error),
    }
}

async fn bounded(body: Body) -> Result<Vec<u8>, CallError> {
    // It is read no further than one byte beyond what is allowed.
    let read = axum::body::to_bytes(body, MAX_CALL_BYTES).await;
    read.map(Into::into).map_err(|_| CallError::TooLong)
}

fn answered(done: &impl Serialize) -> Response {
    match serde_json::to_value(done) {
        Ok(done) => Json(Answer::new(done)).into_response(),
        Err(error) => failed(
            StatusCode::INTERNAL_SERVER_ERROR,
            json!({ "error": error.to_string() }),
        ),
    }
}

fn refused(error: &CallError) -> Response {
    tracing::error!(%error, "a call asks for nothing that can be done");
    let status = match error {
        CallError::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
        CallError::Malformed(_)
        | CallError::NoBinding { .. }
        | CallError::Timer
        | CallError::Message
        | CallError::Work(_) => StatusCode::BAD_REQUEST,
    };
    failed(status, json!({ "error": error.to_string() }))
}

fn not_cleaned(error: &HostError) -> Response {
    tracing::error!(%error, "a call failed");
    let status = match error {
        HostError::Busy => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    failed(status, json!({ "error": error.to_string() }))
}

fn failed(status: StatusCode, why: Value) -> Response {
    (status, Json(why)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use firn_anchor::Anchor;
    use firn_cleaner_host::Settings;
    use firn_format::FamilyId;
    use firn_table::RedbTable;
    use tower::ServiceExt as _;

    /// The routes over a directory and a table file with one family, without a volume.
    async fn served() -> (tempfile::TempDir, Router) {
        let place = tempfile::tempdir().expect("a temporary directory");
        let env = firn_env::real(place.path()).expect("an environment");
        let table = place.path().join("table.redb");
        let opened = RedbTable::open(&env, &table).await.expect("a table");
        Anchor::new(Arc::new(opened), env.clone(), FamilyId([7; 16]))
            .create_family()
            .await
            .expect("a family");
        let variables = [
            ("FIRN_CLEANER_STORE", format!("file://{}", place.path().display())),
            ("FIRN_CLEANER_TABLE", format!("redb:{}", table.display())),
            ("FIRN_CLEANER_FAMILIES", FamilyId([7; 16]).to_string()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        let settings = Settings::from_variables(variables).expect("settings");
        let host = Arc::new(Host::new(env, settings));
        (place, router(host, Duration::from_secs(60)))
    }

    async fn post_to(router: &Router, path: &str, body: impl Into<Body>) -> (StatusCode, Value) {
        let request = Request::post(path).body(body.into()).expect("a request");
        let response = router.clone().oneshot(request).await.expect("a response");
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20)
            .await
            .expect("a body");
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    #[tokio::test]
    async fn the_host_polls_calls_and_is_answered_as_its_contract_says() {
        let (_place, router) = served().await;
        let request = Request::get("/").body(Body::empty()).expect("a request");
        let response = router.clone().oneshot(request).await.expect("a response");
        assert_eq!(response.status(), StatusCode::OK);

        let family = FamilyId([7; 16]).to_string();
        let timer = json!({"Data": {"timer": {"IsPastDue": false}}, "Metadata": {"sys": {"MethodName": "CleanOnSchedule"}}});
        let (status, answer) = post_to(&router, "/CleanOnSchedule", timer.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["Outputs"], json!({}));
        assert_eq!(
            answer["ReturnValue"]["cleaned"][0]["family"],
            json!(family),
            "{answer}"
        );
        assert!(answer["Logs"][0].is_string(), "{answer}");

        let message = json!({"Data": {"message": json!({"family": family}).to_string()}, "Metadata": {}});
        let (status, answer) = post_to(&router, "/CleanOnMessage", message.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["ReturnValue"]["family"], json!(family), "{answer}");
    }

    #[tokio::test]
    async fn malformed_oversize_and_strange_calls_are_refused() {
        let (_place, router) = served().await;
        let stranger =
            json!({"Data": {"message": {"family": "00112233445566778899aabbccddeeff"}}}).to_string();
        let long = "x".repeat(MAX_CALL_BYTES + 1);
        let cases: [(&str, &str, StatusCode, &str); 5] = [
            (
                "/CleanOnMessage",
                "{}",
                StatusCode::BAD_REQUEST,
                "missing field `Data`",
            ),
            (
                "/CleanOnMessage",
                &long,
                StatusCode::PAYLOAD_TOO_LARGE,
                "longer than",
            ),
            (
                "/CleanOnSchedule",
                &long,
                StatusCode::PAYLOAD_TOO_LARGE,
                "longer than",
            ),
            (
                "/CleanOnSchedule",
                "null",
                StatusCode::BAD_REQUEST,
                "the call is not",
            ),
            (
                "/CleanOnMessage",
                &stranger,
                StatusCode::INTERNAL_SERVER_ERROR,
                "family 00112233445566778899aabbccddeeff",
            ),
        ];
        for (path, body, expected, said) in cases {
            let (status, answer) = post_to(&router, path, body.to_owned()).await;
            let error = answer["error"].as_str().unwrap_or_default();
            assert_eq!(status, expected, "{path}: {answer}");
            assert!(error.contains(said), "{path}: {error}");
        }
        let (status, _) = post_to(&router, "/Delete", "{}").await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
}
