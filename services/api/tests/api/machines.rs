//! Machines and secrets: edges and nodes join, prove themselves, and get no further than they should.

use crate::harness::{self, Call, base64, customer::customer};
use axum::http::{Method, StatusCode};
use firn_identity::{CapabilityKey, CapabilityVerifier, HolderHash, JoinSecret, PeerIdentity, PeerKind};
use firn_table::Table;
use serde_json::{Value, json};
use std::sync::Arc;

const TRACT: u64 = 8 << 20;

#[tokio::test]
async fn no_secret_that_was_shown_lies_in_the_table() {
    let (service, customer, token) = customer().await;
    let body = json!({ "name": "ci", "role": "reader" });
    let call = Call::new(Method::POST, &format!("{}/keys", customer.base))
        .token(&token)
        .header("idempotency-key", "one");
    let key = service.send(call.json(body)).await.text("api_key");
    let (_, _, join) = service.join_edge(&customer, &token, "edge").await;
    let table: Arc<dyn Table> = service.table.connect(&service.env);
    let mut stored = Vec::new();
    firn_api::backup(&service.env, &table, &mut stored).await.unwrap();
    let mut everything = Vec::new();
    for line in stored
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let line: Value = serde_json::from_slice(line).unwrap();
        if let Some(value) = line["value"].as_str() {
            use base64::Engine as _;
            everything.extend(
                base64::engine::general_purpose::STANDARD_NO_PAD
                    .decode(value)
                    .unwrap(),
            );
        }
        everything.extend(line.to_string().into_bytes());
    }
    let holds = |secret: &str| {
        everything
            .windows(secret.len())
            .any(|window| window == secret.as_bytes())
    };
    assert!(
        holds(&customer.tenant.to_string()),
        "the search finds what is there"
    );
    for secret in [
        &key[38..],
        &customer.api_key[38..],
        &token,
        &*join.expose(),
        &*join.authenticator().expose(),
    ] {
        assert!(!holds(secret), "{secret}");
    }
    assert!(!holds(&base64(b"what the edge must know")));
}

#[tokio::test]
async fn a_join_secret_works_once_and_only_for_its_holder() {
    let (service, customer, token) = customer().await;
    let mut draw = |bytes: &mut [u8]| bytes.copy_from_slice(&service.env.random_bytes::<32>()[..bytes.len()]);
    let secret = JoinSecret::generate(&mut draw);
    let sealed = secret.seal(b"content", &mut draw).unwrap();
    let edges = format!("{}/edges", customer.base);
    let invited = service
        .post(&token, &edges, harness::invitation("e", &secret, &sealed))
        .await;
    assert_eq!(invited.status, StatusCode::CREATED, "{:?}", invited.body);
    let again = service
        .post(&token, &edges, harness::invitation("f", &secret, &sealed))
        .await;
    assert_eq!(again.code(), "name_taken", "a secret is for one invitation");

    let edge = secret.lookup_id().edge_id();
    let peer = PeerIdentity {
        trust_domain: harness::DOMAIN.into(),
        kind: PeerKind::Edge {
            tenant: customer.tenant,
            edge,
        },
    };
    let path = format!("{}/joins/{}", customer.base, secret.lookup_id().to_text());
    let join = |body: Value| {
        service.send(
            Call::new(Method::POST, &path)
                .json(body)
                .header("idempotency-key", "replay"),
        )
    };
    let mut stranger = harness::join_body(&secret, &peer);
    stranger["authenticator"] = JoinSecret::generate(&mut draw)
        .authenticator()
        .expose()
        .to_string()
        .into();
    assert_eq!(join(stranger).await.code(), "credential_refused");
    let body = harness::join_body(&secret, &peer);
    let joined = join(body.clone()).await;
    assert_eq!(joined.status, StatusCode::OK, "{:?}", joined.body);
    let content = {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD_NO_PAD
            .decode(joined.text("sealed"))
            .unwrap()
    };
    assert_eq!(secret.open(&content).unwrap().as_slice(), b"content");
    assert_eq!(join(body).await.code(), "credential_refused", "a replayed join");

    // The inviter checks that the keys the service shows are the edge's own.
    let shown = service.get(&token, &format!("{edges}/{edge}")).await.body;
    let bound = [
        unhex(&shown["recipient_key"]),
        unbase64(&shown["certificate_request"]),
    ]
    .concat();
    assert!(secret.binds(&bound, &unhex(&shown["binding"])));
    let swapped = [vec![8; 32], unbase64(&shown["certificate_request"])].concat();
    assert!(!secret.binds(&swapped, &unhex(&shown["binding"])));
}

