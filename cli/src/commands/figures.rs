//! Figures that a program of Firn serves at `/metrics`, read once and judged: what is wrong whenever it holds. What needs a rate, or a while, is
//! for Prometheus (`infra/prometheus`).

use crate::failure::{Exit, Failure};
use reqwest::{Client, Url, redirect::Policy};
use std::{fmt, time::Duration};

/// An edge of many volumes serves some hundred kilobytes.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// It is this machine, or one of its neighbours.
const LIMIT: Duration = Duration::from_secs(10);

/// What is wrong with a figure.
#[derive(Clone, Copy)]
enum Wrong {
    /// It says that something does not happen.
    Zero,
    Above(f64),
    /// Above this part of another figure of the same labels.
    AbovePartOf(&'static str, f64),
}

struct Sign {
    figure: &'static str,
    wrong: Wrong,
    says: &'static str,
    next: &'static str,
}

const fn sign(figure: &'static str, wrong: Wrong, says: &'static str, next: &'static str) -> Sign {
    Sign {
        figure,
        wrong,
        says,
        next,
    }
}

/// By what matters first.
const SIGNS: &[Sign] = &[
    sign(
        "firn_serving",
        Wrong::Zero,
        "clients are not served; nothing is lost",
        "firn-edge status says why",
    ),
    sign(
        "firn_lost_segments",
        Wrong::Above(0.0),
        "segments are lost that the store had acknowledged",
        "do not drain, and keep the state directory; bring the objects back from the bucket's versions",
    ),
    sign(
        "firn_altered_segments",
        Wrong::Above(0.0),
        "the store has other bytes than were put; they are read from the edge's own disk",
        "keep the state directory; see docs/operations.md",
    ),
    sign(
        "firn_damaged_files",
        Wrong::Above(0.0),
        "files cannot be read whole",
        "firn-edge verify names them",
    ),
    sign(
        "firn_journal_stalled",
        Wrong::Above(0.0),
        "the journal cannot write, and writers wait; what was acknowledged is safe",
        "make room on the journal's disk; it goes on by itself",
    ),
    sign(
        "firn_journal_used_bytes",
        Wrong::AbovePartOf("firn_journal_capacity_bytes", 0.8),
        "the journal is more than four fifths full; when it is full, writers wait",
        "bring the cloud back, or give the journal more room",
    ),
    sign(
        "firn_detached",
        Wrong::Above(0.0),
        "it serves without the cloud, from its journal and cache",
        "firn-edge status says what is away; it goes on by itself",
    ),
    sign(
        "firn_oldest_uncommitted_seconds",
        Wrong::Above(300.0),
        "changes are not in the cloud for more than five minutes; they are in the journal",
        "firn-edge status shows what waits",
    ),
    sign(
        "firn_level_two_away",
        Wrong::Above(0.0),
        "the cloud takes nothing, and clients wait who are answered once it has what they changed (durability = \"cloud\")",
        "bring the line, the bucket or the table back; firn-edge status says since when",
    ),
    sign(
        "firn_smb_down",
        Wrong::Above(0.0),
        "SMB is not served; NFS and mounts are",
        "firn-edge status says why",
    ),
    sign(
        "firn_smb_domain_down",
        Wrong::Above(0.0),
        "users of the domain may not be able to log in over SMB; all others are served",
        "firn-edge status, row SMB domain, says why: controller, clock, account or winbindd",
    ),
    sign(
        "firn_second_store_lost_segments",
        Wrong::Above(0.0),
        "the store lost or altered segments; readers have them from the second store",
        "firn-edge repair writes them anew; firn-edge status says what is in the way if the edge does not do it by itself",
    ),
    sign(
        "firn_second_store_alias",
        Wrong::Above(0.0),
        "the second store is the first under another name: nothing is mirrored",
        "name another bucket in [second] of firn-edge.toml",
    ),
    sign(
        "firn_audit_damaged",
        Wrong::Above(0.0),
        "an audit found that the store lost or altered something",
        "firn-edge audit list names it, firn-edge verify all files that it concerns; bring the objects back from the bucket's versions",
    ),
    sign(
        "firn_audit_overdue",
        Wrong::Above(0.0),
        "no audit found everything right for three of their periods",
        "firn-edge audit list says why: the store is away, or audit.monthly_budget is not enough",
    ),
    sign(
        "firn_cleaner_missing_segments",
        Wrong::Above(0.0),
        "segments are missing from the bucket",
        "firn-edge verify names the files; bring the objects back from the bucket's versions",
    ),
    sign(
        "firn_cleaner_damaged_objects",
        Wrong::Above(0.0),
        "the cleaner met damaged objects",
        "firn-edge verify names the files",
    ),
    sign(
        "firn_cleaner_held_segments",
        Wrong::Above(0.0),
        "the store does not let the cleaner delete; garbage stays and costs money",
        "an object lock, or a missing permission",
    ),
    sign(
        "firn_blockd_serving",
        Wrong::Zero,
        "another process is this node",
        "end one of the two",
    ),
    sign(
        "firn_blockd_read_only",
        Wrong::Above(0.0),
        "the node has no room for commits; its disks go on with their other copies",
        "make room; it goes on by itself",
    ),
    sign(
        "firn_blockd_damaged_blocks",
        Wrong::Above(0.0),
        "blocks are damaged and not repaired yet",
        "they are repaired from other copies; if that does not end, replace the disk",
    ),
];

/// Programs by a figure that each has.
const PROGRAMS: [(&str, &str); 5] = [
    ("firn_serving", "edge"),
    ("firn_blockd_serving", "disk node"),
    ("firn_api_requests_total", "service"),
    ("firn_anchor_connections", "anchor"),
    ("firn_cleaner_runs_total", "cleaner"),
];

/// A line of an exposition.
#[derive(Clone, Copy)]
struct Sample<'a> {
    name: &'a str,
    /// As they were written, in braces; empty: none.
    labels: &'a str,
    value: f64,
}

