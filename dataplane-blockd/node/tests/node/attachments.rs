//! Capabilities of tenants' machines, as a node takes them: for the machine that they name and the disk that its certificate names.

use firn_blockd_node::{AuthError, Authenticator as _, CapabilityAuthenticator, Scope};
use firn_blockd_protocol::{DiskId, Fence, Peer, TenantId};
use firn_env::WallTime;
use firn_identity::{
    Capability, CapabilityIssuer, CapabilityVerifier, HolderHash, KeyHash, PeerIdentity, PeerKind, Rights,
    SigningKey, UnixTime,
};

const NOW: WallTime = WallTime(1_700_000_000_000_000_000);

fn machine(tenant: u8, disk: u8, key: u8) -> PeerIdentity {
    PeerIdentity {
        trust_domain: "firn.test".into(),
        kind: PeerKind::Attachment {
            tenant: TenantId([tenant; 16]),
            disk: DiskId([disk; 16]),
            key: KeyHash::of(&SigningKey::from_seed([key; 32]).public()),
        },
    }
}

fn shown_by(identity: &PeerIdentity) -> Peer {
    Peer {
        address: "10.0.0.9:1".into(),
        identity: Some(identity.clone()),
    }
}

#[test]
fn a_machine_uses_its_own_disk_by_its_own_capability_and_nothing_else() {
    let issuer = CapabilityIssuer::from_seed([5; 32]);
    let node = CapabilityAuthenticator::new(CapabilityVerifier::new([issuer.public()]));
    let now = UnixTime::from_wall(NOW);
    let issue = |holder: &PeerIdentity, tenant: u8, disk: u8, rights: Rights| {
        issuer.issue(&Capability {
            tenant: TenantId([tenant; 16]),
            disk: DiskId([disk; 16]),
            rights,
            fence: 3,
            not_before: now,
            expires: now.plus(7200),
            holder: Some(HolderHash::of(holder)),
        })
    };
    let all = Rights::READ.and(Rights::WRITE).and(Rights::ATTACH);
    let own = machine(1, 1, 1);
    let granted = node
        .verify(&issue(&own, 1, 1, all), &shown_by(&own), NOW)
        .expect("it is the machine's own");
    let scope = Scope::Disk {
        disk: DiskId([1; 16]),
        fence: Fence(3),
        write: true,
        attach: true,
    };
    assert_eq!((granted.tenant, granted.scope), (TenantId([1; 16]), scope));

    let other_key = machine(1, 1, 2);
    for (what, capability, peer) in [
        ("another key", issue(&own, 1, 1, all), &other_key),
        (
            "another disk than the certificate's",
            issue(&own, 1, 2, all),
            &own,
        ),
        (
            "another tenant than the certificate's",
            issue(&own, 2, 1, all),
            &own,
        ),
        (
            "a grant, which is for the service",
            issue(&own, 1, 1, Rights::ATTACH),
            &own,
        ),
    ] {
        let refused = node.verify(&capability, &shown_by(peer), NOW);
        assert!(
            matches!(refused, Err(AuthError::Invalid(_))),
            "{what}: {refused:?}"
        );
    }
    assert_eq!(node.by_name(&shown_by(&own)), None, "it is no node");
}