fn unhex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    data_encoding::HEXLOWER.decode(text.as_bytes()).unwrap()
}

fn unbase64(text: &Value) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD_NO_PAD
        .decode(text.as_str().unwrap())
        .unwrap()
}

#[tokio::test]
async fn an_attachment_ends_the_one_before() {
    let (service, customer, token) = customer().await;
    let made = service
        .post(
            &token,
            &format!("{}/disks", customer.base),
            json!({ "name": "d", "size_bytes": TRACT }),
        )
        .await;
    let disk = format!(
        "{}/disks/{}",
        customer.base,
        made.body["disk"]["id"].as_str().unwrap()
    );
    let early = service.post(&token, &format!("{disk}/attach"), json!({})).await;
    assert_eq!(early.code(), "wrong_state", "not before it is placed");
    assert_eq!(firn_api::drive_all(&service.app).await.unwrap(), 0);
    // A capability is good for one edge of the tenant's own: for nobody else, and not for whoever gets hold of it.
    let nobody = service.post(&token, &format!("{disk}/attach"), json!({})).await;
    assert_eq!(nobody.code(), "invalid_field", "{:?}", nobody.body);
    let stranger = service.sign_up("stranger@one.example").await;
    let strangers = service.log_in(&stranger).await;
    let (theirs, their_peer, _) = service.join_edge(&stranger, &strangers, "e").await;
    let (edge, peer, _) = service.join_edge(&customer, &token, "e").await;
    let path = format!("{disk}/attach");
    let attach = |body: Value| service.post(&token, &path, body);
    assert_eq!(attach(json!({ "edge": theirs })).await.code(), "invalid_field");
    let by_theirs = Call::new(Method::POST, &format!("{disk}/attach"))
        .token(&token)
        .peer(&their_peer)
        .json(json!({}));
    assert_eq!(service.send(by_theirs).await.code(), "invalid_field");
    let first = attach(json!({ "edge": edge })).await;
    let second = attach(json!({ "edge": edge })).await;
    assert_eq!(
        (&first.body["fence"], &second.body["fence"]),
        (&json!(1), &json!(2))
    );
    let reader = attach(json!({ "read_only": true, "edge": edge })).await;
    assert_eq!(reader.body["fence"], 2);

    let bytes = unbase64(&second.body["capability"]);
    let key: [u8; 32] = unhex(&second.body["capability_key"]).try_into().unwrap();
    let verifier = CapabilityVerifier::new([CapabilityKey::from_bytes(key)]);
    let verified = verifier.verify(&bytes, service.now()).unwrap();
    assert_eq!(verified.capability().holder, Some(HolderHash::of(&peer)));
}

#[tokio::test]
async fn a_node_that_lies_about_its_size_is_told_so() {
    let (service, customer, token) = customer().await;
    let (node, peer) = service.join_node(&customer, &token, "n").await;
    let path = format!("{}/nodes/{node}/heartbeat", customer.base);
    let beat = |free: u64| {
        service.send(
            Call::new(Method::POST, &path)
                .peer(&peer)
                .json(json!({ "free_bytes": free })),
        )
    };
    assert_eq!(beat(1 << 30).await.body["free_bytes"], 1 << 30);
    assert_eq!(beat((1 << 40) + 1).await.code(), "invalid_field");
}

