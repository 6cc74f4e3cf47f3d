//! A disk's table as a tenant's machine reaches it: typed calls to the service, with the certificate of a ticket.
//!
//! | what comes back | error | may have happened? |
//! |---|---|---|
//! | no connection, no end in time, 5xx, 408, 429, a change meanwhile | [`PlacementError::Unavailable`] | yes |
//! | a refusal of the disk's ([`DiskAnswer::Refused`]) | the error that the table itself gives | no |
//! | any other refusal, or what is no answer | [`PlacementError::Refused`] | no |
//!
//! **While the service is away** the disk goes on: a capability is renewed when a twelfth of its life is over (ten minutes of two
//! hours), so eleven twelfths of it are left; rows are told by nodes as well; and a certificate is renewed when half of its week is
//! over. What is late is asked for again and again. When a capability has ended nodes refuse, writes wait, and nothing is lost.

use crate::{failure::Failure, https, ticket::Ticket};
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use bytes::Bytes;
use firn_blockd_client::{Access, CapabilitySource, NoCapability};
use firn_blockd_placement::{
    Attachment, Cluster, DiskAnswer, DiskCall, DiskLook, DiskRecord, DiskTable, PlacementError, ROWS_AT_ONCE,
};
use firn_blockd_protocol::{DiskId, Fence, Replication, Row, RowIndex, TenantId, Transport};
use firn_env::{Env, Monotonic};
use firn_identity::{
    CertificateDer, IssuedCertificate, PeerIdentity, SigningKey, TlsIdentity, UnixTime, certificate_request,
};
use serde::Deserialize;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Between two looks at the disk's record: how long a machine takes to learn that it is to give the disk back.
const LOOK: Duration = Duration::from_secs(15);
/// Of a capability's life, what is over when it is renewed: so that an outage finds most of it left.
const RENEWED_AT: u32 = 12;
/// Of a capability's life, what is between two looks at what is to be renewed: a minute of two hours.
const LOOKS: u32 = 120;
/// The least time between two such looks.
const LOOK_LEAST: Duration = Duration::from_secs(1);

/// See the module; cheap to clone.
#[derive(Clone)]
pub struct ServiceTable(Arc<Inner>);

struct Inner {
    env: Env,
    url: String,
    authority: Option<String>,
    disk: DiskId,
    grant: String,
    key: SigningKey,
    name: PeerIdentity,
    identity: TlsIdentity,
    authorities: Vec<CertificateDer<'static>>,
    /// With the newest certificate.
    client: Mutex<reqwest::Client>,
    capability: Mutex<Option<Held>>,
}

/// A capability at hand.
#[derive(Clone)]
struct Held {
    fence: Fence,
    bytes: Bytes,
    given: Monotonic,
    good_for: Duration,
}

impl Held {
    fn left(&self, now: Monotonic) -> Duration {
        self.good_for.saturating_sub(now.since(self.given))
    }
}

/// Why the service refuses, as RFC 9457 has it.
#[derive(Default, Deserialize)]
struct Refusal {
    #[serde(default)]
    code: String,
    #[serde(default)]
    detail: String,
}

fn understood(status: u16, text: &[u8]) -> Result<DiskAnswer, PlacementError> {
    if status == 200 {
        return serde_json::from_slice(text).map_err(|error| {
            PlacementError::Refused(format!("the service's answer cannot be read: {error}"))
        });
    }
    let Refusal { code, detail } = serde_json::from_slice(text).unwrap_or_default();
    let why = format!("the service says {status} {code}: {detail}");
    Err(match (status, &*code) {
        (408 | 429 | 500.., _) | (409, "changed_meanwhile") => PlacementError::Unavailable(why),
        _ => PlacementError::Refused(why),
    })
}

/// An answer of another kind than was asked for.
fn strange() -> PlacementError {
    PlacementError::Refused("the service answers something else than was asked".into())
}

