//! Any bytes are one report of an audit or none; what is accepted is spelled so and not otherwise, and follows only what it names.
#![no_main]

use firn_audit_report::{SignedReport, breaks};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(report) = SignedReport::open(data) {
        assert_eq!(report.text().as_bytes(), data);
        let sequence = report.report().sequence;
        assert!(breaks([(sequence, Some(&report))]).is_empty());
    }
});
