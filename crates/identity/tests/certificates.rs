//! The authority's certificates on real TLS connections.

use firn_env::Env;
use firn_identity::{
    AuthorityError, CERTIFICATE_SECONDS, CertificateAuthority, CertificateDer, ClientCertificates, DiskId,
    EdgeId, Expected, KeyHash, NodeId, PeerError, PeerIdentity, PeerKind, SigningKey, TenantId, TlsIdentity,
    UnixTime, certificate_request, client_config, requested_key, server_config,
};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const DOMAIN: &str = "firn.example";

fn env() -> Env {
    firn_env::real(&std::env::temp_dir()).unwrap()
}

fn now() -> UnixTime {
    UnixTime::from_wall(env().wall())
}

fn authority(seed: u8) -> CertificateAuthority {
    CertificateAuthority::from_seed([seed; 32], DOMAIN, UnixTime(1_767_225_600)).unwrap()
}

fn name(kind: PeerKind) -> PeerIdentity {
    PeerIdentity {
        trust_domain: DOMAIN.into(),
        kind,
    }
}

fn node() -> PeerIdentity {
    name(PeerKind::Node(NodeId([4; 16])))
}

fn edge() -> PeerIdentity {
    name(PeerKind::Edge {
        tenant: TenantId([1; 16]),
        edge: EdgeId([2; 16]),
    })
}

fn identity_at(authority: &CertificateAuthority, name: &PeerIdentity, now: UnixTime) -> TlsIdentity {
    let key = SigningKey::from_seed([11; 32]);
    let request = certificate_request(&key, name);
    let issued = authority
        .issue(&request, name, &[], now, &mut |bytes| bytes.fill(1))
        .unwrap();
    TlsIdentity::new(&key, &issued).unwrap()
}

fn identity(authority: &CertificateAuthority, name: &PeerIdentity) -> TlsIdentity {
    identity_at(authority, name, now())
}

/// Connects client and server over a pipe; gives who the server saw.
async fn handshake(
    server: &TlsIdentity,
    server_trusts: &CertificateAuthority,
    client: &TlsIdentity,
    client_trusts: &CertificateAuthority,
    expected: Expected,
) -> Result<PeerIdentity, std::io::Error> {
    let trusts = |authority: &CertificateAuthority| -> Vec<CertificateDer<'static>> {
        vec![authority.certificate().clone()]
    };
    let server = server_config(
        &env(),
        server,
        &trusts(server_trusts),
        ClientCertificates::Required,
    )
    .unwrap();
    let client = client_config(&env(), client, &trusts(client_trusts), expected).unwrap();
    let (near, far) = tokio::io::duplex(1 << 16);
    let connector = TlsConnector::from(Arc::new(client));
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let call = async {
        let mut stream = connector
            .connect("node.invalid".try_into().unwrap(), near)
            .await?;
        stream.write_all(b"ping").await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(())
    };
    let serve = async {
        let mut stream = acceptor.accept(far).await?;
        let peer = PeerIdentity::of_certificate(&stream.get_ref().1.peer_certificates().unwrap()[0]).unwrap();
        let mut asked = [0; 4];
        stream.read_exact(&mut asked).await?;
        stream.write_all(&asked).await?;
        Ok::<_, std::io::Error>(peer)
    };
    let (called, served) = futures::future::join(call, serve).await;
    called?;
    served
}

#[tokio::test]
async fn two_peers_of_one_authority_know_each_other_by_name() {
    let authority = authority(1);
    let (server, client) = (identity(&authority, &node()), identity(&authority, &edge()));
    let any = Expected::AnyNode {
        trust_domain: DOMAIN.into(),
    };
    for expected in [Expected::Peer(node()), any] {
        let seen = handshake(&server, &authority, &client, &authority, expected)
            .await
            .unwrap();
        assert_eq!(seen, edge());
    }
}

#[tokio::test]
async fn a_client_refuses_a_server_of_another_name() {
    let authority = authority(1);
    let (server, client) = (identity(&authority, &edge()), identity(&authority, &edge()));
    for expected in [
        Expected::Peer(node()),
        Expected::AnyNode {
            trust_domain: DOMAIN.into(),
        },
    ] {
        assert!(
            handshake(&server, &authority, &client, &authority, expected)
                .await
                .is_err()
        );
    }
}

#[tokio::test]
async fn neither_end_accepts_a_certificate_of_another_authority() {
    let (ours, theirs) = (authority(1), authority(2));
    let expected = || Expected::Peer(node());
    let result = handshake(
        &identity(&ours, &node()),
        &ours,
        &identity(&theirs, &edge()),
        &ours,
        expected(),
    )
    .await;
    assert!(result.is_err());
    let result = handshake(
        &identity(&theirs, &node()),
        &ours,
        &identity(&ours, &edge()),
        &ours,
        expected(),
    )
    .await;
    assert!(result.is_err());
}

#[tokio::test]
async fn an_expired_certificate_is_refused_and_a_renewed_one_serves_new_connections() {
    let authority = authority(1);
    let old = now().minus(CERTIFICATE_SECONDS + 3600);
    let (server, client) = (
        identity(&authority, &node()),
        identity_at(&authority, &edge(), old),
    );
    assert!(client.expires() < now());
    assert!(
        handshake(&server, &authority, &client, &authority, Expected::Peer(node()))
            .await
            .is_err()
    );

    let key = SigningKey::from_seed([12; 32]);
    let request = certificate_request(&key, &edge());
    let issued = authority
        .issue(&request, &edge(), &[], now(), &mut |bytes| bytes.fill(1))
        .unwrap();
    client.renew(&key, &issued).unwrap();
    assert!(client.renew_after() > now() && client.renew_after() < client.expires());
    assert!(
        handshake(&server, &authority, &client, &authority, Expected::Peer(node()))
            .await
            .is_ok()
    );
}

