//! Disks on machines of their tenants: who may attach one, the calls of a machine that has one, and the end of an attachment.
//!
//! ```text
//! person, API key ── token ──▶ ticket:  certificate of a key made on the machine, for one disk; a grant for a quarter of an hour
//! machine ── certificate ───▶ calls:   attach (with the grant), capabilities, rows, settings, detach          the cluster's table
//! person, API key ── token ──▶ detach:  asks the machine; by force raises the fence itself
//! ```
//!
//! The fence of an attachment, who has it and how it ended stand in the cluster's table and nowhere else: this service keeps no
//! second truth. The machine's name is of its key ([`KeyHash`]), and the record says which key the attachment was let in with; so a
//! capability, a detach or a change of settings is given to nobody who has lost the disk, and to no other machine of the same tenant.
//!
//! The grant is a capability with the right to attach and no other: nodes take it for nothing, and what nodes take is no grant.

use super::{DiskRecord, LimitsRecord, base64_field, edges};
use crate::{
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    types::{DetachDisk, Disk, DiskAttachment, DiskState, DiskTicket, TicketRequest},
};
use axum::http::{Method, StatusCode};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_blockd_placement::{
    DiskAnswer, DiskCall, DiskLook, DiskRecord as ClusterDisk, DiskRefusal, Placement, PlacementError,
};
use firn_blockd_protocol::{Fence, Replication, RowIndex};
use firn_identity::{
    Capability, CapabilityError, CapabilityVerifier, DiskId, HolderHash, KeyHash, PeerIdentity, PeerKind,
    Rights, TenantId, UnixTime, requested_key,
};

/// How long a grant holds: an attach that waits for nodes tries for two and a half minutes.
const GRANT_SECONDS: u64 = 15 * 60;
/// Settings are the largest that a call carries: 16 KiB, as JSON in JSON.
const CALL_BODY_BYTES: usize = 48 << 10;
const SETTINGS_BYTES_MAX: usize = 16 << 10;
const HOLDER_BYTES_MAX: usize = 256;

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/disks/{disk}/ticket",
            "giveDiskTicket",
            "Lets a machine attach a disk: gives its key a certificate for that disk",
            ticket,
        )
        .takes::<TicketRequest>()
        .gives::<DiskTicket>(StatusCode::CREATED),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/disks/{disk}/calls",
            "callDisk",
            "Attaches a disk and uses it: for the machine whose certificate is for this disk",
            call,
        )
        .takes::<DiskCall>()
        .up_to(CALL_BODY_BYTES)
        .gives::<DiskAnswer>(StatusCode::OK),
        Endpoint::new(
            Method::POST,
            "/v1/tenants/{tenant}/disks/{disk}/detach",
            "detachDisk",
            "Asks the machine that has a disk to give it back, or takes it away by force",
            detach,
        )
        .takes::<DetachDisk>()
        .gives::<Disk>(StatusCode::OK),
    ]
}

/// The table in which attachments are agreed on.
fn cluster(call: &Call) -> Result<&Placement, Problem> {
    call.app.placement().cluster().ok_or_else(|| {
        Problem::new(
            Code::WrongState,
            "this service runs without a fleet of nodes: there is nothing to attach",
        )
    })
}

/// What is wrong with the table, for whoever asked the service: never of another tenant.
pub(super) fn unanswered(error: PlacementError) -> Problem {
    match error {
        PlacementError::Unavailable(_) | PlacementError::Contention { .. } => Problem::new(
            Code::StorageUnavailable,
            "the nodes' table did not answer; the change may have happened: look, or try again",
        ),
        PlacementError::NoDisk(_) | PlacementError::Deleting(_) => Problem::not_found("the disk"),
        other => Problem::internal(other),
    }
}

/// A disk as it is shown: with the attachment that the cluster's table knows of.
pub(super) async fn shown(call: &Call, disk: Disk) -> Result<Disk, Problem> {
    let Some(cluster) = call.app.placement().cluster() else {
        return Ok(disk);
    };
    match cluster.disk(disk.id).await {
        Ok(record) => Ok(with_attachment(disk, &record)),
        // Not placed yet, or not any more.
        Err(PlacementError::NoDisk(_)) => Ok(disk),
        Err(error) => Err(unanswered(error)),
    }
}

