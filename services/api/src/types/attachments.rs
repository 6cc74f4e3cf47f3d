//! Disks on the machines that attach them.

use super::{CertificateIssued, Disk};
use firn_identity::UnixTime;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who has a disk attached.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskAttachment {
    /// Which machine and process, as it says itself.
    pub holder: String,
    /// Since when.
    #[schema(value_type = u64)]
    pub since: UnixTime,
    /// Somebody wants it to end; its machine does so within a minute, once everything is durable.
    pub asked_to_end: bool,
}

/// Asks for a ticket.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TicketRequest {
    /// The certificate request of a key made for this attachment, for the name
    /// `tenant/<tenant>/disk/<disk>/attachment/<key>`, base64 without padding.
    #[schema(min_length = 1, max_length = 1024)]
    pub certificate_request: String,
}

/// What lets a machine attach one disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskTicket {
    /// The disk.
    pub disk: Disk,
    /// The machine's certificate: by it the service and the nodes know it. Its authority is the nodes' as well.
    pub certificate: CertificateIssued,
    /// To be shown when it attaches the disk, base64 without padding; good for the certificate's key only.
    pub grant: String,
    /// When the grant expires. What is attached by then stays attached.
    #[schema(value_type = u64)]
    pub grant_expires: UnixTime,
}

/// Ends an attachment.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DetachDisk {
    /// At once, without asking the machine that has it: what it did not make durable may be lost.
    #[serde(default)]
    pub force: bool,
}
