//! The matrix of roles in Azure: each by everything that can be done to every thing of a managed volume, as `tests/policies/azure.txt` says,
//! asked of a server that checks signatures. AWS's part is all in `tests/policies`.
//!
//! ```text
//! tests/lab/cloud/with azurite -- cargo test -p firn-api --test api -- --ignored azure_matrix::real_
//! ```
//!
//! The service's own row is the control: it holds the account's key, so whatever it is refused was no request of that kind.
#![cfg(feature = "azure")]
#![allow(clippy::disallowed_methods, reason = "a server outside, in real time")]

use firn_api::{AzureSessions, CloudCredential, CloudSessions as _, Place, SESSION_SECONDS, SessionRequest};
use firn_env::Env;
use firn_identity::{EdgeId, TenantId, UnixTime, VolumeId};
use firn_rig::buckets::{AZURITE_ACCOUNT, AZURITE_KEY, ask_azure, ask_azure_as_owner};
use std::collections::BTreeSet;

const TENANT: TenantId = TenantId([1; 16]);
const VERSION: (&str, &str) = ("x-ms-version", "2020-12-06");
const BLOCK_BLOB: (&str, &str) = ("x-ms-blob-type", "BlockBlob");

/// What the matrix says, and `docs/authorization.md` is made of.
const MATRIX: &str = include_str!("../../../../tests/policies/azure.txt");

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The control plane, and a cleaner with the account's key.
    Service,
    /// The edge of this volume, with the signature that the service gave it.
    Edge,
    /// The same, a minute after the signature's end.
    EdgeAfterwards,
    /// The edge of another volume of the same account.
    OtherEdge,
    /// Nobody.
    Without,
}

const ROLES: [(&str, Role); 5] = [
    ("service", Role::Service),
    ("edge", Role::Edge),
    ("edge-afterwards", Role::EdgeAfterwards),
    ("other-edge", Role::OtherEdge),
    ("without", Role::Without),
];

/// A request of one kind.
struct Verb {
    name: &'static str,
    method: &'static str,
    query: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
    /// Whether what it is done to is there before.
    is_there: bool,
}

const fn verb(
    name: &'static str,
    method: &'static str,
    query: &'static str,
    headers: &'static [(&'static str, &'static str)],
) -> Verb {
    Verb {
        name,
        method,
        query,
        headers,
        body: "",
        is_there: true,
    }
}

const TAGS: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?><Tags><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tags>";
const NO_BLOCKS: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList></BlockList>";

/// What can be done to a blob.
const OF_BLOBS: &[Verb] = &[
    verb("read", "GET", "", &[]),
    verb("look", "HEAD", "", &[]),
    Verb {
        body: "segment",
        is_there: false,
        ..verb("add", "PUT", "", &[BLOCK_BLOB, ("if-none-match", "*")])
    },
    Verb {
        body: "other",
        ..verb("overwrite", "PUT", "", &[BLOCK_BLOB])
    },
    Verb {
        body: "block",
        ..verb("stage-block", "PUT", "comp=block&blockid=AAAA", &[])
    },
    Verb {
        body: NO_BLOCKS,
        ..verb("overwrite-by-blocks", "PUT", "comp=blocklist", &[])
    },
    verb("delete", "DELETE", "", &[]),
    verb("set-metadata", "PUT", "comp=metadata", &[("x-ms-meta-a", "b")]),
    verb(
        "set-properties",
        "PUT",
        "comp=properties",
        &[("x-ms-blob-content-type", "text/html")],
    ),
    verb("set-tier", "PUT", "comp=tier", &[("x-ms-access-tier", "Cool")]),
    Verb {
        body: TAGS,
        ..verb("set-tags", "PUT", "comp=tags", &[])
    },
    verb(
        "lease",
        "PUT",
        "comp=lease",
        &[("x-ms-lease-action", "acquire"), ("x-ms-lease-duration", "15")],
    ),
    verb("snapshot", "PUT", "comp=snapshot", &[]),
];

