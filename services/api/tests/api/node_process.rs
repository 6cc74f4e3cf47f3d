//! A disk node as a process meets the service: over TLS, by the certificate that it got when it joined. Whatever it asks, of its own tenant or
//! another, it reads no record of the control plane but its own.

use crate::running::{DOMAIN, Program, anonymous, base64, firn_api, hex, letter, unbase64};
use axum::http::StatusCode;
use firn_api::{MasterSecret, POLICY, RegoPolicy, endpoints};
use firn_identity::{
    CertificateDer, Expected, IssuedCertificate, JoinSecret, NodeId, PeerIdentity, PeerKind, Principal, Role,
    SigningKey, TenantId, TlsIdentity, UnixTime, certificate_request, client_config,
};
use firn_seal::RecoveryPhrase;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, path::Path};
use tokio_rustls::rustls::ClientConfig;

/// A tenant as a person made it: its id, a token of its owner, and what is only in its records.
struct Tenant {
    id: TenantId,
    base: String,
    token: String,
    volume: String,
    member: String,
    secrets: Vec<String>,
}

async fn sign_up(directory: &Path, program: &Program, person: &ClientConfig, name: &str) -> Tenant {
    let address = format!("{name}@{name}.example");
    let body = json!({ "email": &address, "tenant_name": format!("the tenant of {name}") });
    let (status, noted) = program.ask(person, "POST", "/v1/signups", "", body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{noted}");
    let phrase = RecoveryPhrase::from_entropy([name.as_bytes()[0]; 32]);
    let confirm = json!({
        "code": letter(directory, "Code"),
        "tenant_key": phrase.signing_key().public().to_string(),
        "recovery_key": phrase.recovery_secret().public().to_string(),
    });
    let path = format!("/v1/signups/{}/confirm", noted["signup"].as_str().unwrap());
    let (status, welcome) = program.ask(person, "POST", &path, "", confirm).await;
    assert_eq!(status, StatusCode::CREATED, "{welcome}");
    let id: TenantId = welcome["tenant"]["id"].as_str().unwrap().parse().unwrap();
    let base = format!("/v1/tenants/{id}");
    let log_in = json!({ "api_key": welcome["api_key"] });
    let (_, issued) = program
        .ask(person, "POST", &format!("{base}/tokens"), "", log_in)
        .await;
    let token = issued["token"].as_str().unwrap().to_owned();
    let volume =
        json!({ "name": format!("files-of-{name}"), "bucket": { "kind": "managed", "region": "eu" } });
    let (status, made) = program
        .ask(person, "POST", &format!("{base}/volumes"), &token, volume)
        .await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    Tenant {
        id,
        base,
        token,
        volume: made["id"].as_str().unwrap().to_owned(),
        member: welcome["member"]["id"].as_str().unwrap().to_owned(),
        secrets: vec![
            address,
            format!("the tenant of {name}"),
            format!("files-of-{name}"),
            welcome["api_key"].as_str().unwrap()[38..].to_owned(),
        ],
    }
}

/// Invites a node and joins as it; gives its id and a client with its certificate.
async fn join(
    directory: &Path,
    program: &Program,
    person: &ClientConfig,
    authority: &CertificateDer<'static>,
    tenant: &Tenant,
) -> (NodeId, ClientConfig) {
    let env = firn_env::real(directory).unwrap();
    let secret =
        JoinSecret::generate(&mut |bytes| bytes.copy_from_slice(&env.random_bytes::<32>()[..bytes.len()]));
    let invitation = json!({
        "name": format!("node {}", hex(&secret.authenticator().hash().0[..4])),
        "failure_domain": "rack-1",
        "authenticator_hash": hex(&secret.authenticator().hash().0),
    });
    let nodes = format!("{}/nodes", tenant.base);
    let (status, invited) = program
        .ask(person, "POST", &nodes, &tenant.token, invitation)
        .await;
    assert_eq!(status, StatusCode::CREATED, "{invited}");
    let node: NodeId = invited["id"].as_str().unwrap().parse().unwrap();
    let key = SigningKey::from_seed([4; 32]);
    let request = |kind| {
        let trust_domain = DOMAIN.into();
        base64(&certificate_request(&key, &PeerIdentity { trust_domain, kind }))
    };
    let body = json!({
        "authenticator": &*secret.authenticator().expose(),
        "certificate_request": request(PeerKind::Node(node)),
        "tenant_certificate_request": request(PeerKind::TenantNode { tenant: tenant.id, node }),
        "address": "10.0.0.7:7500",
        "capacity_bytes": 1_u64 << 40,
    });
    let (status, joined) = program
        .ask(person, "POST", &format!("{nodes}/{node}/join"), "", body)
        .await;
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
    let authorities = std::slice::from_ref(authority);
    let client = client_config(&env, &identity, authorities, Expected::Peer(service)).unwrap();
    (node, client)
}

#[tokio::test]
async fn a_node_with_its_own_certificate_reads_no_record_of_the_control_plane_by_any_operation() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let secret = directory.join("secret").to_str().unwrap().to_owned();
    assert!(firn_api(&["new-secret", &secret]).status().unwrap().success());
    let master = MasterSecret::new(fs::read(&secret).unwrap().as_slice().try_into().unwrap());
    let authority = master.authority(DOMAIN).unwrap().certificate().clone();
    let person = anonymous(&authority);
    let table = format!("redb:{}", directory.join("api.redb").to_str().unwrap());
    let program = Program::start(directory, &table);
    let own = sign_up(directory, &program, &person, "ada").await;
    let other = sign_up(directory, &program, &person, "grace").await;
    let (node, machine) = join(directory, &program, &person, &authority, &own).await;

    let policy = RegoPolicy::compile(POLICY).unwrap();
    let (mut asked, mut refused, mut itself) = (0, 0, Vec::new());
    for endpoint in endpoints() {
        let (operation, path) = (endpoint.operation(), endpoint.path());
        for (tenant, is_own) in [(&own, true), (&other, false)] {
            let ids = [
                ("tenant", tenant.id.to_string()),
                ("node", node.to_string()),
                ("volume", tenant.volume.clone()),
                ("member", tenant.member.clone()),
                ("month", "2026-11".to_owned()),
                ("sequence", "0".to_owned()),
            ];
            let mut asks = path.to_owned();
            let mut params = BTreeMap::new();
            for (name, id) in ids {
                let hole = format!("{{{name}}}");
                if asks.contains(&hole) {
                    asks = asks.replace(&hole, &id);
                    params.insert(name.to_owned(), id);
                }
            }
            // What there is none of has an id all the same: the node must be refused before anybody looks.
            while let Some((before, rest)) = asks.split_once('{') {
                let (name, after) = rest.split_once('}').unwrap();
                let id = format!("{}_{}", &name[..3.min(name.len())], "0".repeat(32));
                params.insert(name.to_owned(), id.clone());
                asks = format!("{before}{id}{after}");
            }
            let is_door = is_public(&policy, &operation);
            let body = if endpoint.is_mutation() {
                json!({})
            } else {
                Value::Null
            };
            let (status, said) = program
                .ask(&machine, endpoint.method().as_str(), &asks, "", body)
                .await;
            asked += 1;
            let may = firn_api::ask(
                &policy,
                &operation,
                &params,
                own.id,
                Principal::Node(node),
                Role::Node,
            ) && is_own;
            if may && !is_door {
                itself.push(operation.clone());
            } else if !is_door {
                assert!(
                    [StatusCode::FORBIDDEN, StatusCode::NOT_FOUND].contains(&status),
                    "{operation} of {}: {status} {said}",
                    tenant.id
                );
                refused += 1;
            }
            // Whatever the answer was, nothing of a tenant's records is in it, and none of the service's own.
            let said = said.to_string();
            for secret in own.secrets.iter().chain(&other.secrets) {
                assert!(!said.contains(secret), "{operation}: {said}");
            }
        }
    }
    itself.sort();
    assert_eq!(
        itself,
        [
            "GET /v1/tenants/{tenant}/nodes/{node}",
            "POST /v1/tenants/{tenant}/nodes/{node}/certificate",
            "POST /v1/tenants/{tenant}/nodes/{node}/heartbeat",
            "POST /v1/tenants/{tenant}/nodes/{node}/usage",
            "POST /v1/tenants/{tenant}/tokens/revoke",
        ],
        "what a node may, and nothing else"
    );
    assert!(asked > 100 && refused > 100, "{asked} asked, {refused} refused");
    let (status, shown) = program
        .ask(
            &machine,
            "GET",
            &format!("{}/nodes/{node}", own.base),
            "",
            Value::Null,
        )
        .await;
    assert_eq!(
        (status, shown["id"].as_str()),
        (StatusCode::OK, Some(&*node.to_string()))
    );
    // The same request by the owner shows that there was something to read.
    let (status, shown) = program
        .ask(
            &person,
            "GET",
            &format!("{}/volumes/{}", own.base, own.volume),
            &own.token,
            Value::Null,
        )
        .await;
    assert_eq!(status, StatusCode::OK);
    assert!(shown.to_string().contains("files-of-ada"), "{shown}");
    program.kill();
}

/// Whether an operation asks for no token: it checks a secret of its own.
fn is_public(policy: &RegoPolicy, operation: &str) -> bool {
    use firn_api::Policy as _;
    let params = BTreeMap::new();
    policy.allows(&firn_api::Question {
        operation,
        params: &params,
        caller: None,
    })
}
