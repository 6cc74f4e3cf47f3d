//! `firn volume rekey`: orders for the edge that serves a volume, and what that edge says of them (decision 0172).
//!
//! The key epoch of an order comes from the key ring as this machine verified it, so the service can only withhold an order or repeat one.

use super::Context;
use crate::{
    failure::{Exit, Failure},
    rings,
    screen::{field, told},
    session::Session,
};
use firn_quantity::Size;
use reqwest::Method;
use serde_json::{Value, json};

/// Bytes a second at which is sealed anew where nothing else is said.
pub const RATE: &str = "4 MiB";

/// What is asked.
pub enum Asked {
    Status,
    Start { rate: String },
    Stop,
}

pub async fn run(
    context: &Context,
    session: &mut Session,
    volume: &str,
    asked: Asked,
) -> Result<(), Failure> {
    let found = session.find("volumes", volume).await?;
    let name = field(&found, "name");
    let order = match asked {
        Asked::Status => None,
        Asked::Start { rate } => Some((bytes_per_second(&rate)?, false)),
        Asked::Stop => Some((bytes_per_second(RATE)?, true)),
    };
    let path = format!("volumes/{}", field(&found, "id"));
    let edges = serving(session, &found).await?;
    if let Some(asked) = order {
        if edges.is_empty() {
            return Err(Failure::new(
                Exit::Conflict,
                format!("volume {name} is served by no edge, and only the edge that serves it can rekey it"),
            )
            .next(format!("firn edge create NAME --volume {name}")));
        }
        send(session, &found, asked).await?;
    }
    let volume = session.get(&path).await?.body;
    let shown =
        json!({ "volume": volume["id"], "name": volume["name"], "asked": volume["rekey"], "edges": edges });
    context.screen.show(&shown, |_| {
        let mut text = String::new();
        for line in lines(&volume, &edges) {
            text.push_str(&line);
            text.push('\n');
        }
        text
    })
}

/// Has what a volume holds sealed anew under its newest key; gives the order as the service keeps it.
pub async fn order(session: &mut Session, volume: &Value, rate: &str) -> Result<Value, Failure> {
    // As it is now: its key ring may be a newer one than when it was found.
    let path = format!("volumes/{}", field(volume, "id"));
    let found = session.get(&path).await?.body;
    send(session, &found, (bytes_per_second(rate)?, false)).await?;
    Ok(session.get(&path).await?.body["rekey"].clone())
}

async fn send(
    session: &mut Session,
    volume: &Value,
    (bytes_per_second, stop): (u64, bool),
) -> Result<(), Failure> {
    let ring = rings::fetch(session, volume).await?.ok_or_else(|| {
        let name = field(volume, "name");
        Failure::new(Exit::Conflict, format!("volume {name} has no key ring"))
            .next("make volumes with: firn volume create")
    })?;
    let to_epoch = ring.current().0;
    let body =
        json!({ "rekey": { "to_epoch": to_epoch, "bytes_per_second": bytes_per_second, "stop": stop } });
    let path = format!("volumes/{}", field(volume, "id"));
    let etag = session.get(&path).await?.etag;
    session
        .call(Method::PATCH, &path, Some(&body), etag.as_deref())
        .await?;
    Ok(())
}

/// Edges refuse other rates.
fn bytes_per_second(rate: &str) -> Result<u64, Failure> {
    let parsed: Result<Size, _> = rate.parse();
    let Size(bytes) = parsed.map_err(|error| Failure::usage(format!("--rate: {error}")))?;
    if (16 << 10..=1 << 40).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(Failure::usage("--rate: from 16 KiB to 1 TiB a second"))
    }
}

/// The edges that serve a volume: each with its name, and with what it says of the rekey.
pub async fn serving(session: &Session, volume: &Value) -> Result<Vec<Value>, Failure> {
    let id = &volume["id"];
    let edges = match session.list("edges").await {
        Ok(edges) => edges,
        // Not this role's to see.
        Err(failure) if failure.exit == Exit::NotAllowed => Vec::new(),
        Err(failure) => return Err(failure),
    };
    let mut serving = Vec::new();
    for edge in edges {
        let volumes = edge["volumes"].as_array().into_iter().flatten();
        if edge["state"] == "active" && volumes.into_iter().any(|served| served == id) {
            let observed = edge["observed"]["volumes"].as_array().into_iter().flatten();
            let of_it = observed.into_iter().find(|observed| observed["volume"] == *id);
            let rekey = of_it.map(|observed| observed["rekey"].clone());
            serving.push(json!({
                "id": edge["id"], "name": edge["name"], "last_seen": edge["last_seen"], "rekey": rekey,
            }));
        }
    }
    Ok(serving)
}

/// How a volume's rekey stands, a line for each thing that there is to say; none if none was asked for.
pub fn lines(volume: &Value, edges: &[Value]) -> Vec<String> {
    let order = &volume["rekey"];
    if order.is_null() {
        return vec!["no rekey was asked for".into()];
    }
    let what = match order["order"]["stop"] == true {
        true => "to stop a rekey".to_owned(),
        false => format!("for a rekey to key epoch {}", order["order"]["to_epoch"]),
    };
    let mut lines = vec![format!("asked {what} {}", told(order, "asked"))];
    for edge in edges {
        let (name, rekey) = (field(edge, "name"), &edge["rekey"]);
        if rekey["number"].as_u64() != order["number"].as_u64() {
            lines.push(match rekey["waits"].as_str() {
                Some(why) => format!("edge {name} cannot begin yet, and tries again: {why}"),
                None => format!(
                    "edge {name} has not said that it obeys: it asks every half minute while clients work, else every ten minutes"
                ),
            });
        }
        if rekey.is_object() {
            lines.push(format!("edge {name}: {}", progress(rekey)));
            lines.extend(needed(rekey));
        }
    }
    lines
}

