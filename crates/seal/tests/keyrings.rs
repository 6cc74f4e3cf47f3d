//! Key rings: who is listed can read, who was removed cannot read what came after, and nobody but the tenant can list.

use aws_lc_rs::signature::Ed25519KeyPair;
use bytes::Bytes;
use firn_format::*;
use firn_seal::*;
use proptest::prelude::*;

const FAMILY: FamilyId = FamilyId([0xfa; 16]);
const VOLUME: VolumeId = VolumeId([0x70; 16]);

/// Entropy that never repeats, the same at every run.
fn entropy() -> impl FnMut(&mut [u8]) {
    let mut stream = blake3::Hasher::new().update(b"entropy").finalize_xof();
    move |bytes| stream.fill(bytes)
}

fn phrase() -> RecoveryPhrase {
    RecoveryPhrase::from_entropy([0x11; 32])
}

fn secret(name: &str) -> RecipientSecret {
    RecipientSecret::derive(blake3::hash(name.as_bytes()).as_bytes())
}

fn edge(name: &str) -> Recipient {
    Recipient {
        name: name.to_owned(),
        kind: RecipientKind::Edge,
        public: secret(name).public(),
    }
}

fn recovery() -> Recipient {
    Recipient {
        name: "recovery".to_owned(),
        kind: RecipientKind::Recovery,
        public: phrase().recovery_secret().public(),
    }
}

/// A ring of the recovery key and one edge.
fn ring(entropy: Entropy<'_>) -> (VerifiedKeyRing, Keys) {
    let recipients = vec![recovery(), edge("oslo")];
    let (ring, keys) = KeyRing::create(FAMILY, VOLUME, recipients, &phrase().signing_key(), entropy).unwrap();
    (verified(&ring), keys)
}

/// As it comes back from the bucket.
fn verified(ring: &KeyRing) -> VerifiedKeyRing {
    let decoded = KeyRing::decode(ring.encode()).unwrap();
    assert_eq!(decoded, *ring);
    decoded.verify(&phrase().signing_key().public()).unwrap()
}

fn seal_with(keys: &Keys) -> VerifiedObject {
    let segment = SegmentId {
        writer: WriterId(1),
        sequence: 1,
    };
    let sealer = ObjectSealer::new(keys, [1; 32], &segment);
    let object = sealer
        .seal(
            sealer.reserve_slot(),
            Kind::Inode,
            Place::of_inode(20),
            Version(1),
            Bytes::new(),
            Vec::new(),
            b"secret",
            Compression::None,
        )
        .unwrap();
    decode_object(object.bytes)
        .unwrap()
        .verify(&object.uid, None)
        .unwrap()
}

fn can_open(keys: &Keys, object: &VerifiedObject) -> bool {
    ObjectOpener::new(keys.clone()).open(object.clone()).is_ok()
}

#[test]
fn every_recipient_opens_the_same_keys() {
    let (ring, keys) = ring(&mut entropy());
    assert_eq!(
        (ring.generation(), ring.current(), keys.current()),
        (1, KeyEpoch(1), KeyEpoch(1))
    );
    let object = seal_with(&keys);
    for secret in [secret("oslo"), phrase().recovery_secret()] {
        assert!(can_open(&ring.open(&secret).unwrap(), &object));
    }
    assert_eq!(
        ring.open(&secret("paris")).unwrap_err(),
        KeyRingError::NotARecipient {
            public: secret("paris").public(),
            generation: 1
        }
    );
}

#[test]
fn rotation_seals_new_data_with_a_new_key_and_keeps_the_old_readable() {
    let mut entropy = entropy();
    let (ring, keys) = ring(&mut entropy);
    let old = seal_with(&keys);
    let (next, rotated) = ring.rotate(&keys, &phrase().signing_key(), &mut entropy).unwrap();
    let next = verified(&next);
    assert_eq!((next.generation(), next.current()), (2, KeyEpoch(2)));
    let new = seal_with(&rotated);
    assert_eq!(new.header.seal.key_epoch, KeyEpoch(2));
    assert!(!can_open(&keys, &new));
    let opened = next.open(&secret("oslo")).unwrap();
    assert!(can_open(&opened, &new) && can_open(&opened, &old));
    assert_eq!(next.epochs().collect::<Vec<_>>(), [KeyEpoch(1), KeyEpoch(2)]);
}

