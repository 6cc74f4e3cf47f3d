//! From an event to what the function's URL answers.

use crate::event::Request;
use firn_anchor_service::{AnchorService, CallerName, Grants, Refusal, Visit};
use serde_json::{Value, json};

/// Answers a request.
pub async fn handle(service: &AnchorService, grants: &Grants, event: Value) -> Value {
    let (status, body) = match answer(service, grants, event).await {
        Ok(body) => (200, body),
        Err(refusal) => (refusal.status, refusal.body()),
    };
    json!({"statusCode": status, "headers": {"content-type": "application/json"}, "body": body})
}

async fn answer(service: &AnchorService, grants: &Grants, event: Value) -> Result<String, Refusal> {
    let Request {
        caller,
        tenant,
        volume,
        body,
    } = Request::read(event)?;
    let visit = Visit::admit(grants, CallerName::Aws(caller), &tenant, &volume)?;
    let answer = visit.answer(service, &body).await?;
    serde_json::to_string(&answer).map_err(|error| Refusal::new(500, "internal", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_table::RedbTable;
    use std::sync::Arc;

    const OFFICE: &str = "arn:aws:iam::000000000000:user/office";
    const CLEANER: &str = "arn:aws:iam::000000000000:role/firn/cleaner";
    const PLACE: &str = "ten_01010101010101010101010101010101/vol_02020202020202020202020202020202";

    fn event(arn: Option<&str>, place: &str, body: &str) -> Value {
        let authorizer = arn.map(|arn| json!({"iam": {"userArn": arn, "accountId": "000000000000"}}));
        json!({
            "version": "2.0",
            "rawPath": format!("/v1/anchor/{place}"),
            "requestContext": {"http": {"method": "POST"}, "authorizer": authorizer},
            "headers": {"authorization": OFFICE},
            "body": body,
            "isBase64Encoded": false,
        })
    }

    #[tokio::test]
    async fn who_aws_vouches_for_reaches_what_was_granted_and_nobody_else() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let env = firn_env::real(place.path()).expect("an environment");
        let table = RedbTable::open(&env, &place.path().join("roots.redb"))
            .await
            .expect("a table");
        let service = AnchorService::new(Arc::new(table));
        let grants = json!([
            {"name": OFFICE, "volume": PLACE, "role": "edge"},
            {"name": CLEANER, "volume": PLACE, "role": "cleaner"},
        ]);
        let grants = Grants::from_json(&grants.to_string()).expect("grants");
        let create =
            r#"{"create_family":{"created_at_ms":1,"change_id":"abababababababababababababababab"}}"#;
        let session = "arn:aws:sts::000000000000:assumed-role/cleaner/i-0123";
        let (other, foreign) = (
            PLACE.replace("vol_02", "vol_03"),
            OFFICE.replace("000000000000", "000000000001"),
        );
        let too_large = " ".repeat(firn_anchor::EDGE_CALL_BYTES_MAX + 1);
        for (arn, place, body, status, said) in [
            (Some(OFFICE), PLACE, create, 200, "changed"),
            (Some(OFFICE), PLACE, r#"{"family":{}}"#, 200, "tuple"),
            (Some(session), PLACE, r#"{"family":{}}"#, 200, "tuple"),
            (Some(session), PLACE, create, 403, "role is Cleaner"),
            (Some(OFFICE), &other, create, 403, "was granted nothing"),
            (Some(OFFICE), "ten_1/vol_1", create, 403, "was granted nothing"),
            (Some(&foreign), PLACE, create, 403, "was granted nothing"),
            (
                Some("arn:aws:iam::000000000000:root"),
                PLACE,
                create,
                401,
                "vouches for no user",
            ),
            (None, PLACE, create, 401, "vouches for no user"),
            (
                Some(OFFICE),
                PLACE,
                r#"{"drop_table":{}}"#,
                400,
                "unknown variant",
            ),
            (Some(OFFICE), PLACE, &too_large, 413, "bytes at most"),
            (Some(OFFICE), "", create, 404, "by POST"),
        ] {
            let answer = handle(&service, &grants, event(arn, place, body)).await;
            let body = answer["body"].as_str().expect("a body");
            assert_eq!(answer["statusCode"], json!(status), "{answer}");
            assert!(body.contains(said), "{answer}");
        }
        let answer = handle(&service, &grants, json!("clean")).await;
        assert_eq!(answer["statusCode"], json!(400), "{answer}");
    }
}
