//! `firn status`: everything of a tenant's on one screen, what is wrong first, each with what to do.

use super::{Context, edge_state};
use crate::{
    failure::{Exit, Failure},
    money::exact,
    names::Names,
    screen::{field, told},
    session::Session,
};
use serde_json::{Value, json};

/// Lists on the screen.
const KINDS: [&str; 5] = ["volumes", "edges", "disks", "nodes", "keys"];
/// An edge that runs reports every ten minutes at least: after three times that it is missed.
const SILENT_SECONDS: u64 = 1800;
/// A key that ends sooner is spoken of.
const KEY_ENDS_SECONDS: u64 = 14 * 86_400;

/// What was found wrong, and what to do about it.
#[derive(Default)]
struct Findings(Vec<Value>);

impl Findings {
    fn note(&mut self, what: impl Into<String>, next: impl Into<String>) {
        self.0.push(json!({ "what": what.into(), "next": next.into() }));
    }
}

pub async fn run(context: &Context) -> Result<(), Failure> {
    let session = context.session().await?;
    let tenant = session.tenant().await?;
    let mut shown = json!({ "tenant": tenant["name"], "state": tenant["state"] });
    for kind in KINDS {
        shown[kind] = match session.list(kind).await {
            Ok(items) => items.into(),
            // Not this role's to see: then there is nothing to say about it.
            Err(failure) if failure.exit == Exit::NotAllowed => Value::Array(Vec::new()),
            Err(failure) => return Err(failure),
        };
    }
    shown["forecast"] = match session.get("forecast").await {
        Ok(reply) => reply.body,
        Err(failure) if failure.exit == Exit::NotAllowed => Value::Null,
        Err(failure) => return Err(failure),
    };
    shown["findings"] = Value::Array(findings(&session, &shown, now()).0);
    let names = Names::among(items(&shown, "volumes"));
    context.screen.show(&shown, |shown| page(context, shown, &names))
}

fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0)
}

fn items<'a>(shown: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    shown[kind].as_array().into_iter().flatten()
}

fn findings(session: &Session, shown: &Value, now: u64) -> Findings {
    let mut found = Findings::default();
    if shown["forecast"]["capped"] == true {
        found.note(
            "the hard cap of this month's budget is reached: nothing new is provisioned, and edges and disks refuse new writes",
            "firn budget raise AMOUNT",
        );
    }
    volumes(shown, &mut found);
    edges(session, shown, now, &mut found);
    for disk in items(shown, "disks").filter(|disk| disk["state"] != "ready") {
        let name = field(disk, "name");
        found.note(
            format!("disk {name} is {}", field(disk, "state")),
            format!("firn disk show {name}"),
        );
    }
    for node in items(shown, "nodes").filter(|node| node["state"] != "active") {
        let name = field(node, "name");
        found.note(
            format!("node {name} is {}", field(node, "state")),
            format!("firn node show {name}"),
        );
    }
    for key in items(shown, "keys").filter(|key| key["revoked"] != true) {
        let (name, expires) = (field(key, "name"), key["expires"].as_u64().unwrap_or(u64::MAX));
        if expires < now.saturating_add(KEY_ENDS_SECONDS) {
            found.note(
                format!("key {name} ends {}", told(key, "expires")),
                format!(
                    "firn key create NAME --role {}, then firn login",
                    field(key, "role")
                ),
            );
        }
    }
    found
}

fn volumes(shown: &Value, found: &mut Findings) {
    for volume in items(shown, "volumes") {
        let (id, name) = (&volume["id"], field(volume, "name"));
        let is_served = items(shown, "edges").any(|edge| {
            let served = edge["volumes"].as_array().into_iter().flatten();
            edge["state"] == "active" && served.into_iter().any(|volume| volume == id)
        });
        match volume["state"].as_str() {
            Some("active") if volume["key_ring_generation"] == 0 => found.note(
                format!("volume {name} has no keys: its making was interrupted"),
                "the same firn volume create goes on with it",
            ),
            Some("active") if volume["bucket"]["kind"] == "own" && volume["bucket_proved"].is_null() => found
                .note(
                    format!("the bucket of volume {name} was not shown to be yours"),
                    format!("firn volume prove {name}"),
                ),
            Some("active") if !is_served => found.note(
                format!("volume {name} is served by no edge"),
                format!("firn edge create NAME --volume {name}"),
            ),
            Some("deleted") => found.note(
                format!(
                    "volume {name} was deleted {}; after 30 days it is erased",
                    told(volume, "deleted")
                ),
                format!("firn volume undelete {name}, or firn volume erase {name}"),
            ),
            _ => {}
        }
    }
}