/// What can be done to a container.
const OF_CONTAINERS: &[Verb] = &[
    verb("list", "GET", "restype=container&comp=list", &[]),
    verb("look", "GET", "restype=container", &[]),
    verb("read-policies", "GET", "restype=container&comp=acl", &[]),
    verb(
        "open-to-everybody",
        "PUT",
        "restype=container&comp=acl",
        &[("x-ms-blob-public-access", "container")],
    ),
    verb(
        "set-metadata",
        "PUT",
        "restype=container&comp=metadata",
        &[("x-ms-meta-a", "b")],
    ),
    verb(
        "lease",
        "PUT",
        "restype=container&comp=lease",
        &[("x-ms-lease-action", "acquire"), ("x-ms-lease-duration", "15")],
    ),
    verb("delete", "DELETE", "restype=container", &[]),
    Verb {
        is_there: false,
        ..verb("make", "PUT", "restype=container", &[])
    },
];

/// What can be done to the account.
const OF_ACCOUNTS: &[Verb] = &[
    verb("list-containers", "GET", "comp=list", &[]),
    verb("read-settings", "GET", "restype=service&comp=properties", &[]),
];

/// Names in the container of a volume, by what they are.
const BLOBS: [(&str, &str); 4] = [
    ("segments", "fa/log/1/"),
    ("forwarding records", "fa/forward/"),
    ("key rings", "fa/keyring/"),
    ("other names", "else/"),
];

/// Cells that are allowed: thing, role, verb. Every line must be understood, and every thing there is must be closed.
fn allowed() -> BTreeSet<(&'static str, &'static str, &'static str)> {
    let kind = |thing: &str| match thing {
        "container" => OF_CONTAINERS,
        "account" => OF_ACCOUNTS,
        _ => OF_BLOBS,
    };
    let (mut allowed, mut closed, mut thing) = (BTreeSet::new(), BTreeSet::new(), "");
    let lines = MATRIX
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    for line in lines {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            thing = name;
        } else if line.split_whitespace().eq(["everyone", "else", "nothing"]) {
            assert!(closed.insert(thing), "{thing} is closed twice");
        } else {
            let mut words = line.split_whitespace();
            let role = words.next().expect("a line has words");
            assert!(ROLES.iter().any(|(name, _)| *name == role), "{role}");
            for word in words {
                assert!(
                    kind(thing).iter().any(|verb| verb.name == word),
                    "{thing}: {word}"
                );
                assert!(allowed.insert((thing, role, word)), "{line}");
            }
        }
    }
    let things = BLOBS
        .iter()
        .map(|(thing, _)| *thing)
        .chain(["container", "account"]);
    assert_eq!(closed, things.collect());
    allowed
}

struct Account {
    env: Env,
    endpoint: String,
    sessions: AzureSessions,
    allowed: BTreeSet<(&'static str, &'static str, &'static str)>,
    /// What was asked so far.
    asked: usize,
    wrong: BTreeSet<String>,
}

impl Account {
    /// The place of a new volume, which is nobody else's, and its edge's signature.
    async fn volume(&self) -> (Place, String) {
        let volume = VolumeId(self.env.random_bytes());
        let place = self.sessions.managed("eu", TENANT, volume).unwrap();
        let request = SessionRequest {
            tenant: TENANT,
            edge: EdgeId([3; 16]),
            volume,
            role: None,
            external_id: "ext-1".into(),
            place: place.clone(),
            seconds: SESSION_SECONDS,
            is_read_only: false,
            held_to: None,
        };
        let session = self.sessions.start(&request).await.ok().unwrap();
        let CloudCredential::AzureSas(signature) = session.credential else {
            panic!("a signature")
        };
        (place, signature)
    }

