//! Commits of volumes are charged: each once, whoever counts it, by all volumes at once, and whatever the table does meanwhile.

use crate::anchor::{Door, FAMILY, OWNER, Scene, commit};
use crate::harness::{self, Fleet, Service};
use crate::shaky::Shaky;
use firn_anchor::Anchor;
use firn_api::{App, router};
use firn_env::{Env, sim::Simulation};
use firn_format::{Version, VolumeId};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Root commits in the tenant's ledger.
async fn charged(scene: &Scene) -> u64 {
    firn_api::fold(&scene.service.app).await.unwrap();
    let now_ms = u64::try_from(scene.service.env.wall().as_millis()).unwrap();
    let month = firn_billing::Month::of_ms(now_ms);
    let (mut sum, mut cursor) = (0, String::new());
    loop {
        let path = format!("{}/usage/{month}?limit=100{cursor}", scene.customer.base);
        let usage = scene.service.get(&scene.owner, &path).await;
        for hour in usage.body["items"].as_array().unwrap() {
            for entry in hour["entries"].as_array().unwrap() {
                if entry["meter"] == "root-commits" {
                    sum += entry["quantity"].as_str().unwrap().parse::<u64>().unwrap();
                }
            }
        }
        match usage.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return sum,
        }
    }
}

#[tokio::test]
async fn each_commit_is_charged_once_whoever_counts_it_and_an_erased_volumes_last_ones_too() {
    let scene = Scene::set(Service::new()).await;
    let env = &scene.service.env;
    let door = Arc::new(scene.door(&scene.service.router, None));
    let anchor = Anchor::over(door, env.clone(), FAMILY);
    anchor.create_family().await.unwrap();
    anchor.create_volume(scene.engine_volume(), "main").await.unwrap();
    let mut ownership = anchor
        .acquire(scene.engine_volume(), OWNER, "edge")
        .await
        .unwrap();
    for _ in 0..5 {
        commit(env, &anchor, &mut ownership).await.unwrap();
    }
    let app = &scene.service.app;
    assert_eq!(firn_api::settle_commits(app).await.unwrap(), 5);
    assert_eq!(firn_api::settle_commits(app).await.unwrap(), 0);
    assert_eq!(
        firn_api::settle_commits_of(app, scene.customer.tenant)
            .await
            .unwrap(),
        0
    );
    // A clone's history is not charged again: it begins where it branched off.
    let clone = VolumeId([9; 16]);
    anchor.create_volume(clone, "clone").await.unwrap();
    let mut other = anchor.acquire(clone, OWNER, "edge").await.unwrap();
    let place = ownership.root().unwrap().clone();
    let first = other.next_root(place.uid, place.location, Version(6), env.random_bytes(), 0);
    anchor.commit(&mut other, first).await.unwrap();
    commit(env, &anchor, &mut other).await.unwrap();
    commit(env, &anchor, &mut ownership).await.unwrap();
    // Another instance has not seen them, and finds them on its walk.
    let fleet = Arc::new(Fleet::default());
    let table = scene.service.table.connect(env);
    let walker = harness::app_over(env, table, harness::rego(), &scene.service.mail, fleet);
    assert_eq!(firn_api::settle_commits(&walker).await.unwrap(), 0);
    assert_eq!(
        firn_api::settle_commits_of(&walker, scene.customer.tenant)
            .await
            .unwrap(),
        3
    );
    assert_eq!(firn_api::settle_commits(app).await.unwrap(), 0);
    assert_eq!(charged(&scene).await, 8);
}

