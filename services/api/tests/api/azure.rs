//! Signatures of Azure for edges: equal to those of Microsoft's own library, and what an emulator that checks them lets through.
//!
//! ```text
//! tests/lab/cloud/with azurite -- cargo test -p firn-api --test api -- --ignored azure::real_
//! ```
#![cfg(feature = "azure")]
#![allow(clippy::disallowed_methods, reason = "a server outside, in real time")]

use crate::answering::answering;
use firn_api::{
    AzureSessions, CloudCredential, CloudError, CloudSession, CloudSessions as _, Place, SESSION_SECONDS,
    SessionRequest,
};
use firn_env::Env;
use firn_identity::{EdgeId, TenantId, UnixTime, VolumeId};
use firn_rig::buckets::{AZURITE_ACCOUNT, AZURITE_KEY, ask_azure};
use std::collections::BTreeMap;

/// 64 bytes, 0 to 63.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==";
const TENANT: TenantId = TenantId([1; 16]);
const VOLUME: VolumeId = VolumeId([2; 16]);

fn environment() -> (tempfile::TempDir, Env) {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    (directory, env)
}

fn request(place: Place) -> SessionRequest {
    SessionRequest {
        tenant: TENANT,
        edge: EdgeId([3; 16]),
        volume: VOLUME,
        role: None,
        external_id: "ext-1".into(),
        place,
        seconds: SESSION_SECONDS,
        is_read_only: false,
        held_to: None,
    }
}

fn pairs(query: &str) -> BTreeMap<String, String> {
    object_store::azure::split_sas(query)
        .unwrap()
        .into_iter()
        .collect()
}

/// Made by azure-storage-blob 12.31.1 (`generate_container_sas`) and azure-storage-file-datalake 12.26.1
/// (`generate_directory_sas`), told to sign for version 2020-12-06.
#[test]
fn a_signature_is_the_one_that_microsofts_own_library_makes() {
    let (_directory, env) = environment();
    let expires = UnixTime(1_795_302_061);
    for (account, endpoint, place, theirs) in [
        (
            "firnacme",
            None,
            "azure://firnacme/vol-02020202020202020202020202020202",
            "se=2026-11-21T23%3A01%3A01Z&sp=rcl&spr=https&sv=2020-12-06&sr=c&sig=NMKtj%2BCVgUb%2Bax4akSgz%2B2EzFtVk8Xy4lyqo9yst%2BN8%3D",
        ),
        (
            "devstoreaccount1",
            Some("http://127.0.0.1:10000/devstoreaccount1"),
            "azure://devstoreaccount1/c0ntainer",
            "se=2026-11-21T23%3A01%3A01Z&sp=rcl&spr=https%2Chttp&sv=2020-12-06&sr=c&sig=3si2iJXHTqK315Oy3nCpJrF/N%2BDGPpozwu2OLJgYSVE%3D",
        ),
        (
            "firnacme",
            None,
            "azure://firnacme/filesystem/a/b/c",
            "se=2026-11-21T23%3A01%3A01Z&sp=rcl&spr=https&sv=2020-12-06&sr=d&sdd=3&sig=1niD8DuX/Mts2ZvAxnkUANPTtPN06A0j2xVcbz0pUd4%3D",
        ),
    ] {
        let sessions = AzureSessions::new(&env, account, KEY, "eu", endpoint.map(str::to_owned)).unwrap();
        let ours = sessions.sign(&Place::parse(place).unwrap(), expires);
        assert_eq!(pairs(&ours), pairs(theirs), "{place}");
    }
    let error = AzureSessions::new(&env, "firnacme", "no base 64!", "eu", None)
        .map(drop)
        .unwrap_err();
    assert!(!error.to_string().contains("no base 64!"), "{error}");
}

