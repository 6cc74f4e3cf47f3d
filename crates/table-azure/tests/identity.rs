//! Tokens of a managed identity instead of an account's key: from the identity's endpoint, which Azure gives every function app and which
//! this test plays, to a table on Azurite, which takes tokens by TLS only.
//!
//! ```text
//! tests/lab/cloud/with azurite-tls -- cargo test -p firn-table-azure --test identity -- --ignored real_
//! ```

mod support;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use firn_rig::servers::variable;
use firn_table::{Condition, ItemKey, Table, TableError, Write};
use firn_table_azure::AzureTable;
use serde_json::json;
use std::{
    io::{Read, Write as _},
    net::TcpListener,
    process::{Command, Output},
    sync::{Arc, Mutex},
};
use support::{address, environment, name};

/// Given to the child below.
const ENDPOINT: &str = "FIRN_TEST_IDENTITY_TABLES";
const SECRET: &str = "only-this-app-knows";

/// A token as Azure's authority makes them; whoever takes it looks at its claims.
fn token(audience: &str) -> String {
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({
        "aud": audience, "iss": "https://sts.windows.net/00000000-0000-0000-0000-000000000000/",
        "iat": 1_500_000_000, "nbf": 1_500_000_000, "exp": 4_000_000_000_u64,
    });
    let head = json!({"alg": "RS256", "typ": "JWT"});
    format!(
        "{}.{}.{}",
        part(head),
        part(claims),
        URL_SAFE_NO_PAD.encode("unsigned")
    )
}

/// The endpoint of an identity; keeps what it was asked.
#[allow(
    clippy::disallowed_methods,
    reason = "a server for another process, beside a test that waits for that"
)]
fn identity(status: &'static str, answer: String) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/token", listener.local_addr().unwrap());
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let seen = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            while !request.ends_with(b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(read) => request.extend_from_slice(&buffer[..read]),
                }
            }
            seen.lock()
                .unwrap()
                .push(String::from_utf8_lossy(&request).into_owned());
            let length = answer.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}"
            );
        }
    });
    (url, asked)
}

/// Run by the next tests in a process of its own, whose environment is a function app's.
#[tokio::test]
async fn child_process_with_an_identity() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else {
        return;
    };
    let env = environment();
    match AzureTable::open(&env, &address(&endpoint, &name(&env), true)).await {
        Ok(table) => {
            let key = ItemKey::new("p", "s");
            let other = ItemKey::new("p", "t");
            let put = |key: &ItemKey| Write::Put {
                key: key.clone(),
                value: "by an identity".into(),
                condition: Condition::Absent,
            };
            table.transact(vec![put(&key)]).await.unwrap();
            table
                .transact(vec![
                    put(&other),
                    Write::Check {
                        key: ItemKey::new("p", "u"),
                        condition: Condition::Absent,
                    },
                ])
                .await
                .unwrap();
            assert_eq!(table.query("p", "", None, 10).await.unwrap().items.len(), 2);
            println!("kept");
        }
        Err(error) => {
            assert!(matches!(error, TableError::Refused(_)), "{error}");
            println!("refused: {error}");
        }
    }
}

fn child(identity: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process_with_an_identity", "--nocapture"])
        .env_clear()
        .env(ENDPOINT, variable("FIRN_TEST_AZURITE_TLS_TABLES").unwrap())
        .env(
            "SSL_CERT_FILE",
            variable("FIRN_TEST_AZURITE_TLS_AUTHORITY").unwrap(),
        )
        .env("IDENTITY_ENDPOINT", identity)
        .env("IDENTITY_HEADER", SECRET)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
#[ignore = "needs a server: make test"]
fn real_a_managed_identity_opens_the_table_with_one_token() {
    let answer = json!({"access_token": token("https://storage.azure.com"), "expires_on": "4000000000", "token_type": "Bearer"});
    let (url, asked) = identity("200 OK", answer.to_string());
    let output = child(&url);
    assert!(
        output.status.success() && said(&output).contains("kept"),
        "{}",
        said(&output)
    );
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 1, "a token is used until it ends: {asked:?}");
    assert!(
        asked[0].contains("resource=https%3A%2F%2Fstorage.azure.com") && asked[0].contains(SECRET),
        "{}",
        asked[0]
    );
}

#[test]
#[ignore = "needs a server: make test"]
fn real_a_token_for_something_else_and_an_identity_that_is_none_are_refused_with_what_to_do() {
    let answer = json!({"access_token": token("https://vault.azure.net"), "expires_on": "4000000000"});
    let (url, _) = identity("200 OK", answer.to_string());
    let output = child(&url);
    assert!(
        said(&output).contains("refused: ") && said(&output).contains("Storage Table Data Contributor"),
        "{}",
        said(&output)
    );
    let (url, _) = identity(
        "400 Bad Request",
        json!({"error": "invalid_request", "error_description": "Identity not found"}).to_string(),
    );
    let output = child(&url);
    assert!(
        said(&output).contains("no credentials of Azure") && said(&output).contains("Identity not found"),
        "{}",
        said(&output)
    );
}
