//! Sagas of disks, killed at every step: each call to the table or to the nodes is the last one once, before and after it happened.

use crate::harness::{Call, Customer, Service};
use crate::mortal::{self, Life, killed_at_every_moment};
use axum::http::{Method, StatusCode};
use firn_api::{drive_all, router};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// What is done to a disk, and what must have come of it.
#[derive(Clone, Copy, Debug)]
enum Work {
    Create { fits: bool },
    Grow { fits: bool },
    Delete,
}

struct Scene {
    service: Service,
    customer: Customer,
    token: String,
    disk: Option<String>,
}

impl Scene {
    async fn set(work: Work) -> Self {
        let service = Service::new();
        let customer = service.sign_up("ada@one.example").await;
        let token = service.log_in(&customer).await;
        let disk = match work {
            Work::Create { .. } => None,
            Work::Grow { .. } | Work::Delete => {
                let body = json!({ "name": "d", "size_bytes": 8 * MIB });
                let made = service
                    .post(&token, &format!("{}/disks", customer.base), body)
                    .await;
                assert_eq!(drive_all(&service.app).await.unwrap(), 0);
                Some(made.body["disk"]["id"].as_str().unwrap().to_owned())
            }
        };
        if let Work::Create { fits: false } | Work::Grow { fits: false } = work {
            service.fleet.limit(8 * MIB);
        }
        Self {
            service,
            customer,
            token,
            disk,
        }
    }

    fn request(&self, work: Work) -> Call {
        let disks = format!("{}/disks", self.customer.base);
        let disk = self.disk.clone().unwrap_or_default();
        let call = match work {
            Work::Create { .. } => {
                Call::new(Method::POST, &disks).json(json!({ "name": "d", "size_bytes": 16 * MIB }))
            }
            Work::Grow { .. } => Call::new(Method::POST, &format!("{disks}/{disk}/grow"))
                .json(json!({ "size_bytes": 16 * MIB })),
            Work::Delete => Call::new(Method::DELETE, &format!("{disks}/{disk}")),
        };
        call.token(&self.token)
            .header("idempotency-key", "0b4c6f5e-one-request")
    }

    /// Does the work in a process that lives so long.
    async fn attempt(&self, work: Work, life: &Life) {
        let app = mortal::process(&self.service, life);
        let answer = self.request(work).send(&router(&app)).await;
        assert!(
            matches!(
                answer.status,
                StatusCode::ACCEPTED | StatusCode::SERVICE_UNAVAILABLE
            ),
            "{:?}",
            answer.body
        );
        // A killed process drives nothing; one that lives on may fail only because it is being killed.
        let _ = drive_all(&app).await;
    }

    /// Another process takes over; the client repeats its request under the same idempotency key.
    async fn recover(&self, work: Work) {
        assert_eq!(drive_all(&self.service.app).await.unwrap(), 0);
        let repeated = self.service.send(self.request(work)).await;
        assert_eq!(repeated.status, StatusCode::ACCEPTED, "{:?}", repeated.body);
        assert_eq!(drive_all(&self.service.app).await.unwrap(), 0);
        let operation = repeated.body["operation"]["id"].as_str().unwrap();
        let seen = self
            .service
            .get(
                &self.token,
                &format!("{}/operations/{operation}", self.customer.base),
            )
            .await;
        let expected = match work {
            Work::Create { fits: false } | Work::Grow { fits: false } => "undone",
            Work::Create { fits: true } | Work::Grow { fits: true } | Work::Delete => "done",
        };
        assert_eq!(seen.text("state"), expected);
    }

    /// No orphan, no double, quota right.
    async fn check(&self, work: Work, moment: u64) {
        let listed = self
            .service
            .get(&self.token, &format!("{}/disks", self.customer.base))
            .await;
        let listed: Vec<(String, u64, String)> = listed.body["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|disk: &Value| {
                let text = |field: &str| disk[field].as_str().unwrap().to_owned();
                (text("id"), disk["size_bytes"].as_u64().unwrap(), text("state"))
            })
            .collect();
        let expected_bytes = match work {
            Work::Create { fits: true } | Work::Grow { fits: true } => Some(16 * MIB),
            Work::Grow { fits: false } => Some(8 * MIB),
            Work::Create { fits: false } | Work::Delete => None,
        };
        let sizes: Vec<u64> = listed.iter().map(|(_, bytes, _)| *bytes).collect();
        assert_eq!(
            sizes,
            Vec::from_iter(expected_bytes),
            "{work:?} killed at moment {moment}"
        );
        assert!(listed.iter().all(|(_, _, state)| state == "ready"));
        let placed: Vec<(String, u64)> = self
            .service
            .fleet
            .disks()
            .into_iter()
            .map(|(id, bytes)| (id.to_string(), bytes))
            .collect();
        let recorded: Vec<(String, u64)> = listed.into_iter().map(|(id, bytes, _)| (id, bytes)).collect();
        assert_eq!(placed, recorded, "{work:?} killed at moment {moment}");
        let quota = self
            .service
            .get(&self.token, &format!("{}/quota", self.customer.base))
            .await;
        assert_eq!(quota.body["in_use"]["disks"], recorded.len());
        assert_eq!(
            quota.body["in_use"]["disk_bytes"],
            recorded.iter().map(|(_, bytes)| bytes).sum::<u64>()
        );
        // The name is free again if and only if the disk is gone.
        if recorded.is_empty() {
            let body = json!({ "name": "d", "size_bytes": 8 * MIB });
            let again = self
                .service
                .post(&self.token, &format!("{}/disks", self.customer.base), body)
                .await;
            assert_eq!(again.status, StatusCode::ACCEPTED, "{:?}", again.body);
        }
    }
}

#[tokio::test]
async fn killed_at_every_step_there_is_no_orphan_no_double_and_the_quota_is_right() {
    for work in [
        Work::Create { fits: true },
        Work::Create { fits: false },
        Work::Grow { fits: true },
        Work::Grow { fits: false },
        Work::Delete,
    ] {
        let moment = killed_at_every_moment(async |moment, life| {
            let scene = Scene::set(work).await;
            scene.attempt(work, life).await;
            scene.recover(work).await;
            scene.check(work, moment).await;
        })
        .await;
        println!("{work:?}: killed at {moment} moments");
        assert!(
            moment > 20,
            "{work:?} has only {moment} moments: the kill does not reach it"
        );
    }
}
