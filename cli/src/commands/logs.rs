//! `firn logs`: what was done in a tenant, by whom, with names for ids; and what its edges said of themselves last.
//!
//! Both are what the service keeps: the audit log's entries, which `firn audit verify` checks, and each edge's newest report. What
//! programs write into logs of their own stays on their machines.

use super::{Context, edge_state};
use crate::{
    failure::{Exit, Failure},
    names::Names,
    screen::{field, told},
    session::Session,
};
use serde_json::{Value, json};

/// Kinds of things that entries speak of.
const KINDS: [&str; 6] = ["volumes", "edges", "disks", "nodes", "keys", "members"];

/// A list, or nothing of what this role may not see.
async fn listed(session: &Session, kind: &str) -> Result<Vec<Value>, Failure> {
    match session.list(kind).await {
        Err(failure) if failure.exit == Exit::NotAllowed => Ok(Vec::new()),
        other => other,
    }
}

pub async fn run(context: &Context, last: usize, of: Option<&str>) -> Result<(), Failure> {
    let session = context.session().await?;
    let mut things = Vec::new();
    let mut edges = Vec::new();
    for kind in KINDS {
        let found = listed(&session, kind).await?;
        if kind == "edges" {
            edges.clone_from(&found);
        }
        things.extend(found);
    }
    // The service calls its own steps nobody's; the tenant's own name is in no list.
    things.push(session.tenant().await?);
    let names = Names::among(&things);
    let is_of = |id: &str| of.is_none_or(|of| id == of || names.get(id) == *of);
    let mut entries = session.list("audit").await?;
    entries.retain(|entry| is_of(&field(entry, "target")) || is_of(&field(entry, "principal")));
    let entries = entries.split_off(entries.len().saturating_sub(last));
    edges.retain(|edge| edge["observed"].is_object() && is_of(&field(edge, "id")));
    let shown = json!({ "audit": entries, "edges": edges });
    context.screen.show(&shown, |shown| {
        let who = |entry: &Value| match field(entry, "principal") {
            nobody if nobody.is_empty() => "the service".to_owned(),
            principal => names.get(&principal),
        };
        let row = |entry: &Value| {
            vec![
                told(entry, "at"),
                who(entry),
                field(entry, "action"),
                names.get(&field(entry, "target")),
                names.in_text(&field(entry, "detail")),
            ]
        };
        let rows: Vec<_> = shown["audit"].as_array().into_iter().flatten().map(row).collect();
        let screen = context.screen;
        let mut text = screen.table(&["at", "who", "what", "to what", "detail"], &[], &rows);
        for edge in shown["edges"].as_array().into_iter().flatten() {
            text.push_str(&screen.strong(&format!(
                "\nEdge {} said {}\n",
                field(edge, "name"),
                told(edge, "last_seen")
            )));
            for (volume, state) in edge_state::lines(edge, &names) {
                text.push_str(&format!("  {volume}: {state}\n"));
            }
        }
        text
    })
}