#[test]
fn a_request_is_good_for_the_name_it_was_signed_for_and_no_other() {
    let authority = authority(1);
    let key = SigningKey::from_seed([11; 32]);
    let mut request = certificate_request(&key, &edge());
    let issue = |request: &[u8], name: &PeerIdentity| {
        authority.issue(request, name, &[], now(), &mut |bytes| bytes.fill(1))
    };
    assert!(issue(&request, &edge()).is_ok());
    assert!(matches!(
        issue(&request, &node()),
        Err(AuthorityError::NotProved { .. })
    ));
    assert_eq!(issue(&request[1..], &edge()), Err(AuthorityError::Malformed));
    let foreign = PeerIdentity {
        trust_domain: "other.example".into(),
        ..edge()
    };
    assert!(matches!(
        issue(&request, &foreign),
        Err(AuthorityError::ForeignName { .. })
    ));
    // Somebody else's public key with one's own signature.
    request[1..66].copy_from_slice(&SigningKey::from_seed([13; 32]).public().to_bytes());
    assert!(matches!(
        issue(&request, &edge()),
        Err(AuthorityError::NotProved { .. })
    ));
}

#[test]
fn a_certificate_for_another_key_is_not_taken() {
    let authority = authority(1);
    let key = SigningKey::from_seed([11; 32]);
    let issued = authority
        .issue(
            &certificate_request(&key, &edge()),
            &edge(),
            &[],
            now(),
            &mut |bytes| bytes.fill(1),
        )
        .unwrap();
    assert!(TlsIdentity::new(&SigningKey::from_seed([12; 32]), &issued).is_err());
}

#[test]
fn names_are_read_exactly_as_they_are_written() {
    let service = name(PeerKind::Service("api".into()));
    let own = name(PeerKind::TenantNode {
        tenant: TenantId([1; 16]),
        node: NodeId([4; 16]),
    });
    for name in [edge(), node(), own, service] {
        assert_eq!(PeerIdentity::parse(&name.to_string()), Ok(name));
    }
    let edge = edge().to_string();
    for wrong in [
        String::new(),
        "spiffe://".into(),
        edge.replace("spiffe", "https"),
        edge.replace("firn.example", ""),
        edge.replace("firn.example", "FIRN"),
        edge.replace("firn.example", "firn.example:1"),
        edge.to_uppercase(),
        format!("{edge}/"),
        format!("{edge}/more"),
        edge.replace("edge", "node"),
        format!("spiffe://{DOMAIN}/service/a/b"),
        format!("spiffe://{DOMAIN}/service/"),
        format!("spiffe://{DOMAIN}/service/a.b"),
        format!("spiffe://{DOMAIN}//node/{}", NodeId([4; 16])),
    ] {
        assert_eq!(PeerIdentity::parse(&wrong), Err(PeerError::NotOurName), "{wrong}");
    }
    assert!(CertificateAuthority::from_seed([1; 32], "no spaces", UnixTime(0)).is_err());
}

#[test]
fn nodes_of_the_fleet_and_of_each_tenant_are_strangers_to_each_other() {
    let of = |tenant: u8, node: u8| PeerKind::TenantNode {
        tenant: TenantId([tenant; 16]),
        node: NodeId([node; 16]),
    };
    let fleet = |node: u8| PeerKind::Node(NodeId([node; 16]));
    assert!(fleet(1).is_node_beside(&fleet(2)));
    assert!(of(1, 1).is_node_beside(&of(1, 2)));
    for (one, other) in [
        (fleet(1), of(1, 1)),
        (of(1, 1), fleet(1)),
        (of(1, 1), of(2, 1)),
        (fleet(1), edge().kind),
        (edge().kind, edge().kind),
    ] {
        assert!(!one.is_node_beside(&other), "{one:?} and {other:?}");
    }
    assert_eq!(of(1, 1).beside(NodeId([2; 16])), Some(of(1, 2)));
    assert_eq!(edge().kind.beside(NodeId([2; 16])), None);
}

#[test]
fn the_name_of_an_attachment_is_of_its_key_and_has_one_spelling() {
    let (one, other) = (SigningKey::from_seed([1; 32]), SigningKey::from_seed([2; 32]));
    assert_ne!(KeyHash::of(&one.public()), KeyHash::of(&other.public()));
    let name = name(PeerKind::Attachment {
        tenant: TenantId([1; 16]),
        disk: DiskId([2; 16]),
        key: KeyHash::of(&one.public()),
    });
    let text = name.to_string();
    assert_eq!(PeerIdentity::parse(&text).as_ref(), Ok(&name));
    for wrong in [
        text.replace("attachment", "attachments"),
        text.replace("dsk_", "nod_"),
        text.to_uppercase(),
        format!("{text}0"),
        format!("{text}/x"),
        text[..text.len() - 1].to_owned(),
    ] {
        assert!(PeerIdentity::parse(&wrong).is_err(), "{wrong}");
    }
    let request = certificate_request(&one, &name);
    assert_eq!(
        requested_key(&request).map(|key| KeyHash::of(&key)),
        Some(KeyHash::of(&one.public()))
    );
    assert!(requested_key(&request[1..]).is_none());
}
