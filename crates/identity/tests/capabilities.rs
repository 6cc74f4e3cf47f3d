//! Disk capabilities: made by the API, checked by a node that asks nobody.

use firn_identity::{
    CAPABILITY_BYTES, CLOCK_SKEW_SECONDS, Capability, CapabilityError, CapabilityIssuer, CapabilityVerifier,
    DiskId, EdgeId, HolderHash, MAX_CAPABILITY_SECONDS, NodeId, PeerIdentity, PeerKind, Rights, TenantId,
    UnixTime,
};
use proptest::prelude::*;

const NOW: UnixTime = UnixTime(1_800_000_000);

fn peer(edge: u8) -> PeerIdentity {
    PeerIdentity {
        trust_domain: "firn.example".into(),
        kind: PeerKind::Edge {
            tenant: TenantId([2; 16]),
            edge: EdgeId([edge; 16]),
        },
    }
}

fn capability() -> Capability {
    Capability {
        tenant: TenantId([2; 16]),
        disk: DiskId([5; 16]),
        rights: Rights::READ.and(Rights::WRITE),
        fence: 7,
        not_before: NOW,
        expires: NOW.plus(3600),
        holder: Some(HolderHash::of(&peer(1))),
    }
}

fn issuer() -> CapabilityIssuer {
    CapabilityIssuer::from_seed([6; 32])
}

fn verifier() -> CapabilityVerifier {
    CapabilityVerifier::new([issuer().public()])
}

#[test]
fn a_capability_tells_the_node_what_the_service_said() {
    let verified = verifier().verify(&issuer().issue(&capability()), NOW).unwrap();
    assert_eq!(verified.capability(), &capability());
    let permit = |wanted, fence| verified.permit(TenantId([2; 16]), DiskId([5; 16]), wanted, fence, &peer(1));
    assert_eq!(permit(Rights::READ, 7), Ok(()));
    assert_eq!(permit(Rights::READ.and(Rights::WRITE), 6), Ok(()));
    assert_eq!(permit(Rights::ATTACH, 7), Err(CapabilityError::MissingRight));
    assert_eq!(
        permit(Rights::READ, 8),
        Err(CapabilityError::Fenced { found: 7, newest: 8 })
    );
}

#[test]
fn another_tenant_disk_or_holder_is_refused() {
    let verified = verifier().verify(&issuer().issue(&capability()), NOW).unwrap();
    let (tenant, disk) = (TenantId([2; 16]), DiskId([5; 16]));
    let permit = |tenant, disk, peer| verified.permit(tenant, disk, Rights::READ, 0, &peer);
    assert_eq!(
        permit(TenantId([3; 16]), disk, peer(1)),
        Err(CapabilityError::WrongDisk)
    );
    assert_eq!(
        permit(tenant, DiskId([4; 16]), peer(1)),
        Err(CapabilityError::WrongDisk)
    );
    assert_eq!(permit(tenant, disk, peer(2)), Err(CapabilityError::WrongHolder));
    let node = PeerIdentity {
        trust_domain: "firn.example".into(),
        kind: PeerKind::Node(NodeId([1; 16])),
    };
    assert_eq!(permit(tenant, disk, node), Err(CapabilityError::WrongHolder));
}

#[test]
fn without_a_holder_anyone_may_present_it() {
    let bearer = Capability {
        holder: None,
        ..capability()
    };
    let verified = verifier().verify(&issuer().issue(&bearer), NOW).unwrap();
    assert!(
        verified
            .permit(TenantId([2; 16]), DiskId([5; 16]), Rights::READ, 7, &peer(9))
            .is_ok()
    );
}

#[test]
fn its_time_is_kept_and_bounded() {
    let verifier = verifier();
    let bytes = issuer().issue(&capability());
    let end = NOW.plus(3600 + CLOCK_SKEW_SECONDS);
    assert!(verifier.verify(&bytes, end.minus(1)).is_ok());
    assert_eq!(verifier.verify(&bytes, end), Err(CapabilityError::Expired));
    assert_eq!(
        verifier.verify(&bytes, NOW.minus(CLOCK_SKEW_SECONDS + 1)),
        Err(CapabilityError::NotYetValid)
    );
    let greedy = Capability {
        expires: UnixTime(u64::MAX),
        ..capability()
    };
    let verified = verifier.verify(&issuer().issue(&greedy), NOW).unwrap();
    assert_eq!(verified.capability().expires, NOW.plus(MAX_CAPABILITY_SECONDS));
}

#[test]
fn a_node_accepts_old_and_new_key_while_keys_change_and_no_other() {
    let next = CapabilityIssuer::from_seed([8; 32]);
    let bytes = next.issue(&capability());
    assert_eq!(verifier().verify(&bytes, NOW), Err(CapabilityError::UnknownKey));
    let both = CapabilityVerifier::new([issuer().public(), next.public()]);
    assert!(both.verify(&bytes, NOW).is_ok());
    assert!(both.verify(&issuer().issue(&capability()), NOW).is_ok());
}

/// Nodes and the API are updated at different times: the bytes of version 1 stay what they are.
#[test]
fn the_bytes_of_version_1_are_these() {
    let bytes = issuer().issue(&capability());
    let hex = data_encoding::HEXLOWER.encode(&bytes);
    assert_eq!(hex, include_str!("vectors/capability-v1.hex").trim());
}

proptest! {
    #[test]
    fn no_changed_capability_is_accepted(position in 0..CAPABILITY_BYTES, flip in 1_u8..) {
        let mut bytes = issuer().issue(&capability());
        bytes[position] ^= flip;
        prop_assert!(verifier().verify(&bytes, NOW).is_err());
    }

    #[test]
    fn no_bytes_panic_the_verifier(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        prop_assert!(verifier().verify(&bytes, NOW).is_err());
    }
}
