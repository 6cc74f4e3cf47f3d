//! Reports of audits over the API: brought by who serves the volume, kept once, shown to members, gone with the volume.

use crate::harness::{
    Answer, Call, Service,
    customer::{customer, volume},
};
use axum::http::{Method, StatusCode};
use firn_audit_report::{AskedBy, AuditedVolume, Cost, NewReport, Outcome, SignedReport, Signer};
use firn_format::VolumeId;
use firn_identity::PeerIdentity;
use firn_seal::RootSigningKey;
use serde_json::json;

fn report(key: u8, before: (u64, Option<[u8; 32]>)) -> SignedReport {
    let key = RootSigningKey::from_seed([key; 32]);
    let new = NewReport {
        volume: AuditedVolume {
            family: [5; 16],
            id: VolumeId([6; 16]),
        },
        signer: Signer {
            owner: [7; 16],
            epoch: 1,
            grant: [8; 16],
            key: key.public().to_bytes(),
            program: "a test".into(),
        },
        asked_by: AskedBy::Calendar,
        began_at_ms: 1,
        ended_at_ms: 2,
        outcome: Outcome::Incomplete,
        detail: Some("of a \"test\"".into()),
        audited: None,
        cost: Cost {
            prices: "none".into(),
            nanodollars: 0,
            requests: 0,
            bytes_down: 0,
        },
    };
    SignedReport::sign(&new.following(before), |message| key.sign(message)).unwrap()
}

async fn bring(service: &Service, path: &str, peer: &PeerIdentity, text: &str) -> Answer {
    let body = json!({ "report": text });
    service
        .send(Call::new(Method::POST, path).peer(peer).json(body))
        .await
}

#[tokio::test]
async fn reports_are_kept_once_by_who_serves_the_volume_and_shown_as_they_were_signed() {
    let (service, customer, token) = customer().await;
    let base = &customer.base;
    let made = service
        .post(&token, &format!("{base}/volumes"), volume("v"))
        .await;
    let id = made.text("id");
    let (edge, peer, _) = service.join_edge_of(&customer, &token, "e", &[&id]).await;
    let (other, other_peer, _) = service.join_edge(&customer, &token, "f").await;
    let path = format!("{base}/edges/{edge}/volumes/{id}/audits");
    let listing = format!("{base}/volumes/{id}/audits");

    let first = report(1, (0, None));
    let second = report(2, first.link());
    for _ in 0..2 {
        let kept = bring(&service, &path, &peer, first.text()).await;
        assert_eq!(kept.status, StatusCode::OK, "{:?}", kept.body);
        assert_eq!(kept.body["sequence"], 1);
    }
    assert_eq!(
        bring(&service, &path, &peer, second.text()).await.status,
        StatusCode::OK
    );
    // Another one of its number, one that was altered, and those of others.
    let replaced = bring(&service, &path, &peer, report(3, (0, None)).text()).await;
    assert_eq!(replaced.status, StatusCode::CONFLICT, "{:?}", replaced.body);
    let altered = second.text().replace("\"ended_at_ms\":2", "\"ended_at_ms\":3");
    let altered = bring(&service, &path, &peer, &altered).await;
    assert_eq!(altered.code(), "invalid_field", "{:?}", altered.body);
    let third = report(2, second.link());
    let foreign = bring(&service, &path, &other_peer, third.text()).await;
    assert_eq!(foreign.status, StatusCode::FORBIDDEN, "{:?}", foreign.body);
    let unserved = format!("{base}/edges/{other}/volumes/{id}/audits");
    let unserved = bring(&service, &unserved, &other_peer, third.text()).await;
    assert_eq!(unserved.status, StatusCode::NOT_FOUND, "{:?}", unserved.body);

    let listed = service.get(&token, &listing).await;
    let items = listed.body["items"].as_array().unwrap();
    let texts: Vec<_> = items
        .iter()
        .map(|item| item["report"].as_str().unwrap())
        .collect();
    assert_eq!(texts, [first.text(), second.text()]);
    assert_eq!(items[0]["edge"], edge.to_string());

    // What has its place after 400 more takes it, and what is older does not come back.
    let later = report(2, (400, Some([9; 32])));
    for text in [later.text(), first.text()] {
        assert_eq!(bring(&service, &path, &peer, text).await.status, StatusCode::OK);
    }
    let listed = service.get(&token, &listing).await;
    let items = listed.body["items"].as_array().unwrap();
    let numbers: Vec<_> = items
        .iter()
        .map(|item| item["sequence"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [401, 2]);

    // An edge that was removed while it audited brings nothing any more, and what it brought before stays.
    let removal = Call::new(Method::DELETE, &format!("{base}/edges/{edge}")).token(&token);
    let removed = service.send(removal).await;
    assert!(removed.status.is_success(), "{:?}", removed.body);
    let late = bring(&service, &path, &peer, report(2, later.link()).text()).await;
    assert!(
        [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&late.status),
        "{:?}",
        late.body
    );
    assert!(!late.text("detail").is_empty(), "the edge is told why");
    let after = service.get(&token, &listing).await;
    assert_eq!(after.body["items"], listed.body["items"]);
}
