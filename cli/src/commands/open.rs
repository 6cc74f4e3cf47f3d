//! `firn open`: what to look at of a thing, whatever it is: the thing itself, and where its users find it.
//!
//! The service knows neither the addresses of offices nor the sockets of machines, so of a volume it says which edges to ask, and of
//! a disk where this machine serves it.

use super::Context;
use crate::{
    failure::{Exit, Failure},
    screen::field,
    session::Session,
};
use serde_json::{Value, json};

/// In this order a name is looked for.
const KINDS: [&str; 6] = ["volumes", "edges", "disks", "nodes", "keys", "members"];

pub async fn run(context: &Context, thing: &str) -> Result<(), Failure> {
    let session = context.session().await?;
    for kind in KINDS {
        match session.find(kind, thing).await {
            Ok(found) => return show(context, &session, kind, found).await,
            Err(failure) if matches!(failure.exit, Exit::NotFound | Exit::NotAllowed) => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(
        Failure::new(Exit::NotFound, format!("there is nothing called {thing:?}"))
            .next("firn status shows everything"),
    )
}

async fn show(context: &Context, session: &Session, kind: &str, found: Value) -> Result<(), Failure> {
    let (kind, name) = (kind.trim_end_matches('s'), field(&found, "name"));
    let mut look = vec![format!("firn {kind} show {name}")];
    match kind {
        "volume" => {
            let edges = session.list("edges").await?;
            let serves = |edge: &&Value| {
                let mut served = edge["volumes"].as_array().into_iter().flatten();
                edge["state"] == "active" && served.any(|volume| *volume == found["id"])
            };
            let serving: Vec<String> = edges
                .iter()
                .filter(serves)
                .map(|edge| field(edge, "name"))
                .collect();
            look.extend(serving.iter().map(|edge| {
                format!(
                    "firn edge show {edge}; on its machine: firn-edge status, which says what clients mount"
                )
            }));
            if serving.is_empty() {
                look.push(format!(
                    "no edge serves it: firn edge create NAME --volume {name}"
                ));
            }
        }
        "disk" => {
            let id = field(&found, "id");
            let socket = session.directory().join(format!("disks/{id}.sock"));
            look.push(match (found["attached"].is_null(), socket.exists()) {
                (true, _) => format!("nobody has it: firn disk attach {name}"),
                (false, true) => format!("nbd+unix:///{id}?socket={}", socket.display()),
                (false, false) => format!("attached by {}", field(&found, "attached.holder")),
            });
        }
        "edge" => look.push("on its machine: firn-edge status".into()),
        "key" | "member" => look = vec![format!("firn {kind} list")],
        _ => {}
    }
    let shown = json!({ "kind": kind, "id": found["id"], "name": name, "look_at": look });
    context.screen.show(&shown, |shown| {
        let lines: Vec<&str> = shown["look_at"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        format!("{kind} {name}\n  {}\n", lines.join("\n  "))
    })
}
