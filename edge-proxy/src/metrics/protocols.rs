//! Figures by protocol: NFS of the whole edge, mounts and SMB of each volume.

use super::families::Families;
use crate::{
    smb::{DomainPart, SmbPart},
    snapshot::{ProtocolPart, Snapshot},
};
use firn_metrics::Value;

/// NFS, which is one for all volumes.
pub(super) fn of_server(out: &mut Families, snapshot: &Snapshot) {
    expose(out, snapshot, |part| part.protocol == "nfs");
}

/// What a volume is served by beside NFS.
pub(super) fn of_volume(out: &mut Families, snapshot: &Snapshot) {
    expose(out, snapshot, |part| part.protocol != "nfs");
    smb(out, snapshot.smb.as_ref());
}

fn expose(out: &mut Families, snapshot: &Snapshot, is_told: fn(&ProtocolPart) -> bool) {
    let parts = || snapshot.protocols.iter().filter(|part| is_told(part));
    let mut figure = |is_counter: bool, name: &str, help: &str, value: fn(&ProtocolPart) -> Value| {
        let samples = parts().map(|part| ([("protocol", part.protocol.as_str())], value(part)));
        match is_counter {
            true => out.counters(name, help, samples),
            false => out.gauges(name, help, samples),
        }
    };
    figure(
        false,
        "protocol_clients",
        "Connections of NFS and SMB clients; mounts of this machine.",
        |part| part.clients.into(),
    );
    figure(false, "protocol_open_files", "Files that are open.", |part| {
        part.open_files.into()
    });
    figure(
        false,
        "protocol_locks_held",
        "Byte-range locks and share reservations.",
        |part| part.locks.into(),
    );
    figure(
        true,
        "protocol_operations_total",
        "Requests answered; of SMB those of smbd to its mount.",
        |part| part.traffic.operations.into(),
    );
    figure(
        true,
        "protocol_failures_total",
        "Requests answered with an error; a name that is not there is one.",
        |part| part.traffic.failed.into(),
    );
    figure(
        true,
        "protocol_received_bytes_total",
        "Bytes of requests.",
        |part| part.traffic.received_bytes.into(),
    );
    figure(true, "protocol_sent_bytes_total", "Bytes of replies.", |part| {
        part.traffic.sent_bytes.into()
    });
    figure(
        true,
        "protocol_seconds_total",
        "Time from request to answer, summed.",
        |part| Value::Measure(part.traffic.latency_sum_us as f64 / 1e6),
    );
}

/// SMB; its figures beside the first two, which alerts are on, only where it is configured.
fn smb(out: &mut Families, smb: Option<&SmbPart>) {
    out.gauge(
        "smb_down",
        "1 while SMB is configured and not served.",
        smb.is_some_and(|smb| !smb.is_serving()),
    );
    let domain = smb.and_then(|smb| smb.domain.as_ref());
    out.gauge(
        "smb_domain_down",
        "1 while a domain is configured and its users may not be able to log in over SMB.",
        domain.is_some_and(DomainPart::is_away),
    );
    let Some(smb) = smb else {
        return;
    };
    out.gauge("smb_serving", "1 while SMB is served.", smb.is_serving());
    out.gauge("smb_connections", "Connections of SMB clients.", smb.connections);
    out.counter(
        "smb_failures_total",
        "How often smbd ended by itself or was ended because it did not answer.",
        smb.failures,
    );
    let Some(domain) = domain else {
        return;
    };
    out.counter(
        "smb_domain_failures_total",
        "How often winbindd was ended because it did not answer.",
        domain.failures,
    );
    if let Some(offset_seconds) = domain.clock_offset_seconds {
        out.gauge(
            "smb_domain_clock_offset_seconds",
            "How far the clock of the domain's controller is before this machine's; Kerberos refuses 300 s.",
            Value::Measure(offset_seconds as f64),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_metrics::Metrics;

    fn exposed(part: Option<SmbPart>) -> String {
        let metrics = Metrics::new("firn", move |out| {
            let mut families = Families::default();
            smb(&mut families, part.as_ref());
            families.expose(out);
        });
        metrics.text()
    }

    fn told(domain: Option<DomainPart>) -> String {
        exposed(Some(SmbPart {
            state: "serving".into(),
            domain,
            ..SmbPart::default()
        }))
    }

    #[test]
    fn a_domain_that_is_away_is_a_figure_that_is_there_without_a_domain_too() {
        assert!(exposed(None).contains("smb_domain_down 0\n"));
        assert!(told(None).contains("smb_domain_down 0\n"));
        for (state, is_down) in [
            ("starting", 0),
            ("joined", 0),
            ("clock", 1),
            ("unreachable", 1),
            ("down", 1),
        ] {
            let figures = told(Some(DomainPart {
                state: state.into(),
                clock_offset_seconds: Some(-600),
                ..DomainPart::default()
            }));
            assert!(
                figures.contains(&format!("smb_domain_down {is_down}\n")),
                "{state}: {figures}"
            );
            assert!(
                figures.contains("smb_domain_clock_offset_seconds -600"),
                "{figures}"
            );
        }
    }
}