fn with_attachment(disk: Disk, record: &ClusterDisk) -> Disk {
    Disk {
        fence: record.fence.into(),
        attached: record.attached.as_ref().map(|attach| DiskAttachment {
            holder: spoken(&attach.holder).to_owned(),
            since: UnixTime(u64::try_from(attach.since_unix_ms / 1000).unwrap_or(0)),
            asked_to_end: attach.asked_to_end,
        }),
        ..disk
    }
}

/// A holder without the mark by which an attach knows its own write.
fn spoken(holder: &str) -> &str {
    holder.split_once('#').map_or(holder, |(holder, _)| holder)
}

async fn usable(call: &Call, id: DiskId) -> Result<Disk, Problem> {
    let disk = call
        .store()?
        .require::<DiskRecord>(&DiskRecord::sort(id), id)
        .await?;
    require_usable(&disk.record.disk)?;
    Ok(disk.record.disk)
}

/// Refuses a disk that is not there yet, or not any more.
pub(super) fn require_usable(disk: &Disk) -> Result<(), Problem> {
    if matches!(disk.state, DiskState::Ready | DiskState::Growing) {
        return Ok(());
    }
    Err(Problem::new(
        Code::WrongState,
        format!("the disk is {:?}", disk.state),
    ))
}

/// Refuses to remove a disk that a machine has which this service let in; whoever else has it is its operator's matter.
pub(super) async fn require_detached(call: &Call, disk: DiskId) -> Result<(), Problem> {
    let Some(cluster) = call.app.placement().cluster() else {
        return Ok(());
    };
    let attached = match cluster.disk(disk).await {
        Ok(record) => record.attached,
        Err(PlacementError::NoDisk(_)) => None,
        Err(error) => return Err(unanswered(error)),
    };
    match attached.filter(|attached| attached.key.is_some()) {
        None => Ok(()),
        Some(attached) => Err(Problem::new(
            Code::WrongState,
            format!(
                "the disk is attached by {}; detach it first",
                spoken(&attached.holder)
            ),
        )),
    }
}

async fn ticket(call: Call) -> Result<Reply, Problem> {
    let body: TicketRequest = call.body()?;
    let id: DiskId = call.param("disk")?;
    let request = base64_field("certificate_request", &body.certificate_request, 1024)?;
    let key = requested_key(&request)
        .ok_or_else(|| Problem::field("certificate_request", "not a certificate request"))?;
    let disk = usable(&call, id).await?;
    cluster(&call)?;
    let tenant = call.context()?.tenant();
    let key = KeyHash::of(&key);
    let kind = PeerKind::Attachment {
        tenant,
        disk: id,
        key,
    };
    let certificate = edges::certificate(&call, &body.certificate_request, kind.clone())?;
    let now = call.app.now();
    let grant = Capability {
        tenant,
        disk: id,
        rights: Rights::ATTACH,
        fence: 0,
        not_before: now,
        expires: now.plus(GRANT_SECONDS),
        holder: Some(HolderHash::of(&PeerIdentity {
            trust_domain: call.app.trust_domain().to_owned(),
            kind,
        })),
    };
    let change = call
        .change("disk.ticket", id)?
        .detail(format!("to attach it with key {key}"));
    change.commit(call.app.env(), None).await?;
    let ticket = DiskTicket {
        disk: shown(&call, disk).await?,
        certificate,
        grant: STANDARD_NO_PAD.encode(call.app.capabilities().issue(&grant)),
        grant_expires: grant.expires,
    };
    Ok(Reply::json(StatusCode::CREATED, &ticket))
}

async fn detach(call: Call) -> Result<Reply, Problem> {
    let body: DetachDisk = call.body()?;
    let id: DiskId = call.param("disk")?;
    let disk = usable(&call, id).await?;
    let cluster = cluster(&call)?;
    let detail = if body.force {
        "by force"
    } else {
        "its machine is asked"
    };
    // First: that nobody knows who did it is worse than an entry of something that did not come through.
    let change = call.change("disk.detach", id)?.detail(detail);
    change.commit(call.app.env(), None).await?;
    let record = if body.force {
        cluster.end_attach(id).await
    } else {
        cluster.ask_to_detach(id).await
    };
    let record = record.map_err(unanswered)?;
    Ok(Reply::json(StatusCode::OK, &with_attachment(disk, &record)))
}

/// A machine, and the disk that its certificate is for.
struct Caller<'a> {
    call: &'a Call,
    peer: &'a PeerIdentity,
    tenant: TenantId,
    disk: DiskId,
    key: KeyHash,
}

