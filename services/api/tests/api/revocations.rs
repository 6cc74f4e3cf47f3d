//! Revocation is obeyed by every instance and every verifier in time, whatever the table does: in virtual time.

use crate::harness::{self, Call, Fleet, ISSUER, Letterbox};
use crate::shaky::Shaky;
use axum::http::Method;
use firn_api::{AUDIENCE, App, REVOKED_WITHIN, router};
use firn_env::{
    Env,
    sim::{Seeded, Simulation},
};
use firn_identity::{
    JwkSet, MemberId, PeerIdentity, PeerKind, Principal, Role, TenantId, TokenVerifier, UnixTime,
};
use firn_table::MemoryTable;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Longer outages of the table than this are not promised to be bridged.
const OUTAGE: Duration = Duration::from_millis(2500);
const SEEDS: u64 = 20;

const TENANT: TenantId = TenantId([1; 16]);

/// A reader's token, as the service itself might have issued it now.
fn token(env: &Env) -> String {
    let member = Principal::Member(MemberId([7; 16]));
    let now = UnixTime::from_wall(env.wall());
    harness::token_of(env, TENANT, member, Role::Reader, AUDIENCE, now)
}

/// The holder of a token takes it back at one instance.
async fn take_back(app: &App, token: &str) {
    let path = format!("/v1/tenants/{TENANT}/tokens/revoke");
    let answer = Call::new(Method::POST, &path)
        .token(token)
        .send(&router(app))
        .await;
    assert!(answer.status.is_success(), "{:?}", answer.body);
}

fn instance(env: &Env, table: &MemoryTable, is_away: &Arc<AtomicBool>) -> App {
    let table = Shaky {
        env: env.clone(),
        table: table.connect(env),
        is_away: is_away.clone(),
    };
    harness::app_over(
        env,
        Arc::new(table),
        harness::rego(),
        &Letterbox::default(),
        Arc::new(Fleet::default()),
    )
}

/// A verifier of another program: it has the keys and follows the list by the one instance it knows.
async fn follow(app: App, env: Env, sent: Arc<Mutex<TokenVerifier>>) {
    loop {
        let newest = sent.lock().unwrap().revocations.sequence();
        let path = format!("/v1/revocations/after/{newest}");
        let answer = Call::new(Method::GET, &path).send(&router(&app)).await;
        let accepted = {
            let mut verifier = sent.lock().unwrap();
            let keys = verifier.keys.clone();
            verifier.revocations.accept(&answer.text("list"), &keys)
        };
        if accepted.is_err() {
            env.sleep(Duration::from_millis(250)).await;
        }
    }
}

async fn history(env: Env, first: Env, second: Env, seed: u64) -> (Duration, Duration) {
    let (table, away) = (MemoryTable::new(), Arc::new(AtomicBool::new(false)));
    let nobody_is_away = Arc::new(AtomicBool::new(false));
    let (here, there) = (
        instance(&first, &table, &nobody_is_away),
        instance(&second, &table, &away),
    );
    let follower = there.clone();
    drop(second.spawn("follow", async move { follower.follow_revocations().await }));

    let mut seeded = Seeded::new(seed, 7);
    let token = token(&env);
    let keys = Call::new(Method::GET, "/.well-known/jwks.json")
        .send(&router(&here))
        .await;
    let keys = JwkSet::from_json(&keys.body.to_string()).unwrap();
    let verifier = Arc::new(Mutex::new(TokenVerifier::new(ISSUER, AUDIENCE, keys)));
    drop(second.spawn(
        "verifier",
        follow(there.clone(), second.clone(), verifier.clone()),
    ));

    env.sleep(seeded.duration(Duration::ZERO, Duration::from_secs(30)))
        .await;
    let now = || UnixTime::from_wall(env.wall());
    assert!(
        verifier.lock().unwrap().verify(&token, now()).is_ok(),
        "good until it is taken back"
    );
    let goes = seeded.duration(Duration::ZERO, OUTAGE);
    away.store(seeded.chance(1, 2), Ordering::SeqCst);
    take_back(&here, &token).await;
    let at = env.now();
    let back = env.clone();
    let there_again = away.clone();
    drop(env.spawn("outage", async move {
        back.sleep(goes).await;
        there_again.store(false, Ordering::SeqCst);
    }));
    let (mut by_instance, mut by_verifier) = (None, None);
    while by_instance.is_none() || by_verifier.is_none() {
        let path = format!("/v1/tenants/{TENANT}");
        let asks = Call::new(Method::GET, &path)
            .token(&token)
            .send(&router(&there))
            .await;
        if by_instance.is_none() && asks.code() == "token_refused" {
            by_instance = Some(env.now().since(at));
        }
        if by_verifier.is_none() && verifier.lock().unwrap().verify(&token, now()).is_err() {
            by_verifier = Some(env.now().since(at));
        }
        assert!(
            env.now().since(at) < 4 * REVOKED_WITHIN,
            "seed {seed}: never refused"
        );
        env.sleep(Duration::from_millis(20)).await;
    }
    (by_instance.unwrap(), by_verifier.unwrap())
}

