//! `firn-edge audit list`, `show` and `verify`: what past audits found, and whether it is what was signed.

use super::{
    listing::{self, Listing, Row},
    percent,
};
use crate::{
    auditor::{bucket::Key, kept::Kept},
    commands::Output,
    config::Config,
    failure::Failure,
    report::size,
    snapshots::utc,
};
use firn_audit_report::{AuditedSecond, MAX_REPORT_BYTES, SignedReport, breaks};
use firn_env::{eprintln, print, println};
use firn_ids::Hex;
use firn_quantity::{Dollars, Money};
use serde_json::json;
use std::{collections::BTreeMap, fmt::Write, io::Read, path::PathBuf};

/// Lists; fails (6) if a report was altered, replaced or removed.
pub async fn list(config: &Config, only_here: bool, output: Output) -> Result<(), Failure> {
    let listing = Listing::read(config, only_here).await;
    if let Some(why) = listing.not_asked.as_ref().filter(|_| !only_here) {
        eprintln!(
            "the bucket was not asked, so this is what this machine has, and keys were not checked: {why}"
        );
    }
    match output {
        Output::Text => print!("{}", table(&listing)),
        Output::Json => println!(
            "{}",
            serde_json::to_string_pretty(&as_json(&listing)).map_err(Failure::new)?
        ),
    }
    match listing.is_whole() {
        true => Ok(()),
        false => Err(Failure::damaged(
            "reports of audits were altered, replaced or removed, as said above; those that are whole say what they said. The volume itself \
             is not concerned: firn-edge audit looks at it anew",
        )),
    }
}

fn signature(row: &Row) -> &'static str {
    match &row.key {
        None => "none",
        Some(Key::Owners(_)) => "owner's",
        Some(Key::Strangers) => "STRANGER'S",
        Some(Key::Forgotten) => "old key",
        Some(Key::NotChecked) => "right",
    }
}

fn table(listing: &Listing) -> String {
    if listing.rows.is_empty() && listing.is_whole() {
        return "no audits are kept; make one with: firn-edge audit\n".into();
    }
    let mut text = format!(
        "{:>6}  {:<20} {:<13} {:<10} {:>10} {:>10} {:>12}  {:<10} {:<11}  {}\n",
        "REPORT",
        "ENDED (UTC)",
        "ASKED BY",
        "OUTCOME",
        "CHALLENGES",
        "1 % FOUND",
        "COST",
        "SIGNATURE",
        "WHERE",
        "DETAIL"
    );
    for row in &listing.rows {
        let last = &row.last;
        let place = match (row.is_here, row.is_in_bucket) {
            (true, true) => "here,bucket",
            (true, false) => "here",
            (false, _) => "bucket",
        };
        let number = row
            .sequence
            .map_or_else(|| "-".into(), |sequence| sequence.to_string());
        let _ = writeln!(
            text,
            "{number:>6}  {:<20} {:<13} {:<10} {:>10} {:>10} {:>12}  {:<10} {place:<11}  {}",
            utc(last.ended_at_ms),
            row.asked_by.name(),
            last.outcome.name(),
            last.challenges,
            percent(last.one_percent_found),
            Dollars(Money::of_nanos(last.nanodollars)).to_string(),
            signature(row),
            last.detail.as_deref().unwrap_or("-")
        );
    }
    for wrong in &listing.wrong {
        let _ = writeln!(text, "WRONG: {wrong}");
    }
    for at in &listing.breaks {
        let _ = writeln!(text, "CHAIN BROKEN: {at}");
    }
    let mut numbers = listing.rows.iter().filter_map(|row| row.sequence);
    if let Some(first) = numbers.next()
        && listing.breaks.is_empty()
    {
        let last = numbers.next_back().unwrap_or(first);
        let _ = writeln!(text, "chain: whole, from report {first} to report {last}");
    }
    text
}

