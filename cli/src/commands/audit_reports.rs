//! Reports of audits of a volume, newest first: what its edges signed that the bucket still has, and whether signatures and chain hold.
//!
//! ```text
//! service ── files ──▶ signed by the key that each names, of one volume, of the family that was seen ─▶ each has the hash of the one before
//!                                                                                                     └▶ the newest seen before is among them
//! ```
//!
//! Nothing of it is the service's word but which edge brought a report. Whose key signed is told by the ownership statements in the bucket, which an edge
//! or `firn-edge audit list` reads; the newest report that was seen is kept beside the profile, so that a service that withholds later ones is noticed.

use super::Context;
use crate::{
    failure::{Failure, of_file},
    hexadecimal::hex,
    names::Names,
    screen::field,
    session::Session,
    times,
};
use firn_audit_report::{Report, SignedReport, breaks};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    path::Path,
};

/// Of how many millionths of damage the list tells how likely it would have been found.
const TOLD_PPM: u32 = 10_000;

/// The newest report of each volume that was seen, beside the profile: number and hash by the volume's id.
const SEEN: &str = "audit-reports.json";

type Seen = BTreeMap<String, (u64, String)>;

fn read_seen(path: &Path) -> Result<Seen, Failure> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| {
            Failure::usage(format!("{}: {error}", path.display()))
                .next("it says which reports were seen: remove it to begin anew")
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Seen::new()),
        Err(error) => Err(of_file(path)(error)),
    }
}

fn write_seen(path: &Path, seen: &Seen) -> Result<(), Failure> {
    let text = serde_json::to_vec(seen).map_err(|error| Failure::failed(error.to_string()))?;
    let new = path.with_extension("new");
    std::fs::write(&new, text).map_err(of_file(&new))?;
    std::fs::rename(&new, path).map_err(of_file(path))
}

pub async fn list(context: &Context, session: &Session, volume: &str) -> Result<(), Failure> {
    let found = session.find("volumes", volume).await?;
    let (id, name) = (field(&found, "id"), field(&found, "name"));
    let filed = session.list(&format!("volumes/{id}/audits")).await?;
    let names = Names::of(session, context.screen, &["edges"]).await?;
    let family = session
        .profile
        .volumes
        .get(&id)
        .and_then(|pinned| pinned.family.clone())
        .filter(|family| family.len() == 32);
    let mut problems = Vec::new();
    let mut reports: BTreeMap<u64, Filed> = BTreeMap::new();
    for file in &filed {
        let one = Filed::read(file, family.as_deref(), &names);
        let sequence = one.sequence;
        if reports.insert(sequence, one).is_some() {
            problems.push(format!("report {sequence} is there twice"));
        }
    }
    let whole: Vec<&SignedReport> = reports
        .values()
        .filter_map(|one| one.signed.as_ref().ok())
        .collect();
    let ids = whole.iter().map(|signed| signed.report().volume.id);
    if ids.collect::<BTreeSet<_>>().len() > 1 {
        problems.push("the reports are of several volumes of the bucket".into());
    }
    for (sequence, one) in &reports {
        if let Err(why) = &one.signed {
            problems.push(format!("report {sequence}: {why}"));
        }
    }
    let links = reports
        .iter()
        .map(|(sequence, one)| (*sequence, one.signed.as_ref().ok()));
    problems.extend(breaks(links).iter().map(ToString::to_string));
    let path = session.directory().join(SEEN);
    let mut seen = read_seen(&path)?;
    if let Some((sequence, hash)) = seen.get(&id).cloned() {
        let first = reports.keys().next().copied().unwrap_or(u64::MAX);
        let now = reports.get(&sequence).and_then(|one| one.signed.as_ref().ok());
        match now {
            Some(signed) if hex(&signed.hash()) == hash => {}
            Some(_) => problems.push(format!("report {sequence} is not the one that was seen before")),
            // So old that the service keeps it no more.
            None if sequence < first && !reports.is_empty() => {}
            None => problems.push(format!("report {sequence}, which was seen before, is not there")),
        }
    }
    if problems.is_empty()
        && let Some(newest) = whole.last()
    {
        let link = (newest.report().sequence, hex(&newest.hash()));
        if seen.insert(id.clone(), link.clone()) != Some(link) {
            write_seen(&path, &seen)?;
        }
    }
    let rows: Vec<Value> = reports.values().rev().map(Filed::shown).collect();
    let ends = (
        reports.keys().next().copied(),
        reports.keys().next_back().copied(),
    );
    let shown = json!({ "volume": id, "reports": rows, "holds": problems.is_empty(), "problems": problems });
    context.screen.show(&shown, |shown| {
        let rows = shown["reports"].as_array().map(Vec::as_slice).unwrap_or_default();
        let heads: Vec<&str> = COLUMNS.iter().map(|(head, _)| *head).collect();
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| COLUMNS.iter().map(|(_, path)| cell(row, path)).collect())
            .collect();
        let mut text = context.screen.table(&heads, &[0, 5], &cells);
        match (ends, problems.is_empty()) {
            ((Some(first), Some(last)), true) => {
                text.push_str(&format!("chain: whole, from report {first} to report {last}\n"));
            }
            ((None, _) | (_, None), true) => {
                text = format!(
                    "no report of an audit of {name} was brought to the service yet: firn-edge audit makes one, [audit] every in its configuration many\n"
                );
            }
            (_, false) => {}
        }
        text
    })?;
    match problems.is_empty() {
        true => Ok(()),
        false => Err(
            Failure::untrusted(format!("the reports of {name}: {}", problems.join("; ")))
                .next("firn-edge audit list, on the edge's machine, has those of the bucket"),
        ),
    }
}

