//! API keys, join secrets, and what prints of any secret.

use firn_identity::{
    ApiKey, Authenticator, CapabilityIssuer, DiskId, JoinError, JoinSecret, KeyId, KeySchedule, LookupId,
    MAX_INVITATION_BYTES, Principal, Role, SigningKey, TenantId, TokenIssuer, equal_in_constant_time,
};
use proptest::prelude::*;
use std::fmt::Debug;

fn counting() -> impl FnMut(&mut [u8]) {
    let mut next = 0_u8;
    move |bytes| {
        for byte in bytes {
            next = next.wrapping_mul(5).wrapping_add(113);
            *byte = next;
        }
    }
}

#[test]
fn an_api_key_survives_its_text_and_matches_its_hash_only() {
    let mut entropy = counting();
    let key = ApiKey::generate(&mut entropy);
    let other = ApiKey::generate(&mut entropy);
    let text = key.expose();
    assert!(text.starts_with("firn_"));
    let again = ApiKey::parse(&text).unwrap();
    assert_eq!(again.id(), key.id());
    assert!(key.hash().matches(&again));
    assert!(!key.hash().matches(&other));
}

#[test]
fn one_keys_secret_under_anothers_name_is_neither_parsed_nor_matched() {
    let mut entropy = counting();
    let (key, other) = (ApiKey::generate(&mut entropy), ApiKey::generate(&mut entropy));
    let (text, named) = (key.expose(), other.expose());
    let crossed = format!("{}{}", &named[..38], &text[38..]);
    assert!(ApiKey::parse(&crossed).is_err());
}

#[test]
fn a_typing_error_in_an_api_key_is_noticed() {
    let text = ApiKey::generate(&mut counting()).expose().to_string();
    for position in 0..text.len() {
        let mut typed = text.clone().into_bytes();
        typed[position] = if typed[position] == b'a' { b'b' } else { b'a' };
        assert!(
            ApiKey::parse(&String::from_utf8(typed).unwrap()).is_err(),
            "at {position}"
        );
    }
}

#[test]
fn an_invitation_opens_with_its_secret_and_no_other() {
    let mut entropy = counting();
    let secret = JoinSecret::generate(&mut entropy);
    let sealed = secret.seal(b"tenant key and volumes", &mut entropy).unwrap();
    let pasted = JoinSecret::parse(&format!(" {}\n", *secret.expose())).unwrap();
    assert_eq!(
        pasted.open(&sealed).unwrap().as_slice(),
        b"tenant key and volumes"
    );
    let other = JoinSecret::generate(&mut entropy);
    assert_eq!(other.open(&sealed).unwrap_err(), JoinError::BadInvitation);
    for position in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[position] ^= 1;
        assert!(secret.open(&changed).is_err());
    }
    let large = vec![0; MAX_INVITATION_BYTES + 1];
    assert_eq!(secret.seal(&large, &mut entropy), Err(JoinError::TooLarge));
}

#[test]
fn the_service_can_check_a_joiner_but_not_stand_in_for_it() {
    let secret = JoinSecret::generate(&mut counting());
    let stored = secret.authenticator().hash();
    let shown = Authenticator::parse(&secret.authenticator().expose()).unwrap();
    assert!(stored.matches(&shown));
    assert_eq!(
        LookupId::parse(&secret.lookup_id().to_text()).unwrap(),
        secret.lookup_id()
    );
    let tag = secret.bind(b"the edge's keys");
    assert!(secret.binds(b"the edge's keys", &tag));
    assert!(!secret.binds(b"keys of the service's own", &tag));
    // What the service saw, taken as a secret, binds nothing.
    let seen: [u8; 32] = *stored_bytes(&shown);
    let forged = JoinSecret::parse(&text_of(&seen))
        .unwrap()
        .bind(b"keys of the service's own");
    assert!(!secret.binds(b"keys of the service's own", &forged));
}

fn stored_bytes(shown: &Authenticator) -> Box<[u8; 32]> {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    Box::new(
        URL_SAFE_NO_PAD
            .decode(&*shown.expose())
            .unwrap()
            .try_into()
            .unwrap(),
    )
}

