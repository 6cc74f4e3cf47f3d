//! Fitness of this machine's own firewall, as far as nftables shows it: whether what comes in is dropped unless a rule names its port.
//!
//! No judge of rule sets: it looks for a chain at the input hook that drops by default, and for the ports in any rule. What stands between
//! this machine and its clients, and in the tables of another tool, it does not see.

use super::{Subject, ports};
use crate::finding::Finding;
use serde_json::Value;
use std::process::Command;

const SUBJECT: &str = "firewall";

pub async fn look(subject: &Subject<'_>) -> Vec<Finding> {
    let ports = ports::of_clients(subject);
    let listed = subject
        .env
        .compute(|| Command::new("nft").args(["-j", "list", "ruleset"]).output())
        .await;
    vec![match listed {
        Err(_) => Finding::not_seen(
            SUBJECT,
            "nft is not installed; between clients and this machine the ports above must be open",
        ),
        Ok(output) if !output.status.success() => {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.lines().next().unwrap_or("it failed").to_owned();
            Finding::not_seen(
                SUBJECT,
                format!("nft says: {why} (as root it would show the rules)"),
            )
        }
        Ok(output) => match serde_json::from_slice(&output.stdout) {
            Ok(rules) => judge(&rules, &ports),
            Err(error) => Finding::not_seen(SUBJECT, format!("nft's rules cannot be read: {error}")),
        },
    }]
}

fn judge(rules: &Value, ports: &[u16]) -> Finding {
    let parts = rules["nftables"].as_array().map_or(&[][..], |parts| parts);
    let dropping = parts.iter().find_map(|part| {
        let chain = &part["chain"];
        let drops = chain["hook"] == "input" && chain["policy"] == "drop";
        drops.then(|| {
            let word = |name: &str| chain[name].as_str().unwrap_or("?").to_owned();
            format!("{} {} {}", word("family"), word("table"), word("name"))
        })
    });
    let Some(chain) = dropping else {
        return Finding::fine(SUBJECT, "no chain at the input hook drops by default");
    };
    let closed: Vec<String> = ports
        .iter()
        .filter(|port| !parts.iter().any(|part| names(&part["rule"], **port)))
        .map(u16::to_string)
        .collect();
    if closed.is_empty() {
        return Finding::fine(
            SUBJECT,
            format!("{chain} drops by default, and rules name each of the ports"),
        );
    }
    let list = closed.join(", ");
    Finding::hurts(
        SUBJECT,
        format!("{chain} drops by default, and no rule names {list}: clients would not get through"),
        format!(
            "nft add rule {chain} meta l4proto {{ tcp, udp }} th dport {{ {list} }} accept, or the same in your firewall's own tool"
        ),
    )
}

/// Whether a rule matches this destination port, whatever it does with it.
fn names(rule: &Value, port: u16) -> bool {
    let matches = rule["expr"].as_array().map_or(&[][..], |parts| parts);
    matches.iter().map(|part| &part["match"]).any(|matched| {
        matched["left"]["payload"]["field"] == "dport" && holds(&matched["right"], u64::from(port))
    })
}

/// A number, a range, or a set of both.
fn holds(right: &Value, port: u64) -> bool {
    if let Some(number) = right.as_u64() {
        return number == port;
    }
    if let [from, to] = right["range"].as_array().map_or(&[][..], |ends| ends) {
        return from.as_u64().is_some_and(|from| from <= port) && to.as_u64().is_some_and(|to| port <= to);
    }
    let set = right["set"].as_array().map_or(&[][..], |parts| parts);
    set.iter().any(|part| holds(part, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_that_no_rule_names_are_closed_by_a_chain_that_drops() {
        let chain = |policy: &str| json!({ "chain": { "family": "inet", "table": "filter", "name": "input", "hook": "input", "policy": policy } });
        let rule = json!({ "rule": { "expr": [
            { "match": { "left": { "payload": { "protocol": "tcp", "field": "dport" } },
                         "right": { "set": [22, { "range": [2040, 2050] }] } } },
            { "accept": null }
        ] } });
        let said =
            |policy, ports: &[u16]| judge(&json!({ "nftables": [chain(policy), rule] }), ports).to_string();
        assert!(said("accept", &[111]).starts_with("fine"));
        assert!(said("drop", &[2049]).starts_with("fine"));
        let closed = said("drop", &[111, 2049]);
        assert!(
            closed.starts_with("will hurt") && closed.contains("no rule names 111:"),
            "{closed}"
        );
        assert!(closed.contains("nft add rule inet filter input"), "{closed}");
    }
}
