//! The policies of edges' sessions, evaluated by a server that checks credentials: versitygw with its identity service, which narrows a
//! session's role by the session's policy as AWS does.
//!
//! The identity service starts sessions for tokens of OpenID issuers only, and fetches no issuer's keys from this machine. So the sessions
//! are laid into its store, with the documents that this service would have asked for them with; from there on everything is the server's.
//!
//! ```text
//! tests/lab/cloud/with versityiam -- cargo test -p firn-api --test api -- --ignored session_policies::real_
//! ```
#![cfg(feature = "aws")]
#![allow(clippy::disallowed_methods, reason = "a server outside, in real time")]

use firn_api::Place;
use firn_rig::buckets::{ask_s3, create_s3};
use object_store::aws::AwsCredential;
use serde_json::{Value, json};

const ROLE: &str = "arn:aws:iam::000000000000:role/firn-edges";
const TOKEN: &str = "the session's token";
const OVER: &str = "2020-01-01T00:00:00Z";
const NOT_OVER: &str = "2100-01-01T00:00:00Z";

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("tests/lab/cloud/with versityiam names {name}"))
}

/// A session as the identity service stores it: of the role, narrowed by `policy`.
fn session(key: &str, policy: &str, expires: &str) -> Value {
    json!({
        "accessKeyId": key, "secretAccessKey": secret(key), "sessionToken": TOKEN, "roleArn": ROLE,
        "roleName": "firn-edges", "roleId": "AROAFIRNEDGES", "roleSessionName": "edge", "provider": "", "audience": "",
        "subject": "", "createDate": OVER, "expiration": expires, "policy": policy,
    })
}

fn secret(key: &str) -> String {
    format!("the secret of {key}")
}

fn credential(key: &str) -> AwsCredential {
    AwsCredential {
        key_id: key.into(),
        secret_key: secret(key),
        token: Some(TOKEN.into()),
    }
}

/// What the server let through: 403 is its no, anything below 300 a yes.
fn is_allowed(what: &str, status: u16) -> bool {
    assert!(status < 300 || status == 403, "{what}: {status}");
    status < 300
}

/// Statements of a policy, without those that `dropped` names.
fn without(policy: &str, dropped: impl Fn(&Value) -> bool) -> String {
    let mut policy: Value = serde_json::from_str(policy).unwrap();
    let statements = policy["Statement"].as_array_mut().unwrap();
    let before = statements.len();
    statements.retain(|statement| !dropped(statement));
    assert_eq!(statements.len(), before - 1, "one statement is left out");
    policy.to_string()
}

