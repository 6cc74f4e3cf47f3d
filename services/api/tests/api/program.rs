//! The real program over real TLS: killed, started again, backed up, restored.

use crate::running::{DOMAIN, Program, anonymous, base64, firn_api, hex, letter, unbase64};
use axum::http::StatusCode;
use firn_api::MasterSecret;
use firn_identity::{
    EdgeId, Expected, IssuedCertificate, JoinSecret, PeerIdentity, PeerKind, SigningKey, TlsIdentity,
    UnixTime, certificate_request, client_config,
};
use firn_seal::{RecipientSecret, RecoveryPhrase};
use serde_json::{Value, json};
use std::fs;

#[tokio::test]
async fn what_it_confirmed_survives_a_kill_a_backup_and_a_restore() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let table = format!("redb:{}", path("api.redb"));
    assert!(
        firn_api(&["new-secret", &path("secret")])
            .status()
            .unwrap()
            .success()
    );
    assert!(
        !firn_api(&["new-secret", &path("secret")])
            .status()
            .unwrap()
            .success(),
        "a secret is never overwritten"
    );
    let master = MasterSecret::new(fs::read(path("secret")).unwrap().as_slice().try_into().unwrap());
    let authority = master.authority(DOMAIN).unwrap().certificate().clone();
    let person = anonymous(&authority);

    let program = Program::start(directory, &table);
    let phrase = RecoveryPhrase::from_entropy([1; 32]);
    let sign_up = json!({ "email": "ada@one.example", "tenant_name": "Nord" });
    let (status, _) = program.ask(&person, "POST", "/v1/signups", "", sign_up).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let confirm = json!({
        "code": letter(directory, "Code"),
        "tenant_key": phrase.signing_key().public().to_string(),
        "recovery_key": phrase.recovery_secret().public().to_string(),
    });
    let confirm_path = format!("/v1/signups/{}/confirm", letter(directory, "Sign-up"));
    let (status, welcome) = program.ask(&person, "POST", &confirm_path, "", confirm).await;
    assert_eq!(status, StatusCode::CREATED, "{welcome}");
    let base = format!("/v1/tenants/{}", welcome["tenant"]["id"].as_str().unwrap());
    let log_in = json!({ "api_key": welcome["api_key"] });
    let (_, issued) = program
        .ask(&person, "POST", &format!("{base}/tokens"), "", log_in.clone())
        .await;
    let token = issued["token"].as_str().unwrap().to_owned();
    program.kill();

    // Tokens and certificates of before the kill are good after it: all keys derive from the master secret.
    let program = Program::start(directory, &table);
    let env = firn_env::real(directory).unwrap();
    let secret =
        JoinSecret::generate(&mut |bytes| bytes.copy_from_slice(&env.random_bytes::<32>()[..bytes.len()]));
    let invitation = json!({
        "name": "edge",
        "lookup": secret.lookup_id().to_text(),
        "authenticator_hash": hex(&secret.authenticator().hash().0),
        "sealed": base64(&secret.seal(b"x", &mut |bytes| bytes.fill(1)).unwrap()),
    });
    let (status, edge) = program
        .ask(&person, "POST", &format!("{base}/edges"), &token, invitation)
        .await;
    assert_eq!(status, StatusCode::CREATED, "{edge}");
    let edge: EdgeId = edge["id"].as_str().unwrap().parse().unwrap();
    let name = PeerIdentity {
        trust_domain: DOMAIN.into(),
        kind: PeerKind::Edge {
            tenant: welcome["tenant"]["id"].as_str().unwrap().parse().unwrap(),
            edge,
        },
    };
    let key = SigningKey::from_seed([7; 32]);
    let request = certificate_request(&key, &name);
    let recipient = RecipientSecret::derive(&[2; 32]).public();
    let join = json!({
        "authenticator": &*secret.authenticator().expose(),
        "recipient_key": recipient.to_string(),
        "certificate_request": base64(&request),
        "binding": hex(&secret.bind(&[recipient.to_bytes().as_slice(), &request].concat())),
    });
    let join_path = format!("{base}/joins/{}", secret.lookup_id().to_text());
    let (status, joined) = program.ask(&person, "POST", &join_path, "", join).await;
    assert_eq!(status, StatusCode::OK, "{joined}");
    let issued = IssuedCertificate {
        certificate: unbase64(&joined["certificate"]["certificate"]).into(),
        expires: UnixTime(joined["certificate"]["expires"].as_u64().unwrap()),
        renew_after: UnixTime(joined["certificate"]["renew_after"].as_u64().unwrap()),
    };
    let service = PeerIdentity {
        trust_domain: DOMAIN.into(),
        kind: PeerKind::Service("api".into()),
    };
    let identity = TlsIdentity::new(&key, &issued).unwrap();
    let machine = client_config(
        &env,
        &identity,
        std::slice::from_ref(&authority),
        Expected::Peer(service),
    )
    .unwrap();
    let edge_path = format!("{base}/edges/{edge}");
    let (status, shown) = program.ask(&machine, "GET", &edge_path, "", Value::Null).await;
    assert_eq!(
        (status, shown["state"].as_str()),
        (StatusCode::OK, Some("active")),
        "by its certificate alone"
    );
    let (status, _) = program
        .ask(&machine, "GET", &format!("{base}/members"), "", Value::Null)
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, _) = program.ask(&person, "GET", &edge_path, "", Value::Null).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);

    assert!(
        !firn_api(&["backup", "--table", &table, &path("early")])
            .status()
            .unwrap()
            .success(),
        "not while it runs"
    );
    let (_, log) = program
        .ask(&person, "GET", &format!("{base}/audit"), &token, Value::Null)
        .await;
    let (_, head) = program
        .ask(&person, "GET", &format!("{base}/audit/head"), &token, Value::Null)
        .await;
    program.kill();

    let lines: Vec<String> = log["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(Value::to_string)
        .collect();
    fs::write(path("audit"), lines.join("\n")).unwrap();
    let verify = |head: &str| {
        firn_api(&["audit", "verify", &path("audit"), "--head", head])
            .status()
            .unwrap()
            .success()
    };
    assert!(verify(head["hash"].as_str().unwrap()));
    assert!(!verify(&"0".repeat(64)));

    let restored = format!("redb:{}", path("restored.redb"));
    assert!(
        firn_api(&["backup", "--table", &table, &path("backup")])
            .status()
            .unwrap()
            .success()
    );
    assert!(
        !firn_api(&["restore", "--table", &restored, &path("backup")])
            .status()
            .unwrap()
            .success(),
        "whether something may live again is said, not guessed"
    );
    assert!(
        firn_api(&["roster", "--table", &table, &path("roster")])
            .status()
            .unwrap()
            .success()
    );
    assert!(
        firn_api(&[
            "restore",
            "--table",
            &restored,
            "--roster",
            &path("roster"),
            &path("backup")
        ])
        .status()
        .unwrap()
        .success()
    );
    let program = Program::start(directory, &restored);
    let (status, _) = program
        .ask(&person, "POST", &format!("{base}/tokens"), "", log_in)
        .await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, shown) = program.ask(&machine, "GET", &edge_path, "", Value::Null).await;
    assert_eq!(
        (status, shown["id"].as_str()),
        (StatusCode::OK, Some(edge.to_string().as_str()))
    );
    program.kill();
}