fn as_json(listing: &Listing) -> serde_json::Value {
    let row = |row: &Row| {
        let report = match &row.kept {
            Kept::Signed(signed) => json!(signed.report()),
            Kept::Unsigned(audit) => json!(audit.report),
        };
        let hash = match &row.kept {
            Kept::Signed(signed) => Some(Hex(&signed.hash()).to_string()),
            Kept::Unsigned(_) => None,
        };
        let edge = match &row.key {
            Some(Key::Owners(name)) => Some(name),
            Some(Key::Strangers | Key::Forgotten | Key::NotChecked) | None => None,
        };
        json!({
            "sequence": row.sequence,
            "hash": hash,
            "ended_at_ms": row.last.ended_at_ms,
            "asked_by": row.asked_by,
            "outcome": row.last.outcome,
            "detail": row.last.detail,
            "signature": signature(row).to_lowercase(),
            "edge": edge,
            "is_here": row.is_here,
            "is_in_bucket": row.is_in_bucket,
            "report": report,
        })
    };
    json!({
        "audits": listing.rows.iter().map(row).collect::<Vec<_>>(),
        "wrong": listing.wrong,
        "chain_broken": listing.breaks.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "bucket_not_asked": listing.not_asked,
    })
}

/// Shows one; as JSON it is the report's file, byte for byte.
pub async fn show(config: &Config, sequence: u64, output: Output) -> Result<(), Failure> {
    let (signed, key) = listing::one(config, sequence).await?;
    match output {
        Output::Json => print!("{}", signed.text()),
        Output::Text => {
            print!("{}", text(&signed));
            println!("signature: {}", whose(&key));
        }
    }
    match key {
        Key::Strangers => Err(Failure::damaged(
            "somebody else than an owner of the volume made this report",
        )),
        Key::Owners(_) | Key::Forgotten | Key::NotChecked => Ok(()),
    }
}

fn whose(key: &Key) -> String {
    match key {
        Key::Owners(name) => {
            format!("right, by edge {name}: an ownership statement of the volume names the key")
        }
        Key::Strangers => "by a key that NO ownership statement of the volume names".into(),
        Key::Forgotten => {
            "right by the key that it names; whose that was, no key of the ring tells any more".into()
        }
        Key::NotChecked => "right by the key that it names; the bucket was not asked whose that is".into(),
    }
}

fn second_lines(text: &mut String, second: &AuditedSecond) {
    let _ = writeln!(
        text,
        "  second store: {} of {} challenges answered: {} intact, {} missing or altered; 1 % of damage would have been found with {}",
        second.answered(),
        second.asked,
        second.intact,
        second.damaged,
        percent(second.found(10_000))
    );
    let _ = writeln!(
        text,
        "  second store: {} segments missing, {} objects altered, {} parity groups unreadable; {} segments copied, {} in parity groups without a copy, {} \
         waiting",
        second.missing,
        second.altered,
        second.unreadable_groups,
        second.copies,
        second.in_groups,
        second.waiting
    );
    for damage in &second.named {
        let _ = writeln!(text, "  in the second store: {}: {}", damage.key, damage.detail);
    }
    if let Some(error) = &second.error {
        let _ = writeln!(text, "  second store: it could not be audited: {error}");
    }
}