impl<'a> Caller<'a> {
    fn of(call: &'a Call) -> Result<Self, Problem> {
        let refused = |why: &str| Problem::new(Code::CertificateRefused, why);
        let peer = call
            .peer
            .as_ref()
            .filter(|peer| peer.trust_domain == call.app.trust_domain())
            .ok_or_else(|| refused("this is for a machine with the certificate of a disk's ticket"))?;
        let PeerKind::Attachment { tenant, disk, key } = peer.kind else {
            return Err(refused("the certificate is not of a disk's ticket"));
        };
        let (of, named): (TenantId, DiskId) = (call.context()?.tenant(), call.param("disk")?);
        if (tenant, disk) != (of, named) {
            return Err(refused("the certificate is for another disk"));
        }
        Ok(Self {
            call,
            peer,
            tenant,
            disk,
            key,
        })
    }

    /// The disk's record, whoever has it.
    async fn record(&self, cluster: &Placement) -> Result<ClusterDisk, PlacementError> {
        let record = cluster.disk(self.disk).await?;
        if record.tenant == self.tenant {
            Ok(record)
        } else {
            Err(PlacementError::NoDisk(self.disk.to_string()))
        }
    }

    fn has(&self, record: &ClusterDisk) -> bool {
        let attached = record.attached.as_ref();
        attached.is_some_and(|attach| attach.key.as_deref() == Some(&*self.key.to_string()))
    }

    /// Refuses a machine that has not the disk, or not under this fence.
    async fn require_attached(&self, cluster: &Placement, fence: Option<u32>) -> Result<(), PlacementError> {
        let record = self.record(cluster).await?;
        if self.has(&record) && fence.is_none_or(|fence| fence == record.fence) {
            return Ok(());
        }
        Err(PlacementError::Fenced {
            current: record.fence(),
        })
    }

    /// Whether the hard cap of the tenant's budget is reached.
    async fn is_capped(&self) -> Result<bool, PlacementError> {
        let limits = async { LimitsRecord::load(&self.call.store()?).await };
        match limits.await {
            Ok(limits) => Ok(limits.record.capped),
            Err(problem) => Err(PlacementError::Unavailable(problem.detail)),
        }
    }

    /// Whether the service has let this machine in, and not too long ago.
    fn check_grant(&self, grant: &str) -> Result<(), CapabilityError> {
        let bytes = STANDARD_NO_PAD
            .decode(grant)
            .map_err(|_| CapabilityError::Malformed)?;
        let verifier = CapabilityVerifier::new([self.call.app.capabilities().public()]);
        let verified = verifier.verify(&bytes, self.call.app.now())?;
        if verified.capability().rights != Rights::ATTACH {
            return Err(CapabilityError::MissingRight);
        }
        verified.permit(self.tenant, self.disk, Rights::ATTACH, 0, self.peer)
    }

    /// A capability for the attachment of this fence, with how long it is good.
    fn capability(&self, fence: u32) -> DiskAnswer {
        let (now, seconds) = (self.call.app.now(), self.call.app.disk_capability_seconds());
        let capability = Capability {
            tenant: self.tenant,
            disk: self.disk,
            rights: Rights::READ.and(Rights::WRITE).and(Rights::ATTACH),
            fence: fence.into(),
            not_before: now,
            expires: now.plus(seconds),
            holder: Some(HolderHash::of(self.peer)),
        };
        DiskAnswer::Capability {
            capability: STANDARD_NO_PAD.encode(self.call.app.capabilities().issue(&capability)),
            seconds,
        }
    }

    async fn attach(
        &self,
        cluster: &Placement,
        grant: &str,
        holder: &str,
        force: bool,
    ) -> Result<DiskAnswer, PlacementError> {
        if let Err(error) = self.check_grant(grant) {
            let why =
                format!("this machine's ticket is not good to attach the disk: {error}; ask for a new one");
            return Ok(DiskAnswer::Refused(DiskRefusal::NotAdmitted { why }));
        }
        // Its own attach, whose answer was lost, stands in nobody's way.
        let force = force || self.has(&self.record(cluster).await?);
        let (key, capped) = (self.key.to_string(), self.is_capped().await?);
        let attached = cluster
            .attach_disk_as(self.disk, holder, Some(&key), force)
            .await?;
        Ok(DiskAnswer::Attached {
            record: attached.disk,
            clean: attached.clean,
            capped,
        })
    }