impl ServiceTable {
    /// For the disk of a ticket. Makes no request.
    ///
    /// # Errors
    /// If the ticket holds something that is none.
    pub fn new(env: &Env, ticket: &Ticket) -> Result<Self, Failure> {
        let key = ticket.signing_key()?;
        let issued = ticket.certificate.issued()?;
        let name = PeerIdentity::of_certificate(&issued.certificate)
            .map_err(|error| Failure::usage(format!("the ticket's certificate: {error}")))?;
        let authority = ticket.certificate.authority()?;
        let client = https::client(
            ticket.server_authority.as_deref().map(str::as_bytes),
            Some((&key, &issued.certificate)),
        )?;
        let (server, tenant, disk) = (ticket.server.trim_end_matches('/'), ticket.tenant, ticket.disk);
        Ok(Self(Arc::new(Inner {
            env: env.clone(),
            url: format!("{server}/v1/tenants/{tenant}/disks/{disk}/calls"),
            authority: ticket.server_authority.clone(),
            disk,
            grant: ticket.grant.clone(),
            identity: TlsIdentity::new(&key, &issued).map_err(Failure::usage)?,
            key,
            name,
            authorities: vec![authority],
            client: Mutex::new(client),
            capability: Mutex::new(None),
        })))
    }

    /// The way to the nodes, under the ticket's certificate.
    ///
    /// # Errors
    /// If the nodes' authority is none.
    pub fn access(&self) -> Result<Access, Failure> {
        let inner = &self.0;
        let transport = Transport::mutual(
            &inner.env,
            inner.identity.clone(),
            inner.authorities.clone(),
            &inner.name.trust_domain,
        )
        .map_err(Failure::usage)?;
        Ok(Access {
            transport,
            capabilities: Arc::new(self.clone()),
        })
    }

    async fn ask(&self, call: &DiskCall) -> Result<DiskAnswer, PlacementError> {
        let body = serde_json::to_vec(call).map_err(|error| PlacementError::Refused(error.to_string()))?;
        let client = self.0.client.lock().expect("no panic under this lock").clone();
        let request = client
            .post(&self.0.url)
            .header("content-type", "application/json")
            .body(body);
        let (status, text) = https::exchange(request)
            .await
            .map_err(|why| PlacementError::Unavailable(format!("the service did not answer: {why}")))?;
        match understood(status.as_u16(), &text)? {
            DiskAnswer::Refused(refusal) => Err(refusal.into_error(self.0.disk)),
            answer => Ok(answer),
        }
    }

    async fn ask_look(&self, call: DiskCall) -> Result<DiskLook, PlacementError> {
        match self.ask(&call).await? {
            DiskAnswer::Record(look) if look.record.disk == self.0.disk => Ok(look),
            _ => Err(strange()),
        }
    }

    async fn ask_rows(&self, call: DiskCall) -> Result<Vec<Row>, PlacementError> {
        let DiskAnswer::Rows { rows } = self.ask(&call).await? else {
            return Err(strange());
        };
        let rows: Result<Vec<Row>, _> = rows.iter().map(|row| DiskAnswer::read_row(row)).collect();
        rows.map_err(|error| PlacementError::Refused(error.to_string()))
    }

    fn held(&self, fence: Fence) -> Option<Held> {
        let held = self
            .0
            .capability
            .lock()
            .expect("no panic under this lock")
            .clone();
        held.filter(|held| held.fence == fence)
    }

    async fn renew_capability(&self, fence: Fence) -> Result<Held, PlacementError> {
        let asked = self.0.env.now();
        let DiskAnswer::Capability { capability, seconds } =
            self.ask(&DiskCall::Capability { fence: fence.0 }).await?
        else {
            return Err(strange());
        };
        let held = Held {
            fence,
            bytes: STANDARD_NO_PAD.decode(capability).map_err(|_| strange())?.into(),
            given: asked,
            good_for: Duration::from_secs(seconds),
        };
        *self.0.capability.lock().expect("no panic under this lock") = Some(held.clone());
        Ok(held)
    }

