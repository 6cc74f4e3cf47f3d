//! Tokens, key sets and revocations, from both sides.

use firn_identity::{
    CLOCK_SKEW_SECONDS, Claims, Grant, JwkSet, KEY_PERIOD_SECONDS, KeySchedule, MAX_REVOCATIONS,
    MAX_TENANT_REVOCATIONS, MAX_TOKEN_SECONDS, MemberId, Principal, Revocations, RevocationsError, Revoked,
    Role, TenantId, TokenError, TokenId, TokenIssuer, TokenVerifier, UnixTime,
};
use proptest::prelude::*;

const ISSUER: &str = "https://firn.example";
const NOW: UnixTime = UnixTime(1_800_000_000);

fn entropy(bytes: &mut [u8]) {
    bytes.fill(7);
}

fn issuer() -> TokenIssuer {
    TokenIssuer::new(ISSUER, KeySchedule::new([3; 32], 0))
}

fn grant() -> Grant {
    Grant {
        audience: "firn-api".into(),
        principal: Principal::Member(MemberId([1; 16])),
        tenant: TenantId([2; 16]),
        role: Role::Operator,
        scopes: vec!["volume".into()],
        lifetime_seconds: MAX_TOKEN_SECONDS,
    }
}

fn issue() -> (String, Claims) {
    issuer().issue(&grant(), NOW, &mut entropy)
}

fn verifier() -> TokenVerifier {
    TokenVerifier::new(ISSUER, "firn-api", issuer().public_keys(NOW))
}

#[test]
fn a_token_tells_the_verifier_what_the_issuer_said() {
    let (text, claims) = issue();
    let verified = verifier().verify(&text, NOW).unwrap();
    assert_eq!(verified.claims(), &claims);
    assert_eq!(claims.principal, Principal::Member(MemberId([1; 16])));
    assert!(text.len() < 1024, "{} bytes", text.len());
}

#[test]
fn a_token_lives_five_minutes_and_the_clocks_skew_longer_and_no_more() {
    let (text, _) = issue();
    let verifier = verifier();
    let end = NOW.plus(MAX_TOKEN_SECONDS + CLOCK_SKEW_SECONDS);
    assert!(verifier.verify(&text, end.minus(1)).is_ok());
    assert_eq!(verifier.verify(&text, end), Err(TokenError::Expired));
    assert!(verifier.verify(&text, NOW.minus(CLOCK_SKEW_SECONDS)).is_ok());
    assert_eq!(
        verifier.verify(&text, NOW.minus(CLOCK_SKEW_SECONDS + 1)),
        Err(TokenError::NotYetValid)
    );
}

#[test]
fn asking_for_a_longer_life_gets_five_minutes() {
    let mut grant = grant();
    grant.lifetime_seconds = 86_400;
    let (_, claims) = issuer().issue(&grant, NOW, &mut entropy);
    assert_eq!(claims.expires, NOW.plus(MAX_TOKEN_SECONDS));
}

#[test]
fn a_token_for_another_service_or_from_another_issuer_is_refused() {
    let (text, _) = issue();
    let keys = issuer().public_keys(NOW);
    let node = TokenVerifier::new(ISSUER, "firn-node", keys.clone());
    assert_eq!(node.verify(&text, NOW), Err(TokenError::WrongAudience));
    let stranger = TokenVerifier::new("https://other.example", "firn-api", keys);
    assert_eq!(stranger.verify(&text, NOW), Err(TokenError::WrongIssuer));
}

#[test]
fn a_token_under_a_key_of_another_service_is_refused() {
    let other = TokenIssuer::new(ISSUER, KeySchedule::new([4; 32], 0));
    let (text, _) = other.issue(&grant(), NOW, &mut entropy);
    assert_eq!(verifier().verify(&text, NOW), Err(TokenError::UnknownKey));
}

#[test]
fn the_algorithm_in_the_header_is_never_obeyed() {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
    let (text, _) = issue();
    let (header, rest) = text.split_once('.').unwrap();
    for algorithm in ["none", "HS256", "RS256", "es256"] {
        let header = String::from_utf8(B64.decode(header).unwrap()).unwrap();
        let forged = format!("{}.{rest}", B64.encode(header.replace("ES256", algorithm)));
        assert_eq!(verifier().verify(&forged, NOW), Err(TokenError::Malformed));
    }
}

