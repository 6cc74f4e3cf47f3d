//! The part of `firn cost` about shared volumes: who caused what, and who pays it.

use super::Context;
use crate::{
    failure::{Exit, Failure},
    money::{Grouped, exact},
    names::Names,
    screen::field,
    session::Session,
};
use serde_json::Value;

const COLUMNS: [&str; 8] = [
    "volume",
    "by whom",
    "commits",
    "operations",
    "requests",
    "bytes up",
    "bytes down",
    "amount",
];

/// A month's costs by who caused them; null at a service that does not know them.
pub async fn fetch(session: &Session, month: &str) -> Result<Value, Failure> {
    match session.get(&format!("shared-costs/{month}")).await {
        Ok(reply) => Ok(reply.body),
        Err(failure) if failure.exit == Exit::NotFound => Ok(Value::Null),
        Err(failure) => Err(failure),
    }
}

/// Empty if nothing is shared.
pub fn page(context: &Context, shared: &Value, names: &Names) -> String {
    let mut text = String::new();
    for (kind, title) in [
        ("given", "Shared with others, and paid by you"),
        (
            "granted",
            "Shared with you, and paid by its owner: what your edges caused",
        ),
    ] {
        let volumes = shared[kind].as_array().map(Vec::as_slice).unwrap_or_default();
        if volumes.is_empty() {
            continue;
        }
        let rows: Vec<_> = volumes.iter().flat_map(|volume| rows(volume, names)).collect();
        let table = context.screen.table(&COLUMNS, &[2, 3, 4, 5, 6, 7], &rows);
        text.push_str(&format!("\n{title}\n{table}"));
    }
    text
}

fn rows(volume: &Value, names: &Names) -> Vec<Vec<String>> {
    let name = names.get(&field(volume, "volume"));
    let lines = volume["lines"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut rows: Vec<_> = lines.iter().map(|line| row(&name, line, names)).collect();
    let mut sum = vec![name, "all of these".to_owned()];
    sum.resize(COLUMNS.len() - 1, String::new());
    sum.push(exact(&field(volume, "total_nanos")));
    rows.push(sum);
    rows
}

fn row(volume: &str, line: &Value, names: &Names) -> Vec<String> {
    let by = match field(line, "edge") {
        edge if edge.is_empty() => "itself, and edges invited to it".to_owned(),
        edge => format!("{} {}", names.get(&field(line, "tenant")), names.get(&edge)),
    };
    let mut row = vec![volume.to_owned(), by];
    for counted in ["commits", "operations", "requests", "bytes_up", "bytes_down"] {
        row.push(Grouped(&field(line, counted)).to_string());
    }
    row.push(exact(&field(line, "amount_nanos")));
    row
}