#[tokio::test]
async fn an_edges_token_does_not_turn_into_new_credentials() {
    let (service, customer, token) = customer().await;
    let (edge, peer, _) = service.join_edge(&customer, &token, "e").await;
    let path = format!("{}/edges/{edge}", customer.base);
    let ask = || Call::new(Method::POST, &format!("{path}/token")).json(json!({}));
    let issued = service.send(ask().peer(&peer)).await;
    assert_eq!(issued.status, StatusCode::CREATED, "{:?}", issued.body);
    let stolen = issued.text("token");
    assert_eq!(
        service.get(&stolen, &path).await.status,
        StatusCode::OK,
        "it is good where a token suffices"
    );
    assert_eq!(
        service.send(ask().token(&stolen)).await.code(),
        "certificate_refused"
    );
    let request = firn_identity::certificate_request(&firn_identity::SigningKey::from_seed([1; 32]), &peer);
    let renew = || {
        let body = json!({ "certificate_request": base64(&request) });
        Call::new(Method::POST, &format!("{path}/certificate")).json(body)
    };
    assert_eq!(
        service.send(renew().token(&stolen)).await.code(),
        "certificate_refused"
    );
    assert_eq!(
        service.send(renew().peer(&peer)).await.status,
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn a_nodes_certificate_does_not_hinder_it_from_reading_what_everybody_may() {
    let (service, customer, token) = customer().await;
    let (_, peer) = service.join_node(&customer, &token, "n").await;
    for path in ["/.well-known/jwks.json", "/v1/revocations", "/healthz"] {
        assert_eq!(
            service
                .send(Call::new(Method::GET, path).peer(&peer))
                .await
                .status,
            StatusCode::OK
        );
    }
}

#[tokio::test]
async fn a_node_that_is_silent_is_lost_until_it_is_heard_of_again_and_the_log_tells_of_both() {
    let (service, customer, token) = customer().await;
    let (node, peer) = service.join_node(&customer, &token, "n1").await;
    let path = format!("{}/nodes/{node}", customer.base);
    let state = |answer: &harness::Answer| answer.text("state");
    assert_eq!(
        firn_api::find_lost_nodes(&service.app, customer.tenant)
            .await
            .unwrap(),
        0
    );
    let later = service.after(120);
    assert_eq!(
        firn_api::find_lost_nodes(&later.app, customer.tenant)
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        firn_api::find_lost_nodes(&later.app, customer.tenant)
            .await
            .unwrap(),
        0,
        "once"
    );
    let owner = later.log_in(&customer).await;
    assert_eq!(state(&later.get(&owner, &path).await), "lost");
    let beat = Call::new(Method::POST, &format!("{path}/heartbeat"))
        .peer(&peer)
        .json(json!({ "free_bytes": 1 }));
    assert_eq!(state(&later.send(beat).await), "active");
    let log = later
        .get(&owner, &format!("{}/audit?limit=100", customer.base))
        .await;
    let actions: Vec<&str> = log.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|entry| entry["action"].as_str())
        .collect();
    assert!(actions.ends_with(&["node.lost", "node.found"]), "{actions:?}");
}

#[tokio::test]
async fn an_edge_gets_credentials_for_the_prefix_of_a_volume_it_serves_until_it_is_removed() {
    let (service, customer, token) = customer().await;
    let base = &customer.base;
    let volumes = format!("{base}/volumes");
    let create =
        |name: &str, bucket: Value| service.post(&token, &volumes, json!({ "name": name, "bucket": bucket }));
    let managed = create("a", json!({ "kind": "managed", "region": "eu" }))
        .await
        .text("id");
    let own =
        json!({ "kind": "own", "url": "s3://nord-data/firn", "role": "arn:aws:iam::123456789012:role/firn" });
    let own = create("b", own).await.text("id");
    let other = create("c", json!({ "kind": "managed", "region": "eu" }))
        .await
        .text("id");
    let nowhere = create("d", json!({ "kind": "managed", "region": "nowhere" }))
        .await
        .text("id");

    let env = service.env.clone();
    let secret =
        JoinSecret::generate(&mut |bytes| bytes.copy_from_slice(&env.random_bytes::<32>()[..bytes.len()]));
    let mut invitation = harness::invitation("e", &secret, b"sealed");
    invitation["volumes"] = json!([managed, own, nowhere]);
    let invited = service.post(&token, &format!("{base}/edges"), invitation).await;
    assert_eq!(invited.status, StatusCode::CREATED, "{:?}", invited.body);
    let edge = secret.lookup_id().edge_id();
    let peer = PeerIdentity {
        trust_domain: harness::DOMAIN.into(),
        kind: PeerKind::Edge {
            tenant: customer.tenant,
            edge,
        },
    };
    let join = Call::new(
        Method::POST,
        &format!("{base}/joins/{}", secret.lookup_id().to_text()),
    );
    let joined = service.send(join.json(harness::join_body(&secret, &peer))).await;
    assert_eq!(joined.status, StatusCode::OK, "{:?}", joined.body);

    let start = |volume: &str| {
        let path = format!("{base}/edges/{edge}/volumes/{volume}/session");
        service.send(Call::new(Method::POST, &path).peer(&peer).json(json!({})))
    };
    let given = start(&managed).await;
    assert_eq!(given.status, StatusCode::CREATED, "{:?}", given.body);
    assert_eq!(given.text("prefix"), format!("{}/{managed}", customer.tenant));
    assert_eq!(given.body["expires"], firn_api::SESSION_SECONDS);
    let policy = given.text("session_token");
    assert!(
        policy.len() <= 2048 && policy.contains(&format!("firn-eu/{}/{managed}/*", customer.tenant)),
        "{policy}"
    );
    assert_eq!(
        start(&own).await.code(),
        "wrong_state",
        "nobody showed that it is theirs"
    );
    let prove = async |volume: &str| {
        let path = format!("{volumes}/{volume}/prove");
        service.post(&token, &path, json!({})).await
    };
    let proved = prove(&own).await;
    assert!(proved.body["bucket_proved"].is_u64(), "{:?}", proved.body);
    assert_eq!(prove(&managed).await.code(), "wrong_state", "nothing to prove");
    let shut = json!({ "kind": "own", "url": "s3://nord-data/x", "role": "shut" });
    let shut = create("s", shut).await.text("id");
    assert_eq!(prove(&shut).await.code(), "wrong_state");
    let given = start(&own).await;
    assert_eq!(
        (given.text("bucket"), given.text("prefix")),
        ("nord-data".into(), "firn".into())
    );
    assert!(
        given.text("secret_access_key").ends_with("role/firn"),
        "through the tenant's own role"
    );
    assert_eq!(
        start(&other).await.code(),
        "not_found",
        "a volume that it does not serve"
    );
    assert_eq!(start(&nowhere).await.code(), "wrong_state");
    let path = format!("{base}/volumes/{own}");
    service.send(Call::new(Method::DELETE, &path).token(&token)).await;
    assert_eq!(
        start(&own).await.code(),
        "wrong_state",
        "a deleted volume is not opened"
    );
    let path = format!("{base}/edges/{edge}");
    service.send(Call::new(Method::DELETE, &path).token(&token)).await;
    assert_eq!(
        start(&managed).await.code(),
        "certificate_refused",
        "a removed edge gets no more"
    );
}

/// What starts the pool's processes has the service's credentials in its environment; they have not.
#[tokio::test]
async fn a_process_of_the_pool_has_nothing_of_the_services_environment() {
    use firn_api::{NodePlan, NodeProvisioner as _, Processes};
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let processes = Processes::new(&env, directory.path(), std::path::Path::new("/bin/true"));
    let node = firn_identity::NodeId([3; 16]);
    // Cargo's variables stand for credentials: the service has them, and nobody gave them to nodes.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let seen = directory.path().join("seen");
    let plan = NodePlan {
        tenant: firn_identity::TenantId([1; 16]),
        node,
        failure_domain: "rack-1".into(),
        user_data: format!("env > {0}.new && mv {0}.new {0}\n", seen.display()).into(),
    };
    processes.launch(&plan).await.unwrap();
    let mut looks = 0;
    while !seen.exists() {
        looks += 1;
        assert!(looks < 6000, "the process never ran");
        env.sleep(std::time::Duration::from_millis(10)).await;
    }
    let environment = std::fs::read_to_string(&seen).unwrap();
    let mut names: Vec<&str> = environment
        .lines()
        .filter_map(|line| line.split_once('=').map(|(name, _)| name))
        // What a shell sets by itself.
        .filter(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name))
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "FIRN_BLOCKD",
            "FIRN_NODE_ADVERTISE",
            "FIRN_NODE_DIRECTORY",
            "FIRN_NODE_LISTEN",
            "PATH"
        ]
    );
    processes.terminate(plan.tenant, node).await.unwrap();
}