#[test]
fn keys_change_every_day_and_a_cached_set_still_serves_the_neighbours() {
    let issuer = issuer();
    let cached = issuer.public_keys(NOW);
    assert_eq!(cached.len(), 3);
    let verifier = TokenVerifier::new(ISSUER, "firn-api", cached);
    for later in [0, KEY_PERIOD_SECONDS] {
        let now = NOW.plus(later);
        let (text, _) = issuer.issue(&grant(), now, &mut entropy);
        assert!(verifier.verify(&text, now).is_ok());
    }
    let now = NOW.plus(2 * KEY_PERIOD_SECONDS);
    let (text, _) = issuer.issue(&grant(), now, &mut entropy);
    assert_eq!(verifier.verify(&text, now), Err(TokenError::UnknownKey));
}

#[test]
fn raising_the_generation_makes_all_earlier_tokens_worthless() {
    let (text, _) = issue();
    let raised = KeySchedule::new([3; 32], 1);
    let verifier = TokenVerifier::new(ISSUER, "firn-api", raised.public_keys(NOW));
    assert_eq!(verifier.verify(&text, NOW), Err(TokenError::UnknownKey));
}

#[test]
fn a_key_set_survives_its_json_and_a_key_under_a_wrong_name_does_not() {
    let keys = issuer().public_keys(NOW);
    let json = keys.to_json();
    assert_eq!(JwkSet::from_json(&json).unwrap(), keys);
    let mut document: serde_json::Value = serde_json::from_str(&json).unwrap();
    document["keys"][0]["kid"] = document["keys"][1]["kid"].clone();
    assert!(JwkSet::from_json(&document.to_string()).is_err());
    document["keys"][0]["kty"] = "RSA".into();
    assert_eq!(JwkSet::from_json(&document.to_string()).unwrap().len(), 2);
}

#[test]
fn revoking_a_token_a_principal_or_a_tenant_ends_what_was_issued_before() {
    let (text, claims) = issue();
    for what in [
        Revoked::Token(claims.id),
        Revoked::Principal(claims.principal),
        Revoked::Tenant(claims.tenant),
    ] {
        let mut verifier = verifier();
        verifier.revocations.revoke(TenantId([2; 16]), what, NOW);
        assert_eq!(verifier.verify(&text, NOW.plus(1)), Err(TokenError::Revoked));
    }
    let mut verifier = verifier();
    verifier
        .revocations
        .revoke(TenantId([9; 16]), Revoked::Tenant(TenantId([9; 16])), NOW);
    let another = Revoked::Token(TokenId([9; 16]));
    verifier.revocations.revoke(TenantId([2; 16]), another, NOW);
    // Whatever one tenant puts on its list, it takes back nothing of another's.
    for what in [
        Revoked::Token(claims.id),
        Revoked::Principal(claims.principal),
        Revoked::Tenant(claims.tenant),
    ] {
        verifier.revocations.revoke(TenantId([9; 16]), what, NOW);
    }
    assert!(verifier.verify(&text, NOW.plus(1)).is_ok());
}

#[test]
fn a_token_issued_after_a_revocation_is_good() {
    let mut verifier = verifier();
    verifier
        .revocations
        .revoke(TenantId([2; 16]), Revoked::Tenant(TenantId([2; 16])), NOW);
    let (text, _) = issuer().issue(&grant(), NOW.plus(1), &mut entropy);
    assert!(verifier.verify(&text, NOW.plus(2)).is_ok());
}

#[test]
fn the_list_forgets_what_can_no_longer_matter() {
    let mut list = Revocations::default();
    list.revoke(TenantId([2; 16]), Revoked::Tenant(TenantId([2; 16])), NOW);
    list.forget(NOW.plus(MAX_TOKEN_SECONDS + 2 * CLOCK_SKEW_SECONDS));
    assert_eq!(list.len(), 1);
    list.forget(NOW.plus(MAX_TOKEN_SECONDS + 2 * CLOCK_SKEW_SECONDS + 1));
    assert!(list.is_empty());
}

/// Some tenant's claims, issued now.
fn claims_of(tenant: TenantId) -> Claims {
    let grant = Grant { tenant, ..grant() };
    issuer().issue(&grant, NOW, &mut entropy).1
}

fn numbered(number: usize) -> [u8; 16] {
    (number as u128).to_be_bytes()
}

#[test]
fn a_tenants_full_list_revokes_the_tenant_rather_than_forgetting_somebody_and_nobody_else() {
    let (busy, other) = (TenantId([2; 16]), TenantId([9; 16]));
    let mut list = Revocations::default();
    for number in 0..10 * MAX_REVOCATIONS {
        list.revoke(busy, Revoked::Token(TokenId(numbered(number))), NOW);
        assert!(list.len() <= MAX_TENANT_REVOCATIONS);
    }
    assert!(list.covers(&claims_of(busy)));
    assert!(!list.covers(&claims_of(other)));
}