    async fn renew_certificate(&self) -> Result<(), Failure> {
        let inner = &self.0;
        let request = certificate_request(&inner.key, &inner.name);
        let call = DiskCall::Certificate {
            certificate_request: STANDARD_NO_PAD.encode(request),
        };
        let DiskAnswer::Certificate {
            certificate,
            expires,
            renew_after,
        } = self.ask(&call).await?
        else {
            return Err(strange().into());
        };
        let certificate = STANDARD_NO_PAD
            .decode(certificate)
            .map_err(|_| Failure::new("the service's certificate is not base64"))?;
        let issued = IssuedCertificate {
            certificate: CertificateDer::from(certificate),
            expires: UnixTime(expires),
            renew_after: UnixTime(renew_after),
        };
        let client = https::client(
            inner.authority.as_deref().map(str::as_bytes),
            Some((&inner.key, &issued.certificate)),
        )?;
        inner.identity.renew(&inner.key, &issued).map_err(Failure::new)?;
        *inner.client.lock().expect("no panic under this lock") = client;
        Ok(())
    }

    /// Renews the attach's capability and the certificate before they end, until the surrounding task does.
    pub async fn keep_renewing(self, fence: Fence) {
        let env = self.0.env.clone();
        let mut is_away = false;
        loop {
            let held = self.held(fence);
            let pause = held.map_or(LOOK_LEAST, |held| held.good_for / LOOKS);
            env.sleep(pause.max(LOOK_LEAST)).await;
            let fresh = self
                .held(fence)
                .is_some_and(|held| env.now().since(held.given) < held.good_for / RENEWED_AT);
            let mut renewed = Ok(());
            if !fresh {
                renewed = self
                    .renew_capability(fence)
                    .await
                    .map(drop)
                    .map_err(Failure::from);
            }
            if renewed.is_ok() && UnixTime::from_wall(env.wall()) >= self.0.identity.renew_after() {
                renewed = self.renew_certificate().await;
            }
            match renewed {
                Ok(()) if is_away => {
                    is_away = false;
                    tracing::info!("the service answers again; what nodes ask for is renewed");
                }
                Ok(()) => {}
                // It was said, and is tried again.
                Err(_) if is_away => {}
                Err(error) => {
                    is_away = true;
                    let left = self
                        .held(fence)
                        .map_or(Duration::ZERO, |held| held.left(env.now()));
                    tracing::warn!(
                        %error,
                        minutes_left = left.as_secs() / 60,
                        "what nodes ask for is not renewed; the disk goes on until it ends"
                    );
                }
            }
        }
    }
}

#[async_trait]
impl CapabilitySource for ServiceTable {
    async fn capability(
        &self,
        _tenant: TenantId,
        _disk: DiskId,
        fence: Fence,
    ) -> Result<Bytes, NoCapability> {
        // Whoever reads or writes does not wait for the service while there is one that nodes take.
        let now = self.0.env.now();
        if let Some(held) = self.held(fence)
            && held.left(now) > held.good_for / LOOKS
        {
            return Ok(held.bytes);
        }
        let renewed = self.renew_capability(fence).await;
        renewed
            .map(|held| held.bytes)
            .map_err(|error| NoCapability(error.to_string()))
    }
}

#[async_trait]
impl DiskTable for ServiceTable {
    fn looks_every(&self) -> Duration {
        LOOK
    }

    async fn disk(&self, disk: DiskId) -> Result<DiskRecord, PlacementError> {
        Ok(self.look(disk).await?.record)
    }

    async fn look(&self, _disk: DiskId) -> Result<DiskLook, PlacementError> {
        self.ask_look(DiskCall::Record {}).await
    }

