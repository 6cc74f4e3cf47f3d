//! Past audits as `firn-edge audit list` and `show` see them: what this machine has kept beside what the bucket has, each signature against
//! the volume's keys, and the chain over both.
//!
//! The edge need not run: the state directory has the keys that open ownership statements, and the table is not asked.

use crate::{
    auditor::{
        LastAudit,
        bucket::{Key, Listed, ReportBucket},
        kept::{Kept, KeptAudits, Unreadable},
    },
    config::Config,
    failure::Failure,
    identity::Identity,
    outage::DEADLINE,
    parts::{bare_store, environment},
    rings::open_kept,
};
use firn_audit_report::{AskedBy, Break, SignedReport, breaks};
use firn_store::StoreError;
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

/// One past audit.
pub struct Row {
    pub sequence: Option<u64>,
    pub asked_by: AskedBy,
    pub last: LastAudit,
    /// `None`: nobody signed it.
    pub key: Option<Key>,
    pub is_here: bool,
    pub is_in_bucket: bool,
    pub kept: Kept,
}

/// All of them, oldest first.
pub struct Listing {
    pub rows: Vec<Row>,
    /// Files and objects that are not what they should be, and who signed what should have been the owner's.
    pub wrong: Vec<String>,
    pub breaks: Vec<Break>,
    /// Why the bucket was not asked.
    pub not_asked: Option<String>,
}

impl Listing {
    pub fn is_whole(&self) -> bool {
        self.wrong.is_empty() && self.breaks.is_empty()
    }

    /// Reads what is here, and what the bucket has unless only this machine is meant.
    pub async fn read(config: &Config, only_here: bool) -> Self {
        let kept = KeptAudits::open(&config.volume.state_directory);
        let asked = match only_here {
            true => Err("only this machine was asked for".to_owned()),
            false => Asked::ask(config, &kept).await,
        };
        match asked {
            Ok(asked) => Self::of(&kept, asked, None),
            Err(why) => Self::of(&kept, Asked::default(), Some(why)),
        }
    }

    fn of(kept: &KeptAudits, asked: Asked, not_asked: Option<String>) -> Self {
        let mut listing = Self {
            rows: Vec::new(),
            wrong: Vec::new(),
            breaks: Vec::new(),
            not_asked,
        };
        for file in kept.unreadable() {
            listing.wrong.push(unreadable(file));
        }
        let here: BTreeMap<u64, &SignedReport> = kept
            .reports()
            .map(|signed| (signed.report().sequence, signed))
            .collect();
        listing.compare(&here, &asked);
        // What can be read somewhere can be read.
        let in_bucket = asked
            .reports
            .iter()
            .map(|(sequence, read)| (*sequence, read.as_ref().ok()));
        let mut known: BTreeMap<u64, Option<&SignedReport>> = in_bucket.collect();
        let seen = kept.unreadable().iter().filter_map(|file| file.sequence);
        for (sequence, report) in seen
            .map(|sequence| (sequence, None))
            .chain(here.iter().map(|(sequence, report)| (*sequence, Some(*report))))
        {
            let known = known.entry(sequence).or_default();
            *known = known.or(report);
        }
        let first = known.keys().next().copied();
        if let Some(first) = first
            && first > 1
            && asked.are_all
        {
            let last = first - 1;
            listing.breaks.push(Break::Missing { first: 1, last });
        }
        listing.breaks.extend(breaks(
            known.iter().map(|(sequence, report)| (*sequence, *report)),
        ));
        for (sequence, report) in known {
            let Some(report) = report else { continue };
            let key = asked.whose(report);
            if key == Key::Strangers {
                listing.wrong.push(format!(
                    "report {sequence}: no ownership statement of the volume names the key {} that signed it",
                    firn_ids::Hex(&report.report().signer.key)
                ));
            }
            listing.rows.push(Row {
                sequence: Some(sequence),
                asked_by: report.report().asked_by,
                last: LastAudit::of_report(report.report()),
                key: Some(key),
                is_here: here.contains_key(&sequence),
                is_in_bucket: matches!(asked.reports.get(&sequence), Some(Ok(_))),
                kept: Kept::Signed(Box::new(report.clone())),
            });
        }
        for audit in kept.audits() {
            if let Kept::Unsigned(unsigned) = audit {
                listing.rows.push(Row {
                    sequence: None,
                    asked_by: unsigned.asked_by,
                    last: audit.last(),
                    key: None,
                    is_here: true,
                    is_in_bucket: false,
                    kept: audit.clone(),
                });
            }
        }
        listing.rows.sort_by_key(|row| row.last.ended_at_ms);
        listing
    }