    async fn ask(
        &mut self,
        thing: &str,
        verb: &Verb,
        (name, role): (&str, Role),
        path: &str,
        signature: &str,
    ) {
        let query = [verb.query, signature].map(str::to_owned).into_iter();
        let query: Vec<_> = query.filter(|part| !part.is_empty()).collect();
        let uri = format!("{}/{path}?{}", self.endpoint, query.join("&"));
        let headers: Vec<_> = [&[VERSION], verb.headers].concat();
        let answered = match role {
            Role::Service => ask_azure_as_owner(verb.method, &uri, &headers, verb.body).await,
            _ => ask_azure(verb.method, &uri, &headers, verb.body).await,
        };
        let status = answered.unwrap();
        self.asked += 1;
        let cell = format!("{name}: {} [{thing}]: {status}", verb.name);
        // Who shows nothing is told that there is nothing.
        let answer = match status {
            200..300 => Some(true),
            401 | 403 => Some(false),
            404 if role == Role::Without => Some(false),
            _ => None,
        };
        if answer != Some(self.allowed.contains(&(thing, name, verb.name))) {
            self.wrong.insert(cell);
        }
    }

    async fn put(&self, path: &str) {
        let headers = [VERSION, BLOCK_BLOB];
        let uri = format!("{}/{path}", self.endpoint);
        let status = ask_azure_as_owner("PUT", &uri, &headers, "segment")
            .await
            .unwrap();
        assert_eq!(status, 201, "{path}");
    }
}

#[tokio::test]
#[ignore = "needs Azurite"]
async fn real_every_role_may_do_in_azure_what_is_written_and_nothing_else() {
    let endpoint = std::env::var("FIRN_TEST_AZURITE").expect("tests/lab/cloud/with azurite names it");
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let sessions =
        AzureSessions::new(&env, AZURITE_ACCOUNT, AZURITE_KEY, "eu", Some(endpoint.clone())).unwrap();
    let mut account = Account {
        env: env.clone(),
        endpoint,
        sessions,
        allowed: allowed(),
        asked: 0,
        wrong: BTreeSet::new(),
    };
    let (place, own) = account.volume().await;
    let (_, others) = account.volume().await;
    let over = account
        .sessions
        .sign(&place, UnixTime::from_wall(env.wall()).minus(60));
    let signature = |role: Role| match role {
        Role::Service | Role::Without => "",
        Role::Edge => &own,
        Role::EdgeAfterwards => &over,
        Role::OtherEdge => &others,
    };
    let mut number = 0;
    for (name, role) in ROLES {
        for (thing, prefix) in BLOBS {
            for verb in OF_BLOBS {
                number += 1;
                let path = format!("{}/{prefix}{number:016}", place.bucket);
                if verb.is_there {
                    account.put(&path).await;
                }
                account
                    .ask(thing, verb, (name, role), &path, signature(role))
                    .await;
            }
        }
        for verb in OF_CONTAINERS {
            // One of each request's own, for its signature holds for that name only; but what the edge has is the volume's.
            let (fresh, of_fresh) = account.volume().await;
            let over = account
                .sessions
                .sign(&fresh, UnixTime::from_wall(env.wall()).minus(60));
            let container = if verb.is_there {
                fresh.bucket.clone()
            } else {
                format!("made-{number}")
            };
            number += 1;
            let signature = match role {
                Role::Edge => &of_fresh,
                Role::EdgeAfterwards => &over,
                Role::OtherEdge => &others,
                Role::Service | Role::Without => "",
            };
            account
                .ask("container", verb, (name, role), &container, signature)
                .await;
        }
        for verb in OF_ACCOUNTS {
            account
                .ask("account", verb, (name, role), "", signature(role))
                .await;
        }
    }
    let cells = ROLES.len() * (BLOBS.len() * OF_BLOBS.len() + OF_CONTAINERS.len() + OF_ACCOUNTS.len());
    assert_eq!(account.asked, cells);
    assert!(account.wrong.is_empty(), "{:#?}", account.wrong);
    println!("{cells} cells are as written");
}
