//! The bounds on NFS connections: what the configuration may say, and what the process needs for it.

use crate::config::{ExportSection, NfsSection};
use firn_nfs::rpc::ServerLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as one machine's descriptors allow under systemd, with room; a connection in use takes up to 80 KiB.
const CONNECTIONS_MAX: usize = 32_768;
/// Descriptors for everything else: files of journal and cache, requests to the store, metrics.
const OTHER_DESCRIPTORS: u64 = 512;

/// What is wrong with the settings, if anything.
pub fn check(nfs: &NfsSection, exports: &[ExportSection]) -> Result<(), String> {
    if !(1..=CONNECTIONS_MAX).contains(&nfs.connections) {
        return Err(format!(
            "nfs.connections must be between 1 and {CONNECTIONS_MAX}, not {}",
            nfs.connections
        ));
    }
    let of_client = |name: &str, connections: usize| {
        if (1..=nfs.connections).contains(&connections) {
            return Ok(());
        }
        Err(format!(
            "{name} must be between 1 and nfs.connections, which is {}; it is {connections}",
            nfs.connections
        ))
    };
    of_client("nfs.connections_per_client", nfs.connections_per_client)?;
    for export in exports {
        if let Some(connections) = export.connections_per_client {
            of_client(
                &format!("connections_per_client of the export {}", export.path),
                connections,
            )?;
        }
    }
    Ok(())
}

/// What the NFS server may use.
pub fn limits(nfs: &NfsSection) -> ServerLimits {
    ServerLimits {
        connections: nfs.connections,
        connections_per_client: nfs.connections_per_client,
        ..ServerLimits::default()
    }
}

/// Descriptors that an edge may need.
pub fn descriptors(connections: usize) -> u64 {
    connections as u64 + OTHER_DESCRIPTORS
}

/// Lets the process have as many descriptors as its hard limit gives, and warns if `connections` need more.
pub fn raise_descriptors(connections: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // What is refused leaves the limit as it was, which is looked at next.
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    let needed = descriptors(connections);
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "fewer file descriptors than nfs.connections may need; raise LimitNOFILE or lower nfs.connections"
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    /// What `firn-edge check-config` says of a file with these lines more.
    fn said(export: &str, nfs: &str) -> Result<Config, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("firn-edge.toml");
        let text = format!(
            "[volume]\nstore = \"file:///srv/store\"\ntable = \"redb:/srv/table\"\nstate_directory = \"/var/lib/firn\"\n\
             [[export]]\npath = \"/export\"\nclients = [\"*\"]\n{export}\n[nfs]\n{nfs}\n"
        );
        std::fs::write(&path, text).expect("written");
        Config::load(&path).map_err(|failure| failure.to_string())
    }

    #[test]
    fn connections_are_bounded_in_all_by_client_and_by_export() {
        assert!(said("", "connections = 4000\nconnections_per_client = 1000").is_ok());
        assert!(said("connections_per_client = 1024", "").is_ok());
        for (export, nfs, expected) in [
            ("", "connections = 0", "nfs.connections must be between 1"),
            ("", "connections = 1000000", "nfs.connections must be between 1"),
            ("", "connections_per_client = 0", "nfs.connections_per_client"),
            (
                "",
                "connections = 10",
                "between 1 and nfs.connections, which is 10",
            ),
            ("connections_per_client = 2000", "", "of the export /export"),
        ] {
            let error = said(export, nfs).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