#[test]
fn a_token_that_was_taken_back_is_refused_in_time_by_other_instances_and_by_verifiers() {
    let (mut slowest_instance, mut slowest_verifier) = (Duration::ZERO, Duration::ZERO);
    for seed in 1..=SEEDS {
        let simulation = Simulation::new(seed);
        let (first, second) = (
            simulation.machine("first").env(),
            simulation.machine("second").env(),
        );
        let env = simulation.env();
        let (instance, verifier) = simulation
            .run(async move { history(env, first, second, seed).await })
            .unwrap();
        assert!(
            instance <= REVOKED_WITHIN && verifier <= REVOKED_WITHIN,
            "seed {seed}: {instance:?}, {verifier:?}"
        );
        slowest_instance = slowest_instance.max(instance);
        slowest_verifier = slowest_verifier.max(verifier);
    }
    println!("the slowest instance {slowest_instance:?}, the slowest verifier {slowest_verifier:?}");
    assert!(
        slowest_instance > Duration::from_secs(1),
        "the histories reach no outage"
    );
}

#[test]
fn who_follows_the_list_is_told_by_the_instance_that_revokes_at_once_and_only_so_many_wait() {
    let simulation = Simulation::new(3);
    let machine = simulation.machine("one").env();
    let env = machine.clone();
    simulation
        .run(async move {
            let app = instance(&env, &MemoryTable::new(), &Arc::new(AtomicBool::new(false)));
            let component = PeerIdentity {
                trust_domain: harness::DOMAIN.into(),
                kind: PeerKind::Service("gateway".into()),
            };
            let ask = |sequence: u64, peer: Option<&PeerIdentity>| {
                let (app, env, peer) = (app.clone(), env.clone(), peer.cloned());
                async move {
                    let began = env.now();
                    let path = format!("/v1/revocations/after/{sequence}");
                    let call = Call::new(Method::GET, &path);
                    let call = peer.iter().fold(call, |call, peer| call.peer(peer));
                    let answer = call.send(&router(&app)).await;
                    assert!(!answer.text("list").is_empty());
                    env.now().since(began)
                }
            };
            let known = Some(&component);
            // Nothing new: as long as it waits at most.
            assert_eq!(ask(0, known).await, Duration::from_secs(10));
            assert_eq!(ask(0, None).await, Duration::from_secs(10));
            // Strangers have a few places of their own, and cannot take those of verifiers.
            let strangers: Vec<_> = (0..300).map(|_| env.spawn("waits", ask(0, None))).collect();
            env.sleep(Duration::from_secs(1)).await;
            assert_eq!(ask(0, None).await, Duration::ZERO, "strangers have few places");
            let waiting: Vec<_> = (0..256).map(|_| env.spawn("waits", ask(0, known))).collect();
            env.sleep(Duration::from_secs(3)).await;
            assert_eq!(
                ask(0, known).await,
                Duration::ZERO,
                "one too many is answered as by a poll"
            );
            take_back(&app, &token(&env)).await;
            for waits in waiting {
                let waited = waits.await.unwrap();
                assert!(waited < Duration::from_secs(5), "{waited:?}");
            }
            let mut at_once = 0;
            for waits in strangers {
                let waited = waits.await.unwrap();
                assert!(waited < Duration::from_secs(5), "{waited:?}");
                at_once += usize::from(waited == Duration::ZERO);
            }
            assert_eq!(at_once, 296, "four of one address wait");
            assert_eq!(
                ask(0, known).await,
                Duration::ZERO,
                "what is newer is there already"
            );
        })
        .unwrap();
}

/// Before there was a list for each tenant, 4,097 entries of one of them ended everybody's tokens.
#[tokio::test]
async fn one_tenant_that_takes_back_thousands_of_tokens_logs_nobody_else_out() {
    let env = harness::env();
    let app = instance(&env, &MemoryTable::new(), &Arc::new(AtomicBool::new(false)));
    let other = TenantId([9; 16]);
    let now = UnixTime::from_wall(env.wall());
    let token_of = |tenant: TenantId| {
        let member = Principal::Member(MemberId([7; 16]));
        harness::token_of(&env, tenant, member, Role::Reader, AUDIENCE, now)
    };
    let bystander = token_of(other);
    let service = router(&app);
    for _ in 0..4100 {
        let path = format!("/v1/tenants/{TENANT}/tokens/revoke");
        let token = token_of(TENANT);
        let answer = Call::new(Method::POST, &path).token(&token).send(&service).await;
        // Its own tokens may end before it is through with them.
        assert!(
            answer.status.is_success() || matches!(answer.code(), "token_refused" | "rate_limited"),
            "{:?}",
            answer.body
        );
    }
    let asks = Call::new(Method::GET, &format!("/v1/tenants/{other}"))
        .token(&bystander)
        .send(&service)
        .await;
    assert_eq!(
        asks.code(),
        "not_found",
        "signed in: only the tenant is not there: {:?}",
        asks.body
    );
}