#[test]
fn many_tenants_with_long_lists_push_out_none_with_a_short_one() {
    let (quiet, member) = (TenantId([9; 16]), Revoked::Principal(grant().principal));
    let mut list = Revocations::default();
    list.revoke(quiet, member, NOW.minus(1));
    // A hundred tenants of one attacker.
    for number in 0..100 * MAX_TENANT_REVOCATIONS {
        let tenant = TenantId(numbered(number % 100));
        list.revoke(tenant, Revoked::Token(TokenId(numbered(number))), NOW);
    }
    assert!(list.len() <= MAX_REVOCATIONS);
    assert!(
        !list.covers(&claims_of(quiet)),
        "what was issued after its own entry is good"
    );
    assert!(list.covers(&Claims {
        issued: NOW.minus(1),
        ..claims_of(quiet)
    }));
}

#[test]
fn a_list_full_of_tenants_revokes_everybody_rather_than_forgetting_somebody() {
    let mut list = Revocations::default();
    for number in 0..=MAX_REVOCATIONS {
        let tenant = TenantId(numbered(number));
        list.revoke(tenant, Revoked::Tenant(tenant), NOW);
    }
    assert!(list.covers(&claims_of(TenantId([9; 16]))));
    assert_eq!(list.len(), 0);
    assert!(!list.is_empty());
}

#[test]
fn a_full_list_fits_an_item_of_the_table() {
    let mut list = Revocations::default();
    for number in 0..MAX_REVOCATIONS {
        let token = Revoked::Token(TokenId([0xff; 16]));
        list.revoke(TenantId(numbered(number)), token, NOW);
    }
    assert_eq!(list.len(), MAX_REVOCATIONS);
    let bytes = serde_json::to_vec(&list).unwrap().len();
    println!("{bytes} bytes");
    assert!(bytes < 390 << 10, "{bytes} bytes");
}

#[test]
fn a_stored_list_of_version_1_still_revokes() {
    let (_, claims) = issue();
    let stored = serde_json::json!({
        "sequence": 7,
        "everything_up_to": null,
        "up_to": [[{ "token": claims.id }, NOW]],
    });
    let list: Revocations = serde_json::from_value(stored).unwrap();
    assert!(list.covers(&claims));
    assert_eq!((list.sequence(), list.len()), (7, 1));
    let again: Revocations = serde_json::from_value(serde_json::to_value(&list).unwrap()).unwrap();
    assert_eq!(again, list);
}

#[test]
fn verifiers_take_over_a_pushed_list_and_refuse_an_older_or_foreign_one() {
    let issuer = issuer();
    let keys = issuer.public_keys(NOW);
    let (text, claims) = issue();
    let mut pushed = Revocations::default();
    let empty = issuer.sign_revocations(&pushed, NOW);
    pushed.revoke(claims.tenant, Revoked::Token(claims.id), NOW);
    let full = issuer.sign_revocations(&pushed, NOW);

    let mut verifier = verifier();
    verifier.revocations.accept(&full, &keys).unwrap();
    assert_eq!(verifier.verify(&text, NOW), Err(TokenError::Revoked));
    assert_eq!(
        verifier.revocations.accept(&empty, &keys),
        Err(RevocationsError::Stale { found: 0, newest: 1 })
    );
    let foreign = TokenIssuer::new(ISSUER, KeySchedule::new([4; 32], 0)).sign_revocations(&pushed, NOW);
    assert_eq!(
        verifier.revocations.accept(&foreign, &keys),
        Err(RevocationsError::NotAuthentic)
    );
    // A token is no list, and a list no token, though the same key signs both.
    assert_eq!(
        verifier.revocations.accept(&text, &keys),
        Err(RevocationsError::NotAuthentic)
    );
    assert_eq!(verifier.verify(&full, NOW), Err(TokenError::Malformed));
}

proptest! {
    #[test]
    fn no_changed_token_is_accepted(position in 0_usize..600, byte in any::<u8>()) {
        let (text, _) = issue();
        let mut bytes = text.clone().into_bytes();
        let position = position % bytes.len();
        prop_assume!(bytes[position] != byte);
        bytes[position] = byte;
        if let Ok(changed) = String::from_utf8(bytes) {
            // The last character of base64 may differ in bits that are not used; the decoder refuses those too.
            prop_assert!(verifier().verify(&changed, NOW).is_err());
        }
    }

    #[test]
    fn no_text_panics_the_verifier(text in "\\PC*") {
        prop_assert!(verifier().verify(&text, NOW).is_err());
        let mut list = Revocations::default();
        prop_assert!(list.accept(&text, &issuer().public_keys(NOW)).is_err());
        let _ = JwkSet::from_json(&text);
    }
}
