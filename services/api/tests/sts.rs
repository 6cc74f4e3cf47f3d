//! Sessions of AWS's token service: what is asked for, what becomes of each answer, and that an emulator understands it.
//!
//! ```text
//! tests/lab/cloud/with localstack -- cargo test -p firn-api --test sts -- --ignored real_
//! ```
#![cfg(feature = "aws")]
#![allow(clippy::disallowed_methods, reason = "a server outside, in real time")]

mod answering;

use answering::answering;
use firn_api::{
    AwsAccount, CloudError, CloudSession, CloudSessions as _, Place, SESSION_SECONDS, SessionRequest,
    StsSessions,
};
use firn_env::Env;
use firn_identity::{EdgeId, TenantId, UnixTime, VolumeId};
use std::{collections::BTreeMap, time::Duration};

/// Far longer than an emulator takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);
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
        policy: Place::parse("s3://firn-eu/a").unwrap().edge_policy().unwrap(),
        seconds: SESSION_SECONDS,
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
    assert_eq!(
        (
            &*given.access_key_id,
            &*given.secret_access_key,
            &*given.session_token,
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
            Err(CloudError::Unavailable(why)) => assert!(env.now().since(began) < PATIENCE, "{why}"),
        }
    };
    assert!(!given.session_token.is_empty() && !given.secret_access_key.is_empty());
    let seconds = given.expires.0.saturating_sub(now.0);
    assert!(
        (SESSION_SECONDS - 60..=SESSION_SECONDS + 60).contains(&seconds),
        "{seconds}"
    );
}