/// What was read of a program.
pub struct Judged {
    /// Which it is, and where.
    pub of: String,
    pub figures: usize,
    /// What is wrong, and what to do.
    pub wrong: Vec<Failure>,
}

impl fmt::Display for Judged {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} figures, none of which says that something is wrong",
            self.figures
        )
    }
}

/// Reads and judges what is served at `url`, which ends in `/metrics`.
///
/// # Errors
/// If nothing answers there, or no program of Firn.
pub async fn judged(url: &str) -> Result<Judged, Failure> {
    let parsed: Url = url.parse().map_err(|_| {
        Failure::usage(format!(
            "{url:?} is no address such as http://127.0.0.1:9464/metrics"
        ))
    })?;
    let text = read(parsed).await.map_err(|why| {
        Failure::new(Exit::Unavailable, format!("no figures at {url}: {why}"))
            .next("is the program up, and its metrics turned on (metrics.listen, --listen-metrics)?")
    })?;
    judge(url, &text)
}

async fn read(url: Url) -> Result<String, String> {
    let innermost = |error: reqwest::Error| {
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        cause.to_string()
    };
    let client = Client::builder().redirect(Policy::none()).timeout(LIMIT).build();
    let mut response = client
        .map_err(innermost)?
        .get(url)
        .send()
        .await
        .map_err(innermost)?;
    if !response.status().is_success() {
        return Err(format!("it answers {}", response.status()));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(innermost)? {
        if bytes.len() + chunk.len() > TEXT_BYTES_MAX {
            return Err("it is longer than any program's figures".into());
        }
        bytes.extend_from_slice(&chunk);
    }
    String::from_utf8(bytes).map_err(|_| "it is no text".into())
}

/// A line of an exposition; none for what is none.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (series, value) = line.rsplit_once(' ')?;
    let at = series.find('{').unwrap_or(series.len());
    let (name, labels) = series.split_at(at);
    let value = value.parse().ok()?;
    Some(Sample { name, labels, value })
}

fn is_wrong(wrong: Wrong, sample: Sample<'_>, all: &[Sample<'_>]) -> bool {
    match wrong {
        Wrong::Zero => sample.value == 0.0,
        Wrong::Above(bound) => sample.value > bound,
        Wrong::AbovePartOf(whole, part) => all
            .iter()
            .find(|other| other.name == whole && other.labels == sample.labels)
            .is_some_and(|whole| sample.value > whole.value * part),
    }
}

fn judge(url: &str, text: &str) -> Result<Judged, Failure> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let all: Vec<_> = lines.filter_map(sample).collect();
    let has = |name: &str| all.iter().any(|sample| sample.name == name);
    let Some((_, program)) = PROGRAMS.iter().find(|(figure, _)| has(figure)) else {
        return Err(Failure::failed(format!(
            "what is served at {url} are no figures of Firn"
        )));
    };
    let mut wrong = Vec::new();
    for sign in SIGNS {
        for sample in all.iter().filter(|sample| sample.name == sign.figure) {
            if is_wrong(sign.wrong, *sample, &all) {
                let what = format!(
                    "{} ({}{} {})",
                    sign.says, sample.name, sample.labels, sample.value
                );
                wrong.push(Failure::failed(what).next(sign.next));
            }
        }
    }
    Ok(Judged {
        of: format!("{program} at {url}"),
        figures: all.len(),
        wrong,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        let judged = judge("u", text).expect("figures of Firn");
        judged.wrong.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_wrong_is_named_with_its_volume() {
        let text = "# TYPE firn_serving gauge\nfirn_serving{volume=\"files\"} 1\nfirn_serving{volume=\"homes\"} 0\n\
                    firn_damaged_files 0\nfirn_journal_used_bytes 81\nfirn_journal_capacity_bytes 100\n# EOF\n";
        let said = said(text);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].contains("volume=\"homes\"") && said[0].contains("firn-edge status"),
            "{said:?}"
        );
        assert!(said[1].contains("four fifths"), "{said:?}");
    }

    #[test]
    fn a_part_is_of_the_same_volume() {
        let text = "firn_serving 1\nfirn_journal_used_bytes{volume=\"a\"} 90\nfirn_journal_capacity_bytes{volume=\"b\"} 100\n";
        assert_eq!(said(text), [""; 0]);
    }

    #[test]
    fn what_is_not_firns_is_refused() {
        for text in ["", "node_load1 0.5\n", "<html> </html>"] {
            assert!(judge("u", text).is_err(), "{text}");
        }
    }
}
