//! Names of items.

use crate::{Placement, PlacementError};
use firn_blockd_protocol::{DiskId, NodeId, Replication, TenantId};
use firn_table::ItemKey;

/// Checks a name that people give: it becomes a part of a key.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), PlacementError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > 64 || !name.bytes().all(allowed) {
        return Err(PlacementError::Name {
            what,
            name: name.chars().take(80).collect(),
        });
    }
    Ok(())
}

impl Placement {
    fn key(&self, partition: &str, sort: impl Into<String>) -> ItemKey {
        ItemKey::new(format!("{}/{partition}", self.prefix), sort)
    }

    pub(crate) fn partition(&self, partition: &str) -> String {
        format!("{}/{partition}", self.prefix)
    }

    pub(crate) fn cluster_key(&self) -> ItemKey {
        self.key("cluster", "cluster")
    }

    pub(crate) fn lease_key(&self) -> ItemKey {
        self.key("cluster", "coordinator")
    }

    pub(crate) fn capacity_key(&self) -> ItemKey {
        self.key("cluster", "capacity")
    }

    pub(crate) fn node_key(&self, node: NodeId) -> ItemKey {
        self.key("nodes", node.hex().to_string())
    }

    pub(crate) fn disk_key(&self, disk: DiskId) -> ItemKey {
        self.key("disks", disk.hex().to_string())
    }

    pub(crate) fn name_key(&self, tenant: TenantId, name: &str) -> ItemKey {
        self.key(&format!("names/{}", tenant.hex()), name)
    }

    pub(crate) fn page_key(&self, replication: Replication, page: u32) -> ItemKey {
        self.key(
            &format!("rows/{}", replication.copies()),
            format!("page-{page:06}"),
        )
    }
}