const COLUMNS: [(&str, &str); 9] = [
    ("report", "sequence"),
    ("ended", "ended_at"),
    ("edge", "edge_name"),
    ("outcome", "outcome"),
    ("coverage", "coverage"),
    ("1 % found", "one_percent_found"),
    ("signature", "signature"),
    ("auditor's key", "key"),
    ("detail", "detail"),
];

fn cell(row: &Value, path: &str) -> String {
    match field(row, path) {
        text if text.is_empty() => "-".into(),
        // Enough to tell two apart; programs get all of it.
        text if path == "key" => text.chars().take(16).collect(),
        text => text,
    }
}

/// A report as the service has it.
struct Filed {
    sequence: u64,
    edge: Value,
    edge_name: String,
    signed: Result<SignedReport, String>,
    text: Value,
}

impl Filed {
    fn read(file: &Value, family: Option<&str>, names: &Names) -> Self {
        let text = file["report"].as_str().unwrap_or_default();
        let sequence = file["sequence"].as_u64().unwrap_or(0);
        let signed = SignedReport::open(text.as_bytes()).map_err(|error| error.to_string());
        let signed = signed.and_then(|signed| {
            let report = signed.report();
            if report.sequence != sequence {
                return Err(format!("it is report {}", report.sequence));
            }
            match family {
                Some(family) if family != hex(&report.volume.family) => Err(format!(
                    "it is of the family {}, not of {family}",
                    hex(&report.volume.family)
                )),
                Some(_) | None => Ok(signed),
            }
        });
        Self {
            sequence,
            edge: file["edge"].clone(),
            edge_name: names.get(&field(file, "edge")),
            signed,
            text: file["report"].clone(),
        }
    }

    fn shown(&self) -> Value {
        let mut shown = json!({
            "sequence": self.sequence,
            "edge": self.edge,
            "edge_name": self.edge_name,
            "report": self.text,
        });
        let members = match &self.signed {
            Ok(signed) => of_report(signed.report()),
            Err(why) => json!({ "signature": "NOT RIGHT", "detail": why }),
        };
        if let (Some(shown), Value::Object(members)) = (shown.as_object_mut(), members) {
            shown.extend(members);
        }
        shown
    }
}

fn of_report(report: &Report) -> Value {
    // Rounded down: never more than is true.
    let percent = |part: f64| format!("{:.2} %", (part * 10_000.0).floor() / 100.0);
    let audited = report.audited.as_ref();
    let coverage = audited.map(|audited| {
        let all = match audited.is_complete {
            true => "all",
            false => "NOT ALL",
        };
        format!(
            "{all}: {} of {} draws, {} of {} retained roots",
            report.answered(),
            audited.asked,
            audited.walked_roots,
            audited.retained_roots
        )
    });
    json!({
        "ended_at": times::of_millis(report.ended_at_ms),
        "asked_by": report.asked_by.name(),
        "outcome": report.outcome.name(),
        "coverage": coverage,
        "one_percent_found": percent(report.found(TOLD_PPM)),
        "signature": "right",
        "key": hex(&report.signer.key),
        "detail": report.detail,
    })
}
