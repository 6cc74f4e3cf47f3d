//! Sessions of AWS's token service: what is asked for, what becomes of each answer, and that an emulator understands it.
//!
//! ```text
//! tests/lab/cloud/with localstack -- cargo test -p firn-api --test api -- --ignored sts::real_
//! ```
#![cfg(feature = "aws")]
#![allow(clippy::disallowed_methods, reason = "a server outside, in real time")]

use crate::answering::answering;
use firn_api::{
    AwsAccount, AwsSession, CloudCredential, CloudError, CloudSession, CloudSessions as _, Place,
    ProofRequest, SESSION_SECONDS, SessionRequest, StsSessions, prove_objects,
};
use firn_env::Env;
use firn_identity::{EdgeId, TenantId, UnixTime, VolumeId};
use std::{collections::BTreeMap, time::Duration};

/// Far longer than an emulator takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(600);
const ROLE: &str = "arn:aws:iam::000000000000:role/firn-edges";

fn sessions(env: &Env, endpoint: &str) -> StsSessions {
    let account = AwsAccount::with_key(
        env,
        "us-east-1",
        Some(endpoint.to_owned()),
        "firntest",
        "firntest",
    )
    .unwrap();
    let buckets = BTreeMap::from([("eu".to_owned(), "firn-eu".to_owned())]);
    StsSessions::new(account, ROLE.into(), buckets)
}

fn request(role: Option<&str>) -> SessionRequest {
    SessionRequest {
        tenant: TenantId([1; 16]),
        edge: EdgeId([2; 16]),
        volume: VolumeId([3; 16]),
        role: role.map(str::to_owned),
        external_id: "ext-1".into(),
        place: Place::parse("s3://firn-eu/a").unwrap(),
        seconds: SESSION_SECONDS,
        is_read_only: false,
        held_to: None,
    }
}

/// What one session asked for, and what became of this answer to it.
async fn asked(status: &str, answer: &str, role: Option<&str>) -> (String, Result<CloudSession, CloudError>) {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let (endpoint, server) = answering(vec![(status.to_owned(), answer.to_owned())]).await;
    let outcome = sessions(&env, &endpoint).start(&request(role)).await;
    (server.await.unwrap().remove(0), outcome)
}

const GOOD: &str = "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASIA1</AccessKeyId>\
    <SecretAccessKey>s/1+</SecretAccessKey><SessionToken>t&amp;1</SessionToken><Expiration>2026-11-21T23:00:00Z</Expiration>\
    </Credentials></AssumeRoleResult></AssumeRoleResponse>";

#[tokio::test]
async fn a_session_is_of_one_role_one_edge_one_policy_and_ends_soon() {
    let (text, given) = asked("200 OK", GOOD, None).await;
    let given = given.ok().unwrap();
    let CloudCredential::Aws(session) = given.credential else {
        panic!("a session of AWS's")
    };
    assert_eq!(
        (
            &*session.access_key_id,
            &*session.secret_access_key,
            &*session.session_token,
            given.expires
        ),
        ("ASIA1", "s/1+", "t&1", UnixTime(1_795_302_000))
    );
    let body = text.split_once("\r\n\r\n").unwrap().1;
    for field in [
        "Action=AssumeRole",
        "DurationSeconds=900",
        "RoleArn=arn%3Aaws%3Aiam%3A%3A000000000000%3Arole%2Ffirn-edges",
        &format!("RoleSessionName={}", EdgeId([2; 16])),
        "Policy=%7B%22",
    ] {
        assert!(body.contains(field), "{field}: {body}");
    }
    assert!(!body.contains("ExternalId"), "{body}");
    assert!(
        text.to_ascii_lowercase()
            .contains("authorization: aws4-hmac-sha256"),
        "it is signed: {text}"
    );
    assert!(!text.contains("ext-1"));

    let (text, _) = asked("200 OK", GOOD, Some("arn:aws:iam::111111111111:role/theirs")).await;
    assert!(
        text.contains("ExternalId=ext-1") && text.contains("111111111111%3Arole%2Ftheirs"),
        "{text}"
    );
}

