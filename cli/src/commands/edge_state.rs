//! Presentation of observed edge state: one line a volume, and findings, each with what to do about it.

use super::rekey;
use crate::{
    names::Names,
    screen::{field, told},
};
use firn_quantity::Size;
use serde_json::Value;

/// What waits for the cloud so long is spoken of.
const LAG_MS: u64 = 600_000;

fn volumes(edge: &Value) -> impl Iterator<Item = &Value> {
    edge["observed"]["volumes"].as_array().into_iter().flatten()
}

/// What of an edge is on its own disk only, for a column; nothing if it never said.
pub fn waiting(edge: &Value) -> String {
    if edge["observed"].is_null() {
        return String::new();
    }
    let dirty = volumes(edge).filter_map(|volume| volume["dirty_bytes"].as_u64());
    match volumes(edge).any(|volume| volume["lag_ms"].is_u64()) {
        true => Size(dirty.fold(0, u64::saturating_add)).to_string(),
        false => "nothing".into(),
    }
}

/// The members of an edge that people read: what it said of itself on lines of their own.
pub fn shown(edge: &Value, names: &Names) -> Value {
    let mut shown = edge.clone();
    shown["volumes"] = names.all(&edge["volumes"]).into();
    let Some(members) = shown.as_object_mut() else {
        return shown;
    };
    let observed = members.remove("observed").unwrap_or_default();
    let wanted = members.remove("desired_generation").unwrap_or_default();
    if observed.is_null() {
        return shown;
    }
    members.insert("version".into(), observed["version"].clone());
    members.insert("desired_state".into(), in_force(&observed, &wanted).into());
    for volume in volumes(edge) {
        let name = names.get(&field(volume, "volume"));
        members.insert(format!("of {name}"), state_of(volume).into());
    }
    shown
}

fn in_force(observed: &Value, wanted: &Value) -> String {
    let in_force = &observed["in_force"];
    let refused = field(observed, "refused.why");
    match (in_force == wanted, &*refused) {
        (true, "") => format!("generation {wanted} is in force"),
        (false, "") => {
            format!("generation {wanted} is told with the edge's next report; {in_force} is in force")
        }
        (_, why) => format!("generation {in_force} is in force; refused: {why}"),
    }
}

/// How a volume stands at an edge.
fn state_of(volume: &Value) -> String {
    let mut parts = vec![field(volume, "state")];
    parts.push(match volume["lag_ms"].as_u64() {
        Some(lag_ms) => format!(
            "{} wait for the cloud, the oldest for {} s",
            told(volume, "dirty_bytes"),
            lag_ms / 1000
        ),
        None => "nothing waits for the cloud".into(),
    });
    parts.push(format!(
        "{} of {} cache, {} connections of clients",
        told(volume, "cache_bytes"),
        told(volume, "cache_limit_bytes"),
        field(volume, "clients")
    ));
    if volume["new_writes"] == "refused_by_cap" {
        parts.push("new writes are refused: the hard cap is reached".into());
    }
    parts.push(
        match volume["snapshots"].as_str() {
            Some("service") => "snapshots by the service's policy",
            Some("edge") => "snapshots by the edge's own configuration",
            _ => "no snapshots by themselves",
        }
        .into(),
    );
    if volume["rekey"].is_object() {
        parts.push(rekey::progress(&volume["rekey"]));
    }
    let error = field(volume, "last_error");
    if !error.is_empty() {
        parts.push(format!("last error: {error}"));
    }
    parts.join("; ")
}

/// How each of an edge's volumes stands, by what it said last.
pub fn lines(edge: &Value, names: &Names) -> Vec<(String, String)> {
    let line = |volume: &Value| (names.get(&field(volume, "volume")), state_of(volume));
    volumes(edge).map(line).collect()
}

/// What is wrong with an edge that serves, each with what to do.
pub fn findings(edge: &Value, names: &Names) -> Vec<(String, String)> {
    let name = field(edge, "name");
    let mut found = Vec::new();
    let refused = field(edge, "observed.refused.why");
    if !refused.is_empty() {
        found.push((
            format!("edge {name} does not obey what it was told last: {refused}"),
            format!("firn edge show {name}"),
        ));
    }
    for volume in volumes(edge) {
        found.extend(rekey::finding(
            &name,
            &names.get(&field(volume, "volume")),
            &volume["rekey"],
        ));
        let error = field(volume, "last_error");
        let lag_ms = volume["lag_ms"].as_u64().filter(|lag_ms| *lag_ms >= LAG_MS);
        if let Some(lag_ms) = lag_ms {
            found.push((
                format!(
                    "edge {name}: {} wait for the cloud for {} minutes{}{error}",
                    told(volume, "dirty_bytes"),
                    lag_ms / 60_000,
                    if error.is_empty() { "" } else { ": " }
                ),
                "on its machine: firn-edge status".into(),
            ));
        } else if !error.is_empty() {
            found.push((
                format!("edge {name}: {error}"),
                "on its machine: firn-edge status".into(),
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn edge(observed: Value) -> Value {
        json!({ "name": "office", "volumes": ["vol_1"], "desired_generation": 4, "observed": observed })
    }

    #[test]
    fn an_edge_that_never_reported_has_nothing_wrong_and_nothing_waiting() {
        let silent = json!({ "name": "office", "volumes": [] });
        assert_eq!(waiting(&silent), "");
        assert!(findings(&silent, &Names::default()).is_empty());
        assert_eq!(shown(&silent, &Names::default())["name"], "office");
    }

    #[test]
    fn what_an_edge_says_is_a_line_for_each_volume_and_what_is_wrong_comes_with_what_to_do() {
        let behind = edge(json!({
            "version": "1.0.0", "in_force": 3,
            "refused": { "generation": 4, "why": "its format is 2; update the edge" },
            "volumes": [{ "volume": "vol_1", "state": "detached", "new_writes": "refused_by_cap", "snapshots": "service",
                          "lag_ms": 1_200_000, "dirty_bytes": 3 << 20, "cache_bytes": 0, "cache_limit_bytes": 1 << 30,
                          "clients": 2, "last_error": "the bucket is away" }],
        }));
        assert_eq!(waiting(&behind), "3 MiB");
        let found = findings(&behind, &Names::default());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].0.contains("its format is 2"));
        assert!(
            found[1]
                .0
                .contains("3 MiB wait for the cloud for 20 minutes: the bucket is away")
        );
        let shown = shown(&behind, &Names::default());
        assert_eq!(
            shown["desired_state"],
            "generation 3 is in force; refused: its format is 2; update the edge"
        );
        let line = shown["of vol_1"].as_str().unwrap();
        assert!(
            line.starts_with("detached; 3 MiB wait for the cloud, the oldest for 1200 s"),
            "{line}"
        );
        assert!(
            line.contains("new writes are refused") && line.contains("snapshots by the service's policy")
        );

        let well = edge(
            json!({ "version": "1.0.0", "in_force": 4, "volumes": [{ "volume": "vol_1", "state": "serving" }] }),
        );
        assert_eq!(waiting(&well), "nothing");
        assert!(findings(&well, &Names::default()).is_empty());
        let shown = super::shown(&well, &Names::default());
        assert_eq!(shown["desired_state"], "generation 4 is in force");
    }
}