    async fn attach_disk(
        &self,
        _disk: DiskId,
        holder: &str,
        force: bool,
    ) -> Result<Attachment, PlacementError> {
        let call = DiskCall::Attach {
            grant: self.0.grant.clone(),
            holder: holder.to_owned(),
            force,
        };
        match self.ask(&call).await? {
            DiskAnswer::Attached {
                record,
                clean,
                capped,
            } if record.disk == self.0.disk => Ok(Attachment {
                fence: record.fence(),
                clean,
                disk: record,
                capped,
            }),
            _ => Err(strange()),
        }
    }

    async fn change_settings(
        &self,
        _disk: DiskId,
        fence: Fence,
        settings: &str,
    ) -> Result<DiskRecord, PlacementError> {
        let settings = settings.to_owned();
        let look = self.ask_look(DiskCall::Settings {
            fence: fence.0,
            settings,
        });
        Ok(look.await?.record)
    }

    async fn detach_disk(&self, _disk: DiskId, fence: Fence, clean: bool) -> Result<(), PlacementError> {
        match self
            .ask(&DiskCall::Detach {
                fence: fence.0,
                clean,
            })
            .await?
        {
            DiskAnswer::Done {} => Ok(()),
            _ => Err(strange()),
        }
    }

    /// What the service made larger is taken up; larger it is made by the service only, which knows the tenant's quota.
    async fn grow_disk(
        &self,
        disk: DiskId,
        size_bytes: u64,
        _tracts: Option<u32>,
    ) -> Result<DiskRecord, PlacementError> {
        let record = self.disk(disk).await?;
        if record.size_bytes == size_bytes {
            return Ok(record);
        }
        Err(PlacementError::Refused(format!(
            "the disk has {} bytes; it is made larger by: firn disk grow",
            record.size_bytes
        )))
    }

    async fn cluster(&self) -> Result<Cluster, PlacementError> {
        match self.ask(&DiskCall::Cluster {}).await? {
            DiskAnswer::Cluster(cluster) => Ok(cluster),
            _ => Err(strange()),
        }
    }

    async fn row(&self, replication: Replication, index: RowIndex) -> Result<Row, PlacementError> {
        let call = DiskCall::Row {
            copies: copies(replication),
            index: index.0,
        };
        let row = self.ask_rows(call).await?.pop();
        row.filter(|row| row.replication == replication && row.index == index)
            .ok_or_else(strange)
    }

    async fn rows(&self, replication: Replication) -> Result<Vec<Row>, PlacementError> {
        let length = self.cluster().await?.rows(replication);
        let mut rows = Vec::new();
        let mut from = 0;
        while from < length {
            let call = DiskCall::Rows {
                copies: copies(replication),
                from,
            };
            rows.extend(self.ask_rows(call).await?);
            from = from.saturating_add(ROWS_AT_ONCE);
        }
        Ok(rows)
    }
}

fn copies(replication: Replication) -> u8 {
    u8::try_from(replication.copies()).expect("at most three")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clear_no_is_taken_for_one_and_the_rest_for_away() {
        let answer = understood(200, br#"{"refused":{"fenced":{"current":4}}}"#).expect("an answer");
        let DiskAnswer::Refused(refusal) = answer else {
            panic!("{answer:?}")
        };
        assert!(matches!(
            refusal.into_error(DiskId([1; 16])),
            PlacementError::Fenced { current: Fence(4) }
        ));
        for (status, text) in [
            (408, ""),
            (429, ""),
            (503, "<html>a gateway's page</html>"),
            (409, r#"{"code":"changed_meanwhile"}"#),
        ] {
            let answer = understood(status, text.as_bytes());
            assert!(
                matches!(answer, Err(PlacementError::Unavailable(_))),
                "{answer:?}"
            );
        }
        for (status, text) in [
            (200, "<html>a gateway's page</html>"),
            (
                401,
                r#"{"code":"certificate_refused","detail":"for another disk"}"#,
            ),
            (404, ""),
            (409, r#"{"code":"wrong_state"}"#),
        ] {
            let answer = understood(status, text.as_bytes());
            assert!(matches!(answer, Err(PlacementError::Refused(_))), "{answer:?}");
        }
    }
}