#[tokio::test]
async fn each_volume_has_a_container_and_other_places_get_no_signature() {
    let (_directory, env) = environment();
    let answer = |status: &str, body: &str| (status.to_owned(), body.to_owned());
    let (endpoint, server) = answering(vec![
        answer("201 Created", ""),
        answer(
            "409 Conflict",
            "<Error><Code>ContainerAlreadyExists</Code></Error>",
        ),
        answer(
            "409 Conflict",
            "<Error><Code>ContainerBeingDeleted</Code></Error>",
        ),
        answer(
            "403 Forbidden",
            "<Error><Code>AuthenticationFailed</Code></Error>",
        ),
        answer("503 Service Unavailable", ""),
    ])
    .await;
    let sessions = AzureSessions::new(&env, "firnacme", KEY, "eu", Some(endpoint)).unwrap();
    assert_eq!(sessions.managed("us", TENANT, VOLUME), None);
    let place = sessions.managed("eu", TENANT, VOLUME).unwrap();
    assert_eq!(
        Some(&place),
        Place::parse(&format!("azure://firnacme/{}", place.bucket))
            .ok()
            .as_ref()
    );
    assert_ne!(sessions.managed("eu", TENANT, VolumeId([9; 16])).unwrap(), place);
    for _ in 0..2 {
        let CloudSession { credential, expires } =
            sessions.start(&request(place.clone())).await.ok().unwrap();
        let CloudCredential::AzureSas(query) = credential else {
            panic!("a signature")
        };
        let pairs = pairs(&query);
        assert_eq!((&*pairs["sp"], &*pairs["sr"]), ("rcl", "c"));
        let left = expires.0 - UnixTime::from_wall(env.wall()).0;
        assert!((SESSION_SECONDS - 60..=SESSION_SECONDS).contains(&left), "{left}");
    }
    for is_final in [false, true, false] {
        match sessions.start(&request(place.clone())).await {
            Err(CloudError::Refused(_)) => assert!(is_final),
            Err(CloudError::Unavailable(_)) => assert!(!is_final),
            Ok(_) => panic!("a signature for a container that is not there"),
        }
    }
    let asked = server.await.unwrap();
    assert!(
        asked[0].starts_with(&format!("PUT /{}?restype=container", place.bucket)),
        "{}",
        asked[0]
    );
    assert!(
        asked[0].contains("SharedKey firnacme:"),
        "it is signed: {}",
        asked[0]
    );

    // Nobody is asked: the service has no key of another account.
    let other = Place::parse("azure://otheracme/container").unwrap();
    let theirs = SessionRequest {
        role: Some("role".into()),
        ..request(place)
    };
    for request in [request(other), theirs] {
        let refused = sessions.start(&request).await;
        assert!(matches!(refused, Err(CloudError::Refused(_))));
    }
}

#[tokio::test]
#[ignore = "needs Azurite"]
async fn real_a_signature_reads_lists_and_adds_in_its_container_and_neither_overwrites_nor_deletes() {
    let endpoint = std::env::var("FIRN_TEST_AZURITE").expect("tests/lab/cloud/with azurite names it");
    let (_directory, env) = environment();
    let sessions =
        AzureSessions::new(&env, AZURITE_ACCOUNT, AZURITE_KEY, "eu", Some(endpoint.clone())).unwrap();
    // Nobody else's on a server that lives as long as a test.
    let volume = || VolumeId(env.random_bytes());
    let (own, theirs) = (volume(), volume());
    let mut signatures = Vec::new();
    for volume in [own, theirs] {
        let place = sessions.managed("eu", TENANT, volume).unwrap();
        // Twice: the second finds the container.
        for _ in 0..2 {
            let session = sessions.start(&request(place.clone())).await.ok().unwrap();
            let CloudCredential::AzureSas(query) = session.credential else {
                panic!("a signature")
            };
            signatures.push((place.clone(), query));
        }
    }
    let (place, signature) = &signatures[1];
    let (others, others_signature) = &signatures[3];
    let over = sessions.sign(place, UnixTime::from_wall(env.wall()).minus(60));
    let ask = async |place: &Place, signature: &str, method: &str, rest: &str, create: bool| {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let uri = format!("{endpoint}/{}{path}?{query}&{signature}", place.bucket);
        let mut headers = vec![("x-ms-version", "2020-12-06")];
        if method == "PUT" {
            headers.push(("x-ms-blob-type", "BlockBlob"));
        }
        if create {
            headers.push(("if-none-match", "*"));
        }
        ask_azure(method, &uri, &headers, "segment").await.unwrap()
    };
    let blob = "/fa/log/1/1";
    assert_eq!(ask(place, signature, "PUT", blob, true).await, 201);
    assert_eq!(ask(others, others_signature, "PUT", blob, true).await, 201);
    let list = "?restype=container&comp=list&prefix=fa/";
    for (place, signature, method, rest, create, expected) in [
        (place, signature, "GET", blob, false, 200),
        (place, signature, "HEAD", blob, false, 200),
        (place, signature, "GET", list, false, 200),
        (place, signature, "PUT", "/fa/log/1/2", true, 201),
        // What is there stays as it is. The permission is looked at before the condition; a store takes 403 with
        // UnauthorizedBlobOverwrite for "it is there".
        (place, signature, "PUT", blob, true, 403),
        (place, signature, "PUT", blob, false, 403),
        (place, signature, "DELETE", blob, false, 403),
        (place, signature, "DELETE", "?restype=container", false, 403),
        (place, signature, "PUT", "/fa/log/1/1?comp=metadata", false, 403),
        (place, signature, "PUT", "/fa/log/1/1?comp=tier", false, 403),
        // Another volume's container, and what only looks like a signature.
        (others, signature, "GET", blob, false, 403),
        (others, signature, "GET", list, false, 403),
        (others, signature, "PUT", "/fa/log/1/2", true, 403),
        (place, &over, "GET", blob, false, 403),
        (
            place,
            &signature.replace("sp=rcl", "sp=rcld"),
            "DELETE",
            blob,
            false,
            403,
        ),
        (place, &signature.replace("sr=c", "sr=b"), "GET", blob, false, 403),
    ] {
        let status = ask(place, signature, method, rest, create).await;
        assert_eq!(status, expected, "{method} {rest} {create}");
    }
}