/// Volumes of one tenant, each with so many commits as its number says, made by `app`. Gives all of them.
async fn commits_to_many(scene: &Scene, app: &App, env: &Env, volumes: u64) -> u64 {
    let Scene {
        service,
        customer,
        owner,
        ..
    } = scene;
    let mut sum = 0;
    for number in 1..=volumes {
        let body = json!({ "name": format!("v-{number}"), "bucket": { "kind": "managed", "region": "eu" } });
        let made = service
            .post(owner, &format!("{}/volumes", customer.base), body)
            .await;
        let volume = made.text("id");
        let name = format!("e-{number}");
        let (edge, peer, _) = service.join_edge_of(customer, owner, &name, &[&volume]).await;
        let door = Door {
            router: router(app),
            path: format!("{}/edges/{edge}/volumes/{volume}/anchor", customer.base),
            peer,
            token: None,
        };
        let anchor = Anchor::over(Arc::new(door), env.clone(), FAMILY);
        let volume: VolumeId = volume.parse().unwrap();
        anchor.create_family().await.unwrap();
        anchor.create_volume(volume, "main").await.unwrap();
        let mut ownership = anchor.acquire(volume, OWNER, "edge").await.unwrap();
        for _ in 0..number {
            commit(env, &anchor, &mut ownership).await.unwrap();
        }
        sum += number;
    }
    sum
}

/// A scene, and an instance over a table of 25 ms a request that may be away.
async fn slow(env: &Env) -> (Scene, App, Arc<AtomicBool>) {
    let scene = Scene::set(Service::on(env.clone(), harness::rego())).await;
    let is_away = Arc::new(AtomicBool::new(false));
    let table = Shaky {
        env: env.clone(),
        table: scene.service.table.connect(env),
        is_away: is_away.clone(),
    };
    let fleet = Arc::new(Fleet::default());
    let app = harness::app_over(env, Arc::new(table), harness::rego(), &scene.service.mail, fleet);
    (scene, app, is_away)
}

/// The fold waits for all of them, every two seconds. One after the other, a thousand tenants would keep it waiting for as long again.
#[test]
fn commits_of_many_volumes_are_counted_beside_each_other() {
    const VOLUMES: u64 = 16;
    let simulation = Simulation::new(3);
    let env = simulation.env();
    simulation
        .run(async move {
            let (scene, app, _) = slow(&env).await;
            let made = commits_to_many(&scene, &app, &env, VOLUMES).await;
            let began = env.now();
            assert_eq!(firn_api::settle_commits(&app).await.unwrap(), made);
            let took = env.now().since(began);
            println!("{VOLUMES} volumes: {took:?}");
            // One after the other it would be eight requests or more of 25 ms for each.
            assert!(
                took < Duration::from_millis(25) * 8 * VOLUMES as u32 / 2,
                "{took:?}"
            );
            assert_eq!(charged(&scene).await, made);
        })
        .unwrap();
}

/// Whatever moment the table goes away at while volumes are counted beside each other: what could not be counted is counted by the calls that follow, and nothing
/// of it twice.
#[test]
fn commits_that_an_outage_met_are_counted_once_by_the_calls_that_follow() {
    const VOLUMES: u64 = 12;
    let mut failed = 0;
    for seed in 1..=16_u64 {
        let simulation = Simulation::new(seed);
        let env = simulation.env();
        failed += simulation
            .run(async move {
                let (scene, app, is_away) = slow(&env).await;
                let made = commits_to_many(&scene, &app, &env, VOLUMES).await;
                let outage = env.clone();
                drop(env.spawn("outage", async move {
                    outage.sleep(Duration::from_millis(25 * seed)).await;
                    is_away.store(true, Ordering::SeqCst);
                    outage.sleep(Duration::from_millis(60)).await;
                    is_away.store(false, Ordering::SeqCst);
                }));
                let mut failed = 0;
                while firn_api::settle_commits(&app).await.is_err() {
                    failed += 1;
                    assert!(failed < 20, "seed {seed}");
                    env.sleep(Duration::from_millis(100)).await;
                }
                assert_eq!(firn_api::settle_commits(&app).await.unwrap(), 0);
                assert_eq!(charged(&scene).await, made, "seed {seed}");
                failed
            })
            .unwrap();
    }
    assert!(failed > 8, "an outage met {failed} calls of sixteen histories");
}