#[test]
fn a_new_recipient_reads_everything() {
    let mut entropy = entropy();
    let (ring, keys) = ring(&mut entropy);
    let signer = phrase().signing_key();
    let (ring, keys) = ring
        .rotate(&keys, &signer, &mut entropy)
        .map(|(ring, keys)| (verified(&ring), keys))
        .unwrap();
    let wider = verified(
        &ring
            .add_recipient(&keys, edge("paris"), &signer, &mut entropy)
            .unwrap(),
    );
    assert_eq!(
        (wider.generation(), wider.current()),
        (3, KeyEpoch(2)),
        "no new epoch is needed"
    );
    let opened = wider.open(&secret("paris")).unwrap();
    assert!(can_open(&opened, &seal_with(&keys)));
    assert!(opened.epochs() == keys.epochs());
    // Nobody else's envelopes changed.
    assert!(wider.open(&secret("oslo")).is_ok());
}

#[test]
fn a_removed_recipient_reads_nothing_new() {
    let mut entropy = entropy();
    let (ring, keys) = ring(&mut entropy);
    let signer = phrase().signing_key();
    let wider = verified(
        &ring
            .add_recipient(&keys, edge("paris"), &signer, &mut entropy)
            .unwrap(),
    );
    let stolen = wider.open(&secret("paris")).unwrap();

    let (narrower, keys) = wider
        .remove_recipient(&keys, "paris", &signer, &mut entropy)
        .unwrap();
    let narrower = verified(&narrower);
    assert_eq!((narrower.generation(), narrower.current()), (3, KeyEpoch(2)));
    assert!(matches!(
        narrower.open(&secret("paris")),
        Err(KeyRingError::NotARecipient { .. })
    ));
    assert!(!can_open(&stolen, &seal_with(&keys)));
    for secret in [secret("oslo"), phrase().recovery_secret()] {
        let opened = narrower.open(&secret).unwrap();
        assert!(can_open(&opened, &seal_with(&keys)));
        assert!(opened.epochs() == [KeyEpoch(1), KeyEpoch(2)]);
    }
    let encoded = narrower.ring().encode();
    let traces = encoded
        .windows(32)
        .filter(|window| *window == secret("paris").public().to_bytes());
    assert_eq!(traces.count(), 0, "no envelope for it is left");
}

#[test]
fn removing_one_recipient_leaves_the_others_their_own_envelopes() {
    let mut entropy = entropy();
    let (mut ring, mut keys) = ring(&mut entropy);
    let signer = phrase().signing_key();
    for name in ["paris", "rome", "lima"] {
        ring = verified(
            &ring
                .add_recipient(&keys, edge(name), &signer, &mut entropy)
                .unwrap(),
        );
    }
    for removed in ["paris", "oslo"] {
        let (next, rotated) = ring
            .remove_recipient(&keys, removed, &signer, &mut entropy)
            .unwrap();
        (ring, keys) = (verified(&next), rotated);
        assert!(ring.open(&secret(removed)).is_err());
        for kept in [secret("rome"), secret("lima"), phrase().recovery_secret()] {
            assert!(
                ring.open(&kept).unwrap().epochs() == keys.epochs(),
                "without {removed}"
            );
        }
    }
}

#[test]
fn only_the_tenant_can_vouch_for_a_ring() {
    let (ring, _) = ring(&mut entropy());
    let stranger = RecoveryPhrase::from_entropy([0x22; 32]).signing_key();
    assert!(matches!(
        ring.ring().clone().verify(&stranger.public()),
        Err(KeyRingError::BadSignature { generation: 1, .. })
    ));
    // The service that stores rings cannot list itself: it has no signing key.
    let (forged, _) = KeyRing::create(
        FAMILY,
        VOLUME,
        vec![recovery(), edge("mallory")],
        &stranger,
        &mut entropy(),
    )
    .unwrap();
    assert!(forged.verify(&phrase().signing_key().public()).is_err());
}

#[test]
fn every_flipped_bit_is_noticed() {
    let (ring, _) = ring(&mut entropy());
    let tenant = phrase().signing_key().public();
    let bytes = ring.ring().encode();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let outcome = KeyRing::decode(flipped.into()).and_then(|ring| ring.verify(&tenant));
        assert!(outcome.is_err(), "bit {bit}");
    }
    for length in 0..bytes.len() {
        assert!(KeyRing::decode(bytes.slice(..length)).is_err(), "cut to {length}");
    }
    assert!(KeyRing::decode([&bytes[..], &[0]].concat().into()).is_err());
}