/// A report for people.
fn text(signed: &SignedReport) -> String {
    let report = signed.report();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "report {} of {}: {}{}",
        report.sequence,
        report.volume.id,
        report.outcome.name(),
        report
            .detail
            .as_ref()
            .map_or_else(String::new, |detail| format!(": {detail}"))
    );
    let _ = writeln!(
        text,
        "  by owner {} in epoch {} ({}), asked by {}, from {} to {}",
        Hex(&report.signer.owner),
        report.signer.epoch,
        report.signer.program,
        report.asked_by.name(),
        utc(report.began_at_ms),
        utc(report.ended_at_ms)
    );
    if let Some(audited) = &report.audited {
        let root = &audited.root;
        let _ = writeln!(
            text,
            "  root: version {} of {}, {}",
            root.version,
            utc(root.committed_at_ms),
            Hex(&root.hash)
        );
        let _ = writeln!(
            text,
            "  trees: {} nodes and inodes ({}) of the head and of {} of {} snapshots and other retained roots read, {} lost or damaged",
            audited.read_objects,
            size(audited.read_bytes),
            audited.walked_roots,
            audited.retained_roots,
            audited.damaged_nodes
        );
        let _ = writeln!(
            text,
            "  data: {} of {} challenges among {} objects ({}) answered: {} intact, {} lost or damaged",
            report.answered(),
            audited.asked,
            audited.data_objects,
            size(audited.data_bytes),
            audited.intact,
            audited.damaged
        );
        let found: Vec<String> = audited
            .detections
            .iter()
            .map(|told| {
                let damaged = f64::from(told.damaged_ppm) / 10_000.0;
                format!("{damaged} % with {}", percent(f64::from(told.found_ppm) / 1e6))
            })
            .collect();
        let _ = writeln!(
            text,
            "  would have been found, if so much of the data were damaged: {}",
            found.join("; ")
        );
        let _ = writeln!(text, "  seed:  {}", Hex(&audited.seed));
        let _ = writeln!(text, "  drawn: {}", Hex(&audited.drawn));
        for segment in &audited.lost_segments {
            let _ = writeln!(text, "  lost: segment {segment}");
        }
        for damage in &audited.damages {
            let _ = writeln!(text, "  damaged: inode {}: {}", damage.inode, damage.detail);
        }
        if let Some(second) = &audited.second {
            second_lines(&mut text, second);
        }
    }
    let _ = writeln!(
        text,
        "  cost: {} requests and {}, {} by {}",
        report.cost.requests,
        size(report.cost.bytes_down),
        Dollars(Money::of_nanos(report.cost.nanodollars)),
        report.cost.prices
    );
    let _ = writeln!(text, "  hash:  {}", Hex(&signed.hash()));
    if let Some(previous) = &report.previous {
        let _ = writeln!(text, "  after: {}", Hex(previous));
    }
    let _ = writeln!(text, "  key:   {}", Hex(&report.signer.key));
    text
}

/// Checks files against public keys, for somebody who has nothing else; fails (6) if one of them is not what an owner of a key signed, or
/// reports of one volume do not follow each other.
pub fn verify(files: &[PathBuf], keys: &[[u8; 32]]) -> Result<(), Failure> {
    let mut chains: BTreeMap<_, BTreeMap<u64, SignedReport>> = BTreeMap::new();
    let mut wrong = 0;
    for path in files {
        let shown = path.display();
        let signed = match open(path)? {
            Ok(signed) => signed,
            Err(why) => {
                println!("{shown}: WRONG: {why}");
                wrong += 1;
                continue;
            }
        };
        let report = signed.report();
        if !keys.contains(&report.signer.key) {
            println!(
                "{shown}: WRONG: it is signed by another key: {}",
                Hex(&report.signer.key)
            );
            wrong += 1;
            continue;
        }
        print!("{shown}: signed by that key\n{}", text(&signed));
        let of = (report.volume.family, report.volume.id);
        let sequence = report.sequence;
        if let Some(other) = chains.entry(of).or_default().insert(sequence, signed.clone())
            && other != signed
        {
            println!("WRONG: two different reports have number {sequence}, and both are signed");
            wrong += 1;
        }
    }
    for chain in chains.values() {
        for at in breaks(chain.iter().map(|(sequence, signed)| (*sequence, Some(signed)))) {
            println!("CHAIN BROKEN: {at}");
            wrong += 1;
        }
    }
    match wrong {
        0 => Ok(()),
        _ => Err(Failure::damaged(
            "not all of these are what the holders of these keys signed, or some are missing, as said above: believe none that is named there",
        )),
    }
}

fn open(path: &std::path::Path) -> Result<Result<SignedReport, String>, Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("cannot read {}: {error}", path.display()));
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_REPORT_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    Ok(SignedReport::open(&bytes).map_err(|error| error.to_string()))
}