#[tokio::test]
#[ignore = "needs versitygw"]
async fn real_a_session_reads_lists_and_adds_under_its_prefix_and_cannot_delete_or_reach_another_tenants() {
    let endpoint = variable("FIRN_TEST_VERSITYIAM");
    let root = AwsCredential {
        key_id: variable("FIRN_TEST_VERSITYIAM_KEY"),
        secret_key: variable("FIRN_TEST_VERSITYIAM_SECRET"),
        token: None,
    };
    let env = firn_env::real(&std::env::temp_dir()).unwrap();
    let bucket = format!("policies-{:016x}", env.random_u64());
    create_s3(&endpoint, &bucket, &root.key_id, &root.secret_key)
        .await
        .unwrap();
    let place = Place::parse(&format!("s3://{bucket}/ten_1/vol_1")).unwrap();
    let whole = place.edge_policy().unwrap();
    // The server knows no s3:if-none-match, so for it every put lacks the header: under the whole policy it refuses them all.
    let adding = without(&whole, |statement| {
        statement["Condition"]["Null"]["s3:if-none-match"] == "true"
    });
    let logs = ["fa/log/0000000000000007/".to_owned()];
    let writing = without(&place.writer_policy(&logs).unwrap(), |statement| {
        statement["Condition"]["Null"]["s3:if-none-match"] == "true"
    });
    let store = json!({
        "users": {}, "accessKeyIndex": {}, "userNameIndex": {}, "oidcProviders": {}, "roleNameIndex": {},
        "roles": { "firn-edges": {
            "Path": "/", "RoleName": "firn-edges", "RoleID": "AROAFIRNEDGES", "Arn": ROLE, "CreateDate": OVER,
            "AssumeRolePolicyDocument": "{}", "MaxSessionDuration": 3600,
            "Policies": { "inline": [{ "PolicyName": "everything", "CreateDate": OVER, "UpdateDate": OVER, "PolicyDocument": json!({
                "Version": "2012-10-17", "Statement": [{ "Effect": "Allow", "Action": "s3:*", "Resource": "*" }],
            }).to_string() }] },
        } },
        "sessions": {
            "ASIAWHOLE": session("ASIAWHOLE", &whole, NOT_OVER),
            "ASIAADDING": session("ASIAADDING", &adding, NOT_OVER),
            "ASIAEXPIRED": session("ASIAEXPIRED", &adding, OVER),
            "ASIAREADING": session("ASIAREADING", &place.reader_policy().unwrap(), NOT_OVER),
            "ASIAWRITING": session("ASIAWRITING", &writing, NOT_OVER),
            "ASIAUNBOUND": session("ASIAUNBOUND", "", NOT_OVER),
        },
    });
    std::fs::write(variable("FIRN_TEST_VERSITYIAM_STORE"), store.to_string()).unwrap();

    let (own, theirs) = ("ten_1/vol_1/log/1/1", "ten_2/vol_2/log/1/1");
    for key in [own, theirs, "ten_1/vol_10/log/1/1"] {
        let put = ask_s3(
            &root,
            "PUT",
            &format!("{endpoint}/{bucket}/{key}"),
            &[],
            "segment",
        )
        .await;
        assert_eq!(put.unwrap(), 200);
    }
    let allowed =
        async |key: &str, method: &str, path: &str, headers: &[(&'static str, &str)], body: &str| {
            let what = format!("{key}: {method} {path}");
            let status = ask_s3(
                &credential(key),
                method,
                &format!("{endpoint}/{bucket}{path}"),
                headers,
                body,
            )
            .await
            .unwrap();
            is_allowed(&what, status)
        };
    let create = [("if-none-match", "*")];
    let list = "/?list-type=2&prefix=";
    for (method, path, may) in [
        ("GET", format!("/{own}"), true),
        ("HEAD", format!("/{own}"), true),
        ("GET", format!("{list}ten_1/vol_1/"), true),
        ("GET", format!("{list}ten_1/vol_1/log/"), true),
        // Not what lies beside the prefix, nor above it, nor what only begins like it.
        ("GET", format!("/{theirs}"), false),
        ("GET", "/ten_1/vol_10/log/1/1".into(), false),
        ("GET", format!("{list}ten_2/vol_2/"), false),
        ("GET", format!("{list}ten_1/"), false),
        ("GET", "/?list-type=2".into(), false),
        // No history is destroyed, and nobody else is let in.
        ("DELETE", format!("/{own}"), false),
        ("DELETE", format!("/{theirs}"), false),
        ("DELETE", String::new(), false),
        ("GET", "/?policy".into(), false),
        ("DELETE", "/?policy".into(), false),
    ] {
        for session in ["ASIAWHOLE", "ASIAADDING", "ASIAREADING", "ASIAWRITING"] {
            assert_eq!(
                allowed(session, method, &path, &[], "").await,
                may,
                "{session}: {method} {path}"
            );
        }
        assert!(
            !allowed("ASIAEXPIRED", method, &path, &[], "").await,
            "{path}: it is over"
        );
    }
    let public = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":"*"}]}"#;
    for (path, body) in [
        (format!("/{own}?acl"), ""),
        ("/?acl".into(), ""),
        ("/?policy".into(), public),
        (
            "/?versioning".into(),
            "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>",
        ),
    ] {
        let refused = !allowed("ASIAADDING", "PUT", &path, &[("x-amz-acl", "public-read")], body).await;
        assert!(refused, "PUT {path}");
    }
    let segment = "ten_1/vol_1/log/2/1";
    assert!(
        !allowed("ASIAWHOLE", "PUT", &format!("/{segment}"), &[], "new").await,
        "a put that could overwrite"
    );
    assert!(allowed("ASIAADDING", "PUT", &format!("/{segment}"), &create, "new").await);
    assert!(allowed("ASIAADDING", "GET", &format!("/{segment}"), &[], "").await);
    for path in [
        "/ten_2/vol_2/log/2/1",
        "/ten_1/vol_10/log/2/1",
        "/ten_1/log",
        // Junk among the key rings, which the service puts itself.
        "/ten_1/vol_1/fa/keyring/ffffffffffffffff",
        "/ten_1/vol_1/fa/keyring/log/1",
        "/x",
    ] {
        assert!(
            !allowed("ASIAADDING", "PUT", path, &create, "new").await,
            "{path}"
        );
    }
    // Of grantees: who reads adds nothing, and who writes adds to the log that it drew, and to no other name.
    for (path, may) in [
        ("/ten_1/vol_1/fa/log/0000000000000007/1", true),
        ("/ten_1/vol_1/fa/log/0000000000000008/1", false),
        ("/ten_1/vol_1/fa/log/00000000000000070/1", false),
        ("/ten_1/vol_1/fb/log/0000000000000007/1", false),
        ("/ten_1/vol_1/fa/keyring/ffffffffffffffff", false),
        ("/ten_1/vol_1/fa/keyring/fa/log/0000000000000007/1", false),
        ("/ten_2/vol_2/fa/log/0000000000000007/1", false),
    ] {
        assert_eq!(
            allowed("ASIAWRITING", "PUT", path, &create, "new").await,
            may,
            "{path}"
        );
        assert!(
            !allowed("ASIAREADING", "PUT", path, &create, "new").await,
            "{path}"
        );
    }
    let stranger = AwsCredential {
        token: Some("another's token".into()),
        ..credential("ASIAADDING")
    };
    let uri = format!("{endpoint}/{bucket}/{own}");
    let answered = ask_s3(&stranger, "GET", &uri, &[], "").await.unwrap();
    assert_eq!(answered, 400, "a token that is another's is none");

    // It is the session's policy that forbade all this: the role alone may.
    assert!(allowed("ASIAUNBOUND", "GET", &format!("/{theirs}"), &[], "").await);
    assert!(allowed("ASIAUNBOUND", "DELETE", &format!("/{theirs}"), &[], "").await);
    assert_eq!(
        ask_s3(&root, "GET", &uri, &[], "").await.unwrap(),
        200,
        "what the edge must not delete is there"
    );
}