#[test]
fn an_envelope_that_does_not_hold_the_promised_key_is_refused() {
    // Signed by the tenant all the same: a faulty tool of its own, or a signing key in wrong hands.
    let seed = [0x33; 32];
    let signer = TenantSigningKey::from_seed(seed);
    let recipients = vec![recovery(), edge("oslo")];
    let (ring, _) = KeyRing::create(FAMILY, VOLUME, recipients, &signer, &mut entropy()).unwrap();
    let sign = |mut body: Vec<u8>| {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        let signature = pair.sign(&[b"firn 1 key ring signature", &body[..]].concat());
        body.extend(signature.as_ref());
        KeyRing::decode(body.into())
            .unwrap()
            .verify(&signer.public())
            .unwrap()
    };
    let body = ring.encode();
    let body = &body[..body.len() - 64];
    assert!(sign(body.to_vec()).open(&secret("oslo")).is_ok());

    // From the end: oslo's envelope of 80 bytes, that of recovery, the commitment of 32 bytes.
    let refused = KeyRingError::BadEnvelope {
        epoch: KeyEpoch(1),
        recipient: "oslo".to_owned(),
    };
    for (from_end, what) in [(1, "sealed key"), (80, "encapsulated key"), (161, "commitment")] {
        let mut altered = body.to_vec();
        altered[body.len() - from_end] ^= 1;
        assert_eq!(
            sign(altered).open(&secret("oslo")).unwrap_err(),
            refused,
            "{what}"
        );
    }
    // Envelopes of two recipients exchanged.
    let (start, envelopes) = body.split_at(body.len() - 160);
    let exchanged = [start, &envelopes[80..], &envelopes[..80]].concat();
    assert_eq!(sign(exchanged).open(&secret("oslo")).unwrap_err(), refused);
}

#[test]
fn a_ring_held_back_or_forked_is_noticed() {
    let mut entropy = entropy();
    let (first, keys) = ring(&mut entropy);
    let signer = phrase().signing_key();
    let second = verified(
        &first
            .add_recipient(&keys, edge("paris"), &signer, &mut entropy)
            .unwrap(),
    );
    let fork = verified(
        &first
            .add_recipient(&keys, edge("rome"), &signer, &mut entropy)
            .unwrap(),
    );
    let third = verified(
        &second
            .add_recipient(&keys, edge("rome"), &signer, &mut entropy)
            .unwrap(),
    );

    assert_eq!(second.check(&FAMILY, 2), Ok(()));
    assert_eq!(
        first.check(&FAMILY, 2),
        Err(KeyRingError::Stale {
            found: 1,
            newest_seen: 2
        })
    );
    assert!(matches!(
        first.check(&FamilyId([1; 16]), 0),
        Err(KeyRingError::WrongFamily { .. })
    ));

    assert_eq!(third.check_follows(&second), Ok(()));
    assert_eq!(second.check_follows(&first), Ok(()));
    for (ring, previous) in [
        (&third, &fork),
        (&third, &first),
        (&first, &first),
        (&second, &third),
    ] {
        assert!(matches!(
            ring.check_follows(previous),
            Err(KeyRingError::Forked { .. })
        ));
    }
}

#[test]
fn a_ring_is_taken_after_another_only_if_it_continues_it() {
    let mut entropy = entropy();
    let (first, keys) = ring(&mut entropy);
    let signer = phrase().signing_key();
    let (second, second_keys) = first.rotate(&keys, &signer, &mut entropy).unwrap();
    let (fork, _) = first.rotate(&keys, &signer, &mut entropy).unwrap();
    let (second, fork) = (verified(&second), verified(&fork));
    let (third, _) = second.rotate(&second_keys, &signer, &mut entropy).unwrap();
    let third = verified(&third);

    for (ring, newest_seen) in [
        (&first, &first),
        (&second, &first),
        (&third, &second),
        (&third, &first),
    ] {
        assert_eq!(ring.check_after(&newest_seen.seen()), Ok(()));
    }
    for (ring, newest_seen) in [(&first, &second), (&first, &third), (&second, &third)] {
        assert!(matches!(
            ring.check_after(&newest_seen.seen()),
            Err(KeyRingError::Stale { .. })
        ));
    }
    for (ring, newest_seen) in [(&second, &fork), (&third, &fork)] {
        assert!(matches!(
            ring.check_after(&newest_seen.seen()),
            Err(KeyRingError::Forked { .. })
        ));
    }
}