#[tokio::test]
async fn a_refusal_is_final_and_silence_is_not() {
    let denied =
        "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not you</Message></Error></ErrorResponse>";
    let (_, outcome) = asked("403 Forbidden", denied, None).await;
    assert!(matches!(outcome, Err(CloudError::Refused(why)) if why.contains("not you")));
    for (status, answer) in [
        ("400 Bad Request", "<Error><Code>Throttling</Code></Error>"),
        ("200 OK", "<AssumeRoleResponse/>"),
        ("200 OK", &GOOD.replace("2026-11-21", "yesterday")),
        ("200 OK", "\u{0}"),
    ] {
        let (_, outcome) = asked(status, answer, None).await;
        assert!(
            matches!(outcome, Err(CloudError::Unavailable(_))),
            "{status} {answer}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let outcome = sessions(&env, "http://127.0.0.1:9").start(&request(None)).await;
    assert!(matches!(outcome, Err(CloudError::Unavailable(_))));
}

#[test]
fn a_place_is_told_as_an_edges_configuration_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let amazons = sessions(&env, "http://127.0.0.1:9");
    let place = Place::parse("s3://firn-eu/ten_1/vol_1").unwrap();
    let url = amazons.store_url(&place, "eu-central-1").unwrap();
    assert_eq!(url, "s3://firn-eu/ten_1/vol_1?region=eu-central-1");
    let elsewhere = amazons.with_object_endpoint(Some("https://s3.example.org".into()));
    assert_eq!(
        elsewhere.store_url(&place, "eu").unwrap(),
        "s3://firn-eu/ten_1/vol_1?region=eu&endpoint=https://s3.example.org"
    );
}

fn proof(role: &str) -> ProofRequest {
    ProofRequest {
        volume: VolumeId([3; 16]),
        place: Place::parse("s3://nord-data/firn").unwrap(),
        role: role.into(),
        external_id: "ext-1".into(),
    }
}

#[tokio::test]
async fn a_role_that_lets_anybody_in_proves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let good = || ("200 OK".to_owned(), GOOD.to_owned());
    let denied = || {
        let answer = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not you</Message></Error></ErrorResponse>";
        ("403 Forbidden".to_owned(), answer.to_owned())
    };
    let prove = async |answers| {
        let (endpoint, server) = answering(answers).await;
        let outcome = sessions(&env, &endpoint)
            .prove(&proof("arn:aws:iam::1:role/r"))
            .await;
        (server.await.unwrap(), outcome)
    };
    let (asked, outcome) = prove(vec![good()]).await;
    assert!(matches!(outcome, Err(CloudError::Refused(why)) if why.contains("ExternalId")));
    assert!(asked[0].contains("ExternalId=not-"), "{}", asked[0]);
    // Refused with a stranger's, and with the tenant's own as well: the role is not set up.
    let (asked, outcome) = prove(vec![denied(), denied()]).await;
    assert!(matches!(outcome, Err(CloudError::Refused(why)) if why.contains("not you")));
    assert!(
        asked[1].contains("ExternalId=ext-1") && asked[1].contains("firn-proof"),
        "{}",
        asked[1]
    );
    let silent = ("503 Service Unavailable".to_owned(), String::new());
    let (_, outcome) = prove(vec![silent]).await;
    assert!(
        matches!(outcome, Err(CloudError::Unavailable(_))),
        "silence is no refusal"
    );
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("tests/lab/cloud/with versitygw names {name}"))
}

#[tokio::test]
#[ignore = "needs versitygw"]
async fn real_a_store_that_checks_credentials_proves_control_to_who_has_them_and_to_nobody_else() {
    let endpoint = variable("FIRN_TEST_VERSITYGW");
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let session = |secret: &str| AwsSession {
        access_key_id: variable("FIRN_TEST_VERSITYGW_KEY"),
        secret_access_key: secret.to_owned(),
        session_token: String::new(),
    };
    let bucket = format!("proof-{:016x}", env.random_u64());
    let place = Place::parse(&format!("s3://{bucket}/firn")).unwrap();
    let secret = variable("FIRN_TEST_VERSITYGW_SECRET");
    let prove = async |secret: &str, nonce: &str| {
        prove_objects(&env, &place, nonce, &session(secret), Some(&endpoint)).await
    };
    assert!(
        matches!(prove(&secret, "n1").await, Err(CloudError::Refused(_))),
        "there is no such bucket"
    );
    let key = variable("FIRN_TEST_VERSITYGW_KEY");
    firn_rig::buckets::create_s3(&endpoint, &bucket, &key, &secret)
        .await
        .unwrap();
    prove(&secret, "n1").await.unwrap();
    prove(&secret, "n1")
        .await
        .expect("the object of the proof before is gone");
    assert!(matches!(
        prove("another secret", "n2").await,
        Err(CloudError::Refused(_))
    ));
}

#[test]
fn managed_volumes_lie_apart() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let sessions = sessions(&firn_env::real(directory.path()).unwrap(), "http://127.0.0.1:9");
    let place = |volume: u8| sessions.managed("eu", TenantId([1; 16]), VolumeId([volume; 16]));
    assert_ne!(place(1), place(2));
    assert_eq!(
        sessions.managed("nowhere", TenantId([1; 16]), VolumeId([1; 16])),
        None
    );
}

#[tokio::test]
#[ignore = "needs LocalStack"]
async fn real_sts_gives_credentials_that_end() {
    let endpoint = std::env::var("FIRN_TEST_LOCALSTACK").expect("tests/lab/cloud/with localstack names it");
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let began = env.now();
    // The emulator loads a service when it is first asked for, which may take longer than a call waits.
    let (now, given) = loop {
        let now = UnixTime::from_wall(env.wall());
        match sessions(&env, &endpoint).start(&request(None)).await {
            Ok(given) => break (now, given),
            Err(CloudError::Refused(why)) => panic!("{why}"),
            Err(CloudError::Unavailable(why)) => assert!(env.now().since(began) < TIMEOUT, "{why}"),
        }
    };
    let CloudCredential::Aws(session) = &given.credential else {
        panic!("a session of AWS's")
    };
    assert!(!session.session_token.is_empty() && !session.secret_access_key.is_empty());
    let seconds = given.expires.0.saturating_sub(now.0);
    assert!(
        (SESSION_SECONDS - 60..=SESSION_SECONDS + 60).contains(&seconds),
        "{seconds}"
    );
}