/// Every disk node opens its cluster's table. One that is the service's own would put tokens, keys and bills into their hands.
#[test]
fn a_cluster_of_nodes_in_the_services_own_table_is_refused_with_the_way_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    assert!(
        firn_api(&["new-secret", &path("secret")])
            .status()
            .unwrap()
            .success()
    );
    let (table, state, secret) = (
        format!("redb:{}", path("api.redb")),
        path("state"),
        path("secret"),
    );
    let serve = ["serve", "--table", &table, "--state", &state, "--secret", &secret];
    let refused = |more: &[&str]| {
        let output = firn_api(&serve).args(more).output().unwrap();
        assert!(!output.status.success(), "{more:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let unnamed = refused(&["--cluster", "main"]);
    assert!(unnamed.contains("--cluster-table"), "{unnamed}");
    let other_spelling = format!(
        "redb:{}/../{}/api.redb",
        path(""),
        directory.path().file_name().unwrap().to_str().unwrap()
    );
    for own in [&table, &other_spelling] {
        let said = refused(&["--cluster", "main", "--cluster-table", own]);
        assert!(said.contains("every disk node could then read"), "{said}");
        assert!(said.contains("move-table --from"), "{said}");
    }
    let dynamodb = ["dynamodb://firn?region=eu-central-1", "dynamodb://firn"];
    // The same name is taken for the same table, however region and endpoint are written; nothing is asked of AWS for that.
    let output = firn_api(&[
        "serve",
        "--table",
        dynamodb[0],
        "--state",
        &state,
        "--secret",
        &secret,
    ])
    .args(["--cluster", "main", "--cluster-table", dynamodb[1]])
    .env("AWS_ACCESS_KEY_ID", "firntest")
    .env("AWS_SECRET_ACCESS_KEY", "firntest")
    .output()
    .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("every disk node could then read"), "{said}");
}