/// How far a rekey is, as an edge says.
pub fn progress(rekey: &Value) -> String {
    if rekey["under_way_to"].is_u64() {
        return format!(
            "rekey to key epoch {} is under way: {} sealed anew, {} left to look at",
            rekey["under_way_to"],
            told(rekey, "resealed_bytes"),
            told(rekey, "left_bytes")
        );
    }
    let unreadable = rekey["unreadable_objects"].as_u64().unwrap_or(0);
    match rekey["last_end"].as_str() {
        Some("unreadable") => format!(
            "the rekey ended, and {unreadable} objects could not be read: firn-edge verify on its machine names them"
        ),
        Some("stopped") => format!("the rekey was stopped after {}", told(rekey, "resealed_bytes")),
        Some(_) => format!("the rekey is done: {} sealed anew", told(rekey, "resealed_bytes")),
        None if rekey["oldest_epoch"] == rekey["newest_epoch"] => {
            "nothing was sealed under an older key".into()
        }
        None => "no rekey is under way".into(),
    }
}

/// What still needs older keys, as an edge says.
pub fn needed(rekey: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let newest = &rekey["newest_epoch"];
    match rekey["oldest_epoch"].as_u64() {
        Some(oldest) if *newest == oldest => {
            lines.push("the volume as clients see it needs no older key".to_owned());
        }
        Some(oldest) => lines.push(format!(
            "the volume as clients see it needs the keys from epoch {oldest} on"
        )),
        None => lines.push("the volume as clients see it may need every older key".to_owned()),
    }
    let named = rekey["old_snapshots"].as_array().into_iter().flatten();
    let mut named: Vec<String> = named.filter_map(Value::as_str).map(str::to_owned).collect();
    let count = rekey["old_snapshot_count"].as_u64().unwrap_or(0);
    let unnamed = count.saturating_sub(named.len() as u64);
    if unnamed > 0 {
        named.push(format!("{unnamed} more"));
    }
    if !named.is_empty() {
        lines.push(format!(
            "snapshots that need older keys until they are deleted: {}",
            named.join(", ")
        ));
    }
    if rekey["oldest_epoch_needed"] == *newest {
        lines.push(format!(
            "nothing that can be reached needs a key older than epoch {newest}"
        ));
    }
    lines
}

/// What is wrong with an edge's rekey of the volume called `volume`, and what to do.
pub fn finding(edge: &str, volume: &str, rekey: &Value) -> Option<(String, String)> {
    if let Some(why) = rekey["waits"].as_str() {
        return Some((
            format!("edge {edge} cannot begin the rekey of {volume} that was asked for: {why}"),
            format!("firn volume rekey {volume} --status"),
        ));
    }
    (rekey["last_end"] == "unreadable" && rekey["under_way_to"].is_null()).then(|| {
        (
            format!("edge {edge}: {}", progress(rekey)),
            format!("restore or remove what is named, then firn volume rekey {volume}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(number: u64, stop: bool) -> Value {
        json!({ "rekey": { "number": number, "asked": 0,
                           "order": { "to_epoch": 2, "bytes_per_second": 1, "stop": stop } } })
    }

    fn said(volume: &Value, rekey: Value) -> String {
        lines(volume, &[json!({ "name": "office", "rekey": rekey })]).join("\n")
    }

    #[test]
    fn each_state_of_an_order_is_told_from_the_others() {
        assert_eq!(said(&json!({}), Value::Null), "no rekey was asked for");
        let waiting = said(&ordered(1, false), Value::Null);
        assert!(
            waiting.contains("for a rekey to key epoch 2")
                && waiting.contains(" ago)")
                && waiting.contains("has not said"),
            "{waiting}"
        );
        let kept = said(
            &ordered(1, false),
            json!({ "number": 0, "newest_epoch": 1, "waits": "no ring" }),
        );
        assert!(
            kept.contains("cannot begin yet, and tries again: no ring"),
            "{kept}"
        );
        let under_way = json!({ "number": 1, "newest_epoch": 2, "under_way_to": 2, "resealed_bytes": 1 << 20, "left_bytes": 3 << 20 });
        let under_way = said(&ordered(1, false), under_way);
        assert!(
            under_way.contains("under way: 1 MiB sealed anew, 3 MiB left")
                && under_way.contains("may need every"),
            "{under_way}"
        );
        let done = json!({ "number": 1, "newest_epoch": 2, "oldest_epoch": 2, "last_end": "done", "resealed_bytes": 1 << 20,
                           "old_snapshots": ["mon", "tue"], "old_snapshot_count": 5 });
        let held = said(&ordered(1, false), done.clone());
        assert!(
            held.contains("mon, tue, 3 more") && !held.contains("nothing that can be reached"),
            "{held}"
        );
        let mut clean = done;
        clean["old_snapshots"] = json!([]);
        clean["old_snapshot_count"] = 0.into();
        clean["oldest_epoch_needed"] = 2.into();
        assert!(
            said(&ordered(1, false), clean)
                .contains("nothing that can be reached needs a key older than epoch 2")
        );
    }

    #[test]
    fn a_rate_is_a_size_within_bounds() {
        assert_eq!(bytes_per_second("64 KiB").unwrap(), 64 << 10);
        for refused in ["soon", "1 KiB", "2 TiB"] {
            assert!(bytes_per_second(refused).is_err(), "{refused}");
        }
    }
}