fn text_of(bytes: &[u8; 32]) -> String {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    format!("firnjoin_{}", URL_SAFE_NO_PAD.encode(bytes))
}

/// Whatever form a leak may take in a log: hex of either case, decimal lists, base64, the text a person is shown.
fn reveals(printed: &str, secret: &[u8]) -> bool {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let hex = data_encoding::HEXLOWER.encode(&secret[..4]);
    let decimal = format!("{}, {}, {}", secret[0], secret[1], secret[2]);
    let base64 = URL_SAFE_NO_PAD.encode(&secret[..6]);
    printed.to_lowercase().contains(&hex) || printed.contains(&decimal) || printed.contains(&base64)
}

#[test]
fn no_secret_prints_itself() {
    let seed: [u8; 32] = std::array::from_fn(|index| 200 - index as u8);
    assert!(
        reveals(&format!("{seed:?}"), &seed),
        "the check finds a leak when there is one"
    );
    let mut fixed = |bytes: &mut [u8]| bytes.copy_from_slice(&seed[..bytes.len()]);
    let join = JoinSecret::generate(&mut fixed);
    let schedule = KeySchedule::new(seed, 0);
    let printed: [&dyn Debug; 5] = [
        &SigningKey::from_seed(seed),
        &CapabilityIssuer::from_seed(seed),
        &schedule,
        &TokenIssuer::new("https://firn.example", schedule.clone()),
        &join,
    ];
    for value in printed {
        for text in [format!("{value:?}"), format!("{value:#?}")] {
            assert!(!reveals(&text, &seed), "{text}");
        }
    }
    let authenticator = join.authenticator();
    assert!(!reveals(
        &format!("{authenticator:?}"),
        &*stored_bytes(&authenticator)
    ));
    // A key's name is drawn first and is no secret, so its secret must be other bytes.
    let mut entropy = counting();
    let key = ApiKey::generate(&mut entropy);
    let text = key.expose();
    assert!(!format!("{key:?} {:?}", key.hash()).contains(&text[38..50]));
}

fn is_wiped_on_drop<T: zeroize::ZeroizeOnDrop>() {}

#[test]
fn secrets_are_wiped_when_dropped() {
    is_wiped_on_drop::<SigningKey>();
    is_wiped_on_drop::<CapabilityIssuer>();
    is_wiped_on_drop::<KeySchedule>();
    is_wiped_on_drop::<ApiKey>();
    is_wiped_on_drop::<JoinSecret>();
    is_wiped_on_drop::<Authenticator>();
}

#[test]
fn a_name_of_one_kind_is_not_read_as_another() {
    let disk = DiskId([9; 16]).to_string();
    assert_eq!(disk.parse::<DiskId>(), Ok(DiskId([9; 16])));
    assert!(disk.parse::<TenantId>().is_err());
    assert!(disk.to_uppercase().parse::<DiskId>().is_err());
    assert!(disk.parse::<Principal>().is_err());
    let key = KeyId([9; 16]);
    assert_eq!(key.to_string().parse::<Principal>(), Ok(Principal::Key(key)));
    for role in Role::ALL {
        assert_eq!(serde_json::to_string(&role).unwrap(), format!("\"{role}\""));
    }
}

#[test]
fn equality_looks_at_every_byte() {
    assert!(equal_in_constant_time(b"abc", b"abc"));
    assert!(!equal_in_constant_time(b"abc", b"abd"));
    assert!(!equal_in_constant_time(b"abc", b"ab"));
}

proptest! {
    #[test]
    fn no_text_panics_a_parser(text in "\\PC*", multibyte in "firn_\\PC{30,90}") {
        for text in [&text, &multibyte] {
            prop_assert!(ApiKey::parse(text).is_err());
            prop_assert!(JoinSecret::parse(text).is_err());
            let _ = LookupId::parse(text);
            let _ = text.parse::<TenantId>();
        }
    }
}
