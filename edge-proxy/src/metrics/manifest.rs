//! Figures of the manifest of segments.

use super::families::Families;
use crate::manifest::ManifestPart;

pub(super) fn expose(out: &mut Families, manifest: &ManifestPart) {
    out.gauge(
        "manifest_whole",
        "1 if the volume has a manifest which says of every segment that must exist.",
        manifest.state == "whole",
    );
    out.gauge(
        "manifest_gathering",
        "1 while a manifest is gathered from the volume's trees.",
        manifest.is_gathered(),
    );
    out.gauge(
        "manifest_gathered_segments",
        "Segments entered from the trees so far; 0 of a manifest that is whole.",
        manifest.gathered_segments as f64,
    );
    out.gauge(
        "manifest_lost_segments",
        "Segments that the trees need and the store had lost or altered when the manifest was gathered; 0 once it is whole, since audits name them.",
        manifest.lost_segments as f64,
    );
}
