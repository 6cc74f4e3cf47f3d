//! From what an audit found to the report that the volume's owner signs.

use super::kept::KeptAudit;
use firn_audit_report::{
    Audited, AuditedRoot, AuditedSecond, AuditedVolume, Cost, DamageNamed, DetectionTold, NewReport, Outcome,
    SecondDamageNamed, Signer,
};
use firn_cleaner::{AuditReport, Detection, SecondAudit, VolumeAudit};
use firn_ids::parse_hex;
use firn_volume::OwnerSigner;

/// Who signs, and by what the money is told.
pub struct Subject<'a> {
    /// By which book the store charges.
    pub prices: &'a str,
    pub signer: &'a OwnerSigner,
}

/// What is to be signed; nothing of an audit that says nothing of the store: one that failed, or of a volume without a commit.
pub fn report(of: &Subject<'_>, began_at_ms: i64, audit: &KeptAudit) -> Option<NewReport> {
    match audit.outcome {
        Outcome::Failed | Outcome::Empty => return None,
        Outcome::Intact | Outcome::Damaged | Outcome::Incomplete => {}
    }
    let volume = audit.report.iter().flat_map(|report| &report.volumes).next();
    Some(NewReport {
        volume: AuditedVolume {
            family: of.signer.family().0,
            id: of.signer.volume(),
        },
        signer: Signer {
            owner: of.signer.owner().id.0,
            epoch: of.signer.epoch().0,
            grant: of.signer.grant(),
            key: of.signer.public().to_bytes(),
            program: concat!("firn-edge ", env!("CARGO_PKG_VERSION")).into(),
        },
        asked_by: audit.asked_by,
        began_at_ms,
        ended_at_ms: audit.ended_at_ms,
        outcome: audit.outcome,
        detail: audit.detail.clone(),
        audited: volume.map(audited),
        cost: cost(audit.report.as_ref(), of.prices),
    })
}

fn cost(report: Option<&AuditReport>, prices: &str) -> Cost {
    Cost {
        prices: prices.to_owned(),
        nanodollars: report.map_or(0, |report| report.cost.nanos()),
        requests: report.map_or(0, |report| report.usage.requests()),
        bytes_down: report.map_or(0, |report| report.usage.bytes_down),
    }
}

fn audited(volume: &VolumeAudit) -> Audited {
    // They are of no file: told as the manifest's.
    let altered = volume
        .manifest
        .iter()
        .flat_map(|manifest| &manifest.altered_segments);
    let altered = altered.map(|segment| DamageNamed {
        inode: firn_format::MANIFEST,
        detail: format!("segment {segment} is not as it was put"),
    });
    let digits = |text: &str| parse_hex(text).expect("this build's audits have their hashes in hex");
    Audited {
        root: AuditedRoot {
            version: volume.version,
            hash: digits(&volume.root),
            committed_at_ms: volume.committed_at_ms,
        },
        retained_roots: volume.retained_roots,
        walked_roots: volume.walked_roots,
        read_objects: volume.read_objects,
        read_bytes: volume.read_bytes,
        data_objects: volume.data_objects,
        data_bytes: volume.data_bytes,
        seed: digits(&volume.seed),
        drawn: digits(&volume.drawn),
        asked: volume.asked,
        intact: volume.intact,
        damaged: volume.damaged_draws,
        released: volume.released,
        damaged_nodes: volume.damaged_nodes,
        moved: volume.moved,
        is_complete: volume.is_complete,
        lost_segments: volume.lost_segments.clone(),
        damages: volume
            .damaged
            .iter()
            .map(|file| DamageNamed {
                inode: file.inode,
                detail: file.detail.clone(),
            })
            .chain(altered)
            .collect(),
        detections: told(&volume.detections),
        second: volume.second.as_ref().map(second),
    }
}

fn second(second: &SecondAudit) -> AuditedSecond {
    AuditedSecond {
        has_manifest: second.has_manifest,
        segments: second.segments,
        copies: second.copies,
        in_groups: second.in_groups,
        waiting: second.waiting,
        groups: second.groups,
        bytes: second.bytes,
        asked: second.asked,
        intact: second.intact,
        damaged: second.damaged,
        released: second.released,
        missing: second.missing,
        altered: second.altered,
        unreadable_groups: second.unreadable_groups,
        is_complete: second.is_complete,
        error: second.error.clone(),
        named: second
            .named
            .iter()
            .map(|damage| SecondDamageNamed {
                key: damage.key.clone(),
                detail: damage.detail.clone(),
            })
            .collect(),
        detections: told(&second.detections),
    }
}

fn told(detections: &[Detection]) -> Vec<DetectionTold> {
    let told = detections.iter().map(|told| DetectionTold {
        damaged_ppm: share_ppm(told.share),
        found_ppm: found_ppm(told.probability),
    });
    told.collect()
}

/// Millionths of a share, as near as there are any.
fn share_ppm(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * 1e6).round() as u32
}

/// Millionths of a probability, never more than is true.
fn found_ppm(probability: f64) -> u32 {
    (probability.clamp(0.0, 1.0) * 1e6).floor() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probability_is_never_rounded_up() {
        assert_eq!(
            [0.0001, 0.001, 0.01, 0.05].map(share_ppm),
            [100, 1000, 10_000, 50_000]
        );
        let certain = 1.0 - 0.95f64.powi(688);
        assert_eq!([0.999_999_99, certain].map(found_ppm), [999_999, 999_999]);
        assert_eq!([0.0, 1.0].map(found_ppm), [0, 1_000_000]);
    }
}