    async fn answer(&self, cluster: &Placement, asked: DiskCall) -> Result<DiskAnswer, PlacementError> {
        match asked {
            DiskCall::Record {} => {
                let (record, capped) = (self.record(cluster).await?, self.is_capped().await?);
                Ok(DiskAnswer::Record(DiskLook { record, capped }))
            }
            DiskCall::Attach { grant, holder, force } => self.attach(cluster, &grant, &holder, force).await,
            DiskCall::Capability { fence } => {
                self.require_attached(cluster, Some(fence)).await?;
                Ok(self.capability(fence))
            }
            DiskCall::Certificate { certificate_request } => {
                self.require_attached(cluster, None).await?;
                self.certificate(&certificate_request)
            }
            DiskCall::Settings { fence, settings } => {
                self.require_attached(cluster, Some(fence)).await?;
                let capped = self.is_capped().await?;
                let record = cluster
                    .change_settings(self.disk, Fence(fence), &settings)
                    .await?;
                Ok(DiskAnswer::Record(DiskLook { record, capped }))
            }
            DiskCall::Detach { fence, clean } => {
                let record = self.record(cluster).await?;
                // That it is given back already is what a repeated call finds.
                if record.attached.is_some() && !self.has(&record) {
                    return Err(PlacementError::Fenced {
                        current: record.fence(),
                    });
                }
                cluster.detach_disk(self.disk, Fence(fence), clean).await?;
                Ok(DiskAnswer::Done {})
            }
            DiskCall::Cluster {} => Ok(DiskAnswer::Cluster(cluster.cluster().await?)),
            DiskCall::Row { copies, index } => {
                let row = cluster.row(replication(copies)?, RowIndex(index)).await?;
                Ok(DiskAnswer::rows(&[row]))
            }
            DiskCall::Rows { copies, from } => {
                let rows = cluster.rows_from(replication(copies)?, RowIndex(from)).await?;
                Ok(DiskAnswer::rows(&rows))
            }
        }
    }

    fn certificate(&self, request: &str) -> Result<DiskAnswer, PlacementError> {
        let issued = edges::certificate(self.call, request, self.peer.kind.clone())
            .map_err(|problem| PlacementError::Refused(problem.detail))?;
        Ok(DiskAnswer::Certificate {
            certificate: issued.certificate,
            expires: issued.expires.0,
            renew_after: issued.renew_after.0,
        })
    }
}

fn replication(copies: u8) -> Result<Replication, PlacementError> {
    Replication::new(copies).ok_or(PlacementError::NotEnoughNodes {
        copies: copies.into(),
    })
}

/// Refuses a call that nobody may make, before anything is looked up.
fn check(asked: &DiskCall) -> Result<(), Problem> {
    match asked {
        DiskCall::Attach { holder, .. }
            if holder.is_empty()
                || holder.len() > HOLDER_BYTES_MAX
                || holder.chars().any(|one| one.is_control() || one == '#') =>
        {
            Err(Problem::field(
                "attach.holder",
                format!("1 to {HOLDER_BYTES_MAX} bytes, without control characters and #"),
            ))
        }
        DiskCall::Settings { settings, .. } if settings.len() > SETTINGS_BYTES_MAX => Err(Problem::field(
            "settings.settings",
            format!("more than {SETTINGS_BYTES_MAX} bytes"),
        )),
        DiskCall::Row { copies, .. } | DiskCall::Rows { copies, .. } if !(1..=3).contains(copies) => {
            Err(Problem::field("copies", "1 to 3"))
        }
        _ => Ok(()),
    }
}

async fn call(call: Call) -> Result<Reply, Problem> {
    let asked: DiskCall = call.body()?;
    let caller = Caller::of(&call)?;
    call.once(|| call.app.limiter().admit(call.app.env(), caller.tenant))?;
    check(&asked)?;
    let cluster = cluster(&call)?;
    let answer = match caller.answer(cluster, asked).await {
        Ok(answer) => answer,
        Err(PlacementError::Refused(why)) => return Err(Problem::new(Code::InvalidField, why)),
        Err(error) => match DiskRefusal::of(&error) {
            Some(DiskRefusal::Attached { holder }) => DiskAnswer::Refused(DiskRefusal::Attached {
                holder: spoken(&holder).to_owned(),
            }),
            Some(refusal) => DiskAnswer::Refused(refusal),
            None => return Err(unanswered(error)),
        },
    };
    Ok(Reply::json(StatusCode::OK, &answer))
}
