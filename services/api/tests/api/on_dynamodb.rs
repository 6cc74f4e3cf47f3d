//! The program over a table in DynamoDB Local, which `make test` starts:
//!
//! ```text
//! tests/lab/cloud/with dynamodb -- cargo test -p firn-api --test api -- --ignored on_dynamodb::real_
//! ```

use crate::running::{DOMAIN, Program, anonymous, firn_api, letter};
use axum::http::StatusCode;
use firn_api::MasterSecret;
use firn_seal::RecoveryPhrase;
use serde_json::{Value, json};
use std::fs;

#[tokio::test]
#[ignore = "needs a server: make test"]
async fn real_two_instances_serve_one_dynamodb_table_and_what_one_confirmed_survives_its_kill() {
    let server = std::env::var("FIRN_TEST_DYNAMODB").expect("make test starts DynamoDB Local and names it");
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let random = firn_env::real(directory).unwrap().random_u64();
    let place = format!("region=us-east-1&endpoint={server}&create=true");
    let table = format!("dynamodb://firn-api-{random:016x}?{place}");
    let anchor = format!("dynamodb://firn-api-anchor-{random:016x}?{place}");
    let apart = ["--anchor-table", &anchor];
    assert!(
        firn_api(&["new-secret", &path("secret")])
            .status()
            .unwrap()
            .success()
    );
    let master = MasterSecret::new(fs::read(path("secret")).unwrap().as_slice().try_into().unwrap());
    let person = anonymous(master.authority(DOMAIN).unwrap().certificate());

    let refused = |more: &[&str]| {
        let output = firn_api(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--table",
            &table,
            "--state",
            &path("state"),
        ])
        .args(["--secret", &path("secret")])
        .args(more)
        .env("AWS_ACCESS_KEY_ID", "firntest")
        .env("AWS_SECRET_ACCESS_KEY", "firntest")
        .output()
        .unwrap();
        assert!(!output.status.success(), "{more:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = refused(&[]);
    assert!(said.contains("give --anchor-table"), "{said}");
    let one = Program::with(directory, &table, "1", &apart);
    let two = Program::with(directory, &table, "2", &apart);
    let said = refused(&[]);
    assert!(
        said.contains("the roots of this installation are in the table firn-api-anchor-"),
        "{said}"
    );
    let cluster = ["--cluster", "main", "--cluster-table", &anchor];
    let said = refused(&[&apart[..], &cluster[..]].concat());
    assert!(said.contains("every disk node could then read"), "{said}");
    let sign_up = json!({ "email": "ada@one.example", "tenant_name": "Nord" });
    let (status, noted) = one.ask(&person, "POST", "/v1/signups", "", sign_up).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{noted}");
    let phrase = RecoveryPhrase::from_entropy([1; 32]);
    let confirm = json!({
        "code": letter(directory, "Code"),
        "tenant_key": phrase.signing_key().public().to_string(),
        "recovery_key": phrase.recovery_secret().public().to_string(),
    });
    let confirm_path = format!("/v1/signups/{}/confirm", letter(directory, "Sign-up"));
    let (status, welcome) = two.ask(&person, "POST", &confirm_path, "", confirm).await;
    assert_eq!(
        status,
        StatusCode::CREATED,
        "what one noted the other confirms: {welcome}"
    );
    let base = format!("/v1/tenants/{}", welcome["tenant"]["id"].as_str().unwrap());
    let log_in = json!({ "api_key": welcome["api_key"] });
    let (_, issued) = one
        .ask(&person, "POST", &format!("{base}/tokens"), "", log_in)
        .await;
    let token = issued["token"].as_str().unwrap().to_owned();
    let volume = json!({ "name": "v", "bucket": { "kind": "managed", "region": "eu" } });
    let (status, made) = one
        .ask(
            &person,
            "POST",
            &format!("{base}/volumes"),
            &token,
            volume.clone(),
        )
        .await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    one.kill();
    let (status, listed) = two
        .ask(&person, "GET", &format!("{base}/volumes"), &token, Value::Null)
        .await;
    assert_eq!((status, &listed["items"][0]), (StatusCode::OK, &made));
    let (status, taken) = two
        .ask(&person, "POST", &format!("{base}/volumes"), &token, volume)
        .await;
    assert_eq!(
        (status, taken["code"].as_str()),
        (StatusCode::CONFLICT, Some("name_taken"))
    );
    let (status, forecast) = two
        .ask(&person, "GET", &format!("{base}/forecast"), &token, Value::Null)
        .await;
    assert_eq!(
        (status, forecast["spent_nanos"].as_str()),
        (StatusCode::OK, Some("0"))
    );
    two.kill();
}