fn edges(session: &Session, shown: &Value, now: u64, found: &mut Findings) {
    let names = Names::among(items(shown, "volumes"));
    for edge in items(shown, "edges") {
        let (id, name) = (field(edge, "id"), field(edge, "name"));
        let seen = edge["last_seen"].as_u64();
        match edge["state"].as_str() {
            Some("invited") if edge["invitation_expires"].as_u64().is_some_and(|end| end < now) => found
                .note(
                    format!("the invitation of edge {name} expired"),
                    format!("firn edge remove {name}, then firn edge create {name}"),
                ),
            Some("invited") => found.note(
                format!("edge {name} has not joined"),
                "run on its machine what firn edge create printed",
            ),
            Some("active") if session.profile.invitations.contains_key(&id) => found.note(
                format!("edge {name} joined and has no keys yet"),
                format!("firn edge approve {name}"),
            ),
            Some("active") if seen.is_some_and(|seen| seen.saturating_add(SILENT_SECONDS) < now) => found
                .note(
                    format!("edge {name} was last heard of {}", told(edge, "last_seen")),
                    "look at its machine: firn-edge status",
                ),
            Some("active") => {
                for (what, next) in edge_state::findings(edge, &names) {
                    found.note(what, next);
                }
            }
            _ => {}
        }
    }
}

fn page(context: &Context, shown: &Value, names: &Names) -> String {
    let screen = context.screen;
    let mut text = screen.strong(&format!(
        "{}: {}\n",
        field(shown, "tenant"),
        field(shown, "state")
    ));
    if shown["forecast"].is_object() {
        text.push_str(&format!(
            "{} so far in {}; firn cost explains it\n",
            exact(&field(shown, "forecast.spent_nanos")),
            field(shown, "forecast.month")
        ));
    }
    let findings: Vec<&Value> = items(shown, "findings").collect();
    if findings.is_empty() {
        text.push_str("\nNothing is wrong that the service knows of.\n");
    } else {
        text.push_str(&screen.strong("\nWhat is wrong\n"));
        for finding in findings {
            text.push_str(&format!(
                "  {}\n      {}\n",
                field(finding, "what"),
                field(finding, "next")
            ));
        }
    }
    let living = |item: &&Value| !matches!(item["state"].as_str(), Some("erased" | "revoked"));
    let mut table = |title: &str, kind: &str, heads: &[&str], row: &dyn Fn(&Value) -> Vec<String>| {
        let rows: Vec<_> = items(shown, kind).filter(living).map(row).collect();
        if !rows.is_empty() {
            text.push_str(&screen.strong(&format!("\n{title}\n")));
            text.push_str(&screen.table(heads, &[], &rows));
        }
    };
    table("Volumes", "volumes", &["name", "state", "bucket"], &|volume| {
        let place = ["bucket.url", "bucket.region"].map(|path| field(volume, path));
        vec![field(volume, "name"), field(volume, "state"), place.concat()]
    });
    table(
        "Edges",
        "edges",
        &["name", "state", "volumes", "last seen", "waiting"],
        &|edge| {
            vec![
                field(edge, "name"),
                field(edge, "state"),
                names.all(&edge["volumes"]),
                told(edge, "last_seen"),
                edge_state::waiting(edge),
            ]
        },
    );
    table(
        "Disks",
        "disks",
        &["name", "state", "size", "copies", "attached by"],
        &|disk| {
            ["name", "state", "size_bytes", "replicas", "attached.holder"]
                .map(|path| told(disk, path))
                .into()
        },
    );
    table(
        "Nodes",
        "nodes",
        &["name", "state", "free", "last seen"],
        &|node| {
            ["name", "state", "free_bytes", "last_seen"]
                .map(|path| told(node, path))
                .into()
        },
    );
    text
}