    /// Holds what the bucket has against what is here.
    fn compare(&mut self, here: &BTreeMap<u64, &SignedReport>, asked: &Asked) {
        for (sequence, read) in &asked.reports {
            match (read, here.get(sequence)) {
                (Err(why), _) => self.wrong.push(format!("report {sequence} in the bucket: {why}")),
                (Ok(there), Some(here)) if there != *here => self.wrong.push(format!(
                    "report {sequence} on this machine is another one than the bucket's"
                )),
                (Ok(_), _) => {}
            }
        }
        let (Some(oldest), Some(newest)) = (asked.reports.keys().next(), asked.reports.keys().last()) else {
            return;
        };
        let gone = here
            .keys()
            .filter(|sequence| !asked.reports.contains_key(sequence))
            .filter(|sequence| *sequence < newest && (asked.are_all || *sequence > oldest));
        for sequence in gone {
            self.wrong.push(format!(
                "report {sequence} is not in the bucket any more, which has later ones; this machine has it"
            ));
        }
    }
}

fn unreadable(file: &Unreadable) -> String {
    let (path, why) = (file.path.display(), &file.why);
    match file.sequence {
        Some(sequence) => format!("report {sequence} on this machine ({path}): {why}"),
        None => format!("{path}: {why}"),
    }
}

/// What the bucket said.
#[derive(Default)]
struct Asked {
    reports: BTreeMap<u64, Result<SignedReport, String>>,
    keys: BTreeMap<SignerKey, Key>,
    are_all: bool,
}

/// Epoch, grant and key.
type SignerKey = (u64, [u8; 16], [u8; 32]);

fn signer_key(signed: &SignedReport) -> SignerKey {
    let signer = &signed.report().signer;
    (signer.epoch, signer.grant, signer.key)
}

impl Asked {
    fn whose(&self, signed: &SignedReport) -> Key {
        let key = self.keys.get(&signer_key(signed));
        key.cloned().unwrap_or(Key::NotChecked)
    }

    async fn ask(config: &Config, kept: &KeptAudits) -> Result<Self, String> {
        let text = |failure: Failure| failure.to_string();
        let directory = &config.volume.state_directory;
        let identity = Identity::load(directory).map_err(text)?;
        let keys = open_kept(directory, &identity).map_err(text)?;
        let env = environment(directory).map_err(text)?;
        let bucket = ReportBucket {
            store: bare_store(&env, config).await.map_err(text)?,
            keys,
            volume: identity.volume,
        };
        match env.timeout(DEADLINE, Self::of(&bucket, kept)).await {
            Ok(asked) => asked.map_err(|error| error.to_string()),
            Err(elapsed) => Err(elapsed.to_string()),
        }
    }

    async fn of(bucket: &ReportBucket, kept: &KeptAudits) -> Result<Self, StoreError> {
        let Listed { reports, are_all } = bucket.list().await?;
        let mut keys = BTreeMap::new();
        for signed in reports.values().flatten().chain(kept.reports()) {
            if let Entry::Vacant(unknown) = keys.entry(signer_key(signed)) {
                unknown.insert(bucket.whose_key(signed.report()).await?);
            }
        }
        Ok(Self {
            reports,
            keys,
            are_all,
        })
    }
}

/// The volume's report of this number.
pub async fn one(config: &Config, sequence: u64) -> Result<(SignedReport, Key), Failure> {
    let listing = Listing::read(config, false).await;
    let numbers: BTreeSet<u64> = listing.rows.iter().filter_map(|row| row.sequence).collect();
    for row in listing.rows {
        if let (Some(key), Kept::Signed(signed)) = (row.key, row.kept)
            && row.sequence == Some(sequence)
        {
            return Ok((*signed, key));
        }
    }
    let said = listing
        .wrong
        .iter()
        .find(|wrong| wrong.starts_with(&format!("report {sequence} ")));
    Err(Failure::usage(match (said, numbers.first(), numbers.last()) {
        (Some(wrong), ..) => wrong.clone(),
        (None, Some(first), Some(last)) => {
            format!("there is no report {sequence}: there are reports {first} to {last}")
        }
        (None, ..) => "there are no signed reports yet; make one with: firn-edge audit".into(),
    }))
}