#[test]
fn a_ring_of_another_volume_is_noticed_and_a_successor_stays_with_its_volume() {
    let mut entropy = entropy();
    let (first, keys) = ring(&mut entropy);
    let other = VolumeId([0x71; 16]);
    assert_eq!(first.volume(), Some(VOLUME));
    assert_eq!(first.check_volume(&VOLUME), Ok(()));
    let refused = KeyRingError::WrongVolume {
        expected: other,
        found: VOLUME,
    };
    assert_eq!(first.check_volume(&other), Err(refused.clone()));
    assert_eq!(first.clone().bound_to(other).unwrap_err(), refused);
    let signer = phrase().signing_key();
    let (second, _) = first.rotate(&keys, &signer, &mut entropy).unwrap();
    assert_eq!(verified(&second).volume(), Some(VOLUME));

    // The volume is among what is signed.
    let mut forged = first.ring().encode().to_vec();
    forged[76..92].copy_from_slice(&other.0);
    let forged = KeyRing::decode(forged.into()).unwrap();
    assert!(matches!(
        forged.verify(&signer.public()),
        Err(KeyRingError::BadSignature { .. })
    ));
}

#[test]
fn what_one_holder_of_keys_adopts_all_see_and_nothing_else_is_adopted() {
    let mut entropy = entropy();
    let (first, keys) = ring(&mut entropy);
    let signer = phrase().signing_key();
    let (_, rotated) = first.rotate(&keys, &signer, &mut entropy).unwrap();
    let (_, other) = first.rotate(&keys, &signer, &mut entropy).unwrap();
    let (_, foreign) = ring(&mut entropy);
    let sealing = keys.clone();
    assert_eq!(sealing.current(), KeyEpoch(1));

    assert!(keys.adopt(&foreign).is_err(), "another key of epoch 1");
    assert_eq!(keys.adopt(&keys.clone()), Ok(false));
    assert_eq!(keys.adopt(&rotated), Ok(true));
    assert_eq!(sealing.current(), KeyEpoch(2));
    assert_eq!(seal_with(&sealing).header.seal.key_epoch, KeyEpoch(2));
    assert!(keys.adopt(&other).is_err(), "another key of epoch 2");
    assert!(
        keys.adopt(&first.open(&secret("oslo")).unwrap()).is_err(),
        "older keys"
    );
    assert_eq!(keys.epochs(), [KeyEpoch(1), KeyEpoch(2)]);
}

#[test]
fn keys_of_another_ring_change_nothing() {
    let mut entropy = entropy();
    let (ring, keys) = ring(&mut entropy);
    let (_, foreign) = self::ring(&mut entropy);
    let signer = phrase().signing_key();
    let (next, rotated) = ring.rotate(&keys, &signer, &mut entropy).unwrap();
    assert_eq!(
        ring.rotate(&foreign, &signer, &mut entropy).unwrap_err(),
        KeyRingError::WrongKeys
    );
    assert_eq!(
        ring.rotate(&rotated, &signer, &mut entropy).unwrap_err(),
        KeyRingError::WrongKeys
    );
    let next = verified(&next);
    let added = next.add_recipient(&keys, edge("paris"), &signer, &mut entropy);
    assert_eq!(added.unwrap_err(), KeyRingError::WrongKeys);
}

#[test]
fn a_ring_lists_each_name_and_key_once_and_always_recovery() {
    let mut entropy = entropy();
    let (ring, keys) = ring(&mut entropy);
    let signer = phrase().signing_key();
    let mut refused = |recipient| {
        ring.add_recipient(&keys, recipient, &signer, &mut entropy)
            .unwrap_err()
    };
    let named = |name: &str| Recipient {
        name: name.to_owned(),
        ..edge("paris")
    };
    for (recipient, reason) in [
        (edge("oslo"), "the name is taken"),
        (
            Recipient {
                name: "twin".to_owned(),
                ..edge("oslo")
            },
            "the key is listed under another name",
        ),
        (named(""), "a name has 1 to 255 bytes"),
        (named(&"x".repeat(256)), "a name has 1 to 255 bytes"),
    ] {
        assert!(
            matches!(refused(recipient), KeyRingError::BadRecipient { reason: given, .. } if given == reason)
        );
    }
    let mut entropy = self::entropy();
    let created = KeyRing::create(FAMILY, VOLUME, vec![edge("oslo")], &signer, &mut entropy);
    assert_eq!(created.unwrap_err(), KeyRingError::NoRecovery);
    let removed = ring.remove_recipient(&keys, "recovery", &signer, &mut entropy);
    assert_eq!(removed.unwrap_err(), KeyRingError::NoRecovery);
    let unknown = ring.remove_recipient(&keys, "rome", &signer, &mut entropy);
    assert!(matches!(unknown, Err(KeyRingError::UnknownRecipient { name }) if name == "rome"));
}

#[test]
fn a_ring_is_stored_where_a_listing_gives_the_newest_last() {
    let (ring, _) = ring(&mut entropy());
    let family = "fa".repeat(16);
    assert_eq!(
        ring.ring().object_key(),
        format!("{family}/keyring/0000000000000001")
    );
    assert!(
        ring.ring()
            .object_key()
            .starts_with(&KeyRing::object_prefix(&FAMILY))
    );
}

#[test]
fn a_version_this_build_cannot_read_is_refused() {
    let (ring, _) = ring(&mut entropy());
    let mut bytes = ring.ring().encode().to_vec();
    bytes[8] = 3;
    assert!(matches!(
        KeyRing::decode(bytes.into()),
        Err(KeyRingError::Format(FormatError::UnknownVersion { found: 3, .. }))
    ));
}

proptest! {
    #[test]
    fn any_bytes_at_all_are_decoded_or_refused(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut: prop::sample::Index,
    ) {
        let (ring, _) = ring(&mut entropy());
        let mut bytes = ring.ring().encode().to_vec();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len() * 4).min(bytes.len()));
        let _ = KeyRing::decode(bytes.into());
    }

    #[test]
    fn a_phrase_is_read_as_it_was_written_down(entropy: [u8; 32]) {
        let phrase = RecoveryPhrase::from_entropy(entropy);
        let words = phrase.expose_words();
        prop_assert_eq!(words.split(' ').count(), 24);
        let typed = words.to_uppercase().replace(' ', "\n  ");
        let again = RecoveryPhrase::parse(&typed).unwrap();
        prop_assert_eq!(again.expose_words(), words);
        prop_assert_eq!(again.signing_key().public(), phrase.signing_key().public());
        prop_assert_eq!(again.recovery_secret().public(), phrase.recovery_secret().public());
    }
}

#[test]
fn a_slip_of_the_pen_in_a_phrase_is_named() {
    let words = phrase().expose_words();
    let parse = |text: &str| RecoveryPhrase::parse(text).map(drop);
    assert_eq!(
        parse("abandon abandon"),
        Err(PhraseError::WrongLength { found: 2 })
    );
    assert_eq!(
        parse(&format!("{} abandon", *words)),
        Err(PhraseError::WrongLength { found: 25 })
    );
    let mut list: Vec<_> = words.split(' ').collect();
    list[4] = "firn";
    assert_eq!(
        parse(&list.join(" ")),
        Err(PhraseError::UnknownWord { position: 5 })
    );
    let mut list: Vec<_> = words.split(' ').collect();
    list[4] = "zoo";
    assert_eq!(parse(&list.join(" ")), Err(PhraseError::BadChecksum));
    // Twelve words of a valid phrase are no phrase of ours.
    let short =
        "abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon about";
    assert_eq!(parse(short), Err(PhraseError::WrongLength { found: 12 }));
}

#[test]
fn the_word_list_and_checksum_are_those_of_bip39() {
    // The standard's own vector for 32 zero bytes.
    let phrase = RecoveryPhrase::from_entropy([0; 32]);
    assert_eq!(*phrase.expose_words(), format!("{}art", "abandon ".repeat(23)));
}

#[test]
fn secrets_survive_a_trip_through_their_bytes() {
    let oslo = secret("oslo");
    let again = RecipientSecret::from_bytes(&oslo.to_bytes()).unwrap();
    assert_eq!(again.public(), oslo.public());
    let public = RecipientPublic::from_bytes(&oslo.public().to_bytes()).unwrap();
    assert_eq!(public, oslo.public());
    let signer = phrase().signing_key();
    assert_eq!(
        TenantPublic::from_bytes(signer.public().to_bytes()),
        signer.public()
    );
}
