//! `firn disk attach` and `firn disk detach`: a disk on this machine, and back.
//!
//! ```text
//! key made here ─▶ service: ticket (certificate of that key for this disk, grant) ─▶ standard input of firn-blockd, which this
//!                                                                                     program becomes: it links no disk engine
//! ```

use super::{Context, beside};
use crate::{
    arguments::{AttachDisk, DetachDisk},
    failure::{Exit, Failure},
    random::entropy,
    screen::{field, note},
    session::Session,
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_identity::{DiskId, KeyHash, PeerIdentity, PeerKind, SigningKey, TenantId, certificate_request};
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    io::Write as _,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

const PROGRAM: &str = "firn-blockd";
/// Between two looks at whether a machine has given its disk back; it looks itself four times a minute.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// `firn-blockd`, which attaches disks.
pub(super) fn program() -> Result<PathBuf, Failure> {
    beside::program(PROGRAM, "it attaches disks")
}

fn parsed<T: std::str::FromStr>(what: &str, text: &str) -> Result<T, Failure> {
    text.parse()
        .map_err(|_| Failure::failed(format!("the service's {what} is none: {text:?}")))
}

/// Gets a ticket for a disk, under a key that nobody else has.
pub(super) async fn ticket(
    session: &Session,
    disk: &Value,
    service: Option<&str>,
) -> Result<Zeroizing<String>, Failure> {
    let id = field(disk, "id");
    let mut seed = Zeroizing::new([0; 32]);
    entropy(&mut *seed)?;
    let key = SigningKey::from_seed(*seed);
    let name = PeerIdentity {
        trust_domain: session.trust_domain().await?,
        kind: PeerKind::Attachment {
            tenant: parsed::<TenantId>("tenant", &session.profile.tenant)?,
            disk: parsed::<DiskId>("disk", &id)?,
            key: KeyHash::of(&key.public()),
        },
    };
    let request = STANDARD_NO_PAD.encode(certificate_request(&key, &name));
    let given = session
        .post(
            &format!("disks/{id}/ticket"),
            &json!({ "certificate_request": request }),
        )
        .await?;
    let server = match service {
        Some(service) => service.to_owned(),
        None => session.machine_server().await?,
    };
    let ticket = json!({
        "server": server,
        "server_authority": session.profile.authority,
        "tenant": session.profile.tenant,
        "disk": id,
        "name": field(disk, "name"),
        "key": STANDARD_NO_PAD.encode(seed.as_slice()),
        "certificate": given["certificate"],
        "grant": given["grant"],
    });
    Ok(Zeroizing::new(ticket.to_string()))
}

pub async fn attach(context: &Context, wanted: AttachDisk) -> Result<(), Failure> {
    let program = program()?;
    let session = context.session().await?;
    let disk = session.find("disks", &wanted.disk).await?;
    let state = session.directory().join("disks");
    let mut command = Command::new(&program);
    command.arg("attach-by-ticket").arg("--state").arg(&state);
    let mut give = |name: &str, value: Option<OsString>| {
        if let Some(value) = value {
            command.arg(name).arg(value);
        }
    };
    give("--nbd", wanted.nbd.map(Into::into));
    give("--device", wanted.device.map(Into::into));
    give("--key", wanted.key.map(Into::into));
    give("--mode", wanted.mode.map(Into::into));
    give("--journal", wanted.journal.map(Into::into));
    give(
        "--journal-size",
        wanted.journal_size.map(|size| format!("{}B", size.0).into()),
    );
    if wanted.force {
        command.arg("--force");
    }
    let ticket = ticket(&session, &disk, wanted.service.as_deref()).await?;
    become_with(command, Some(&ticket))
}

pub(super) fn failed(error: std::io::Error) -> Failure {
    Failure::failed(format!("{PROGRAM}: {error}"))
}

/// Ends as that program, which has the ticket on its standard input.
pub(super) fn become_with(mut command: Command, ticket: Option<&str>) -> Result<(), Failure> {
    if let Some(ticket) = ticket {
        // A pipe holds 64 KiB, a ticket has some three: it is written before anybody reads.
        let (reader, mut writer) = std::io::pipe().map_err(failed)?;
        writer.write_all(ticket.as_bytes()).map_err(failed)?;
        drop(writer);
        command.stdin(reader);
    }
    Err(failed(beside::become_it(command)))
}

pub async fn detach(context: &Context, wanted: DetachDisk) -> Result<(), Failure> {
    let session = context.session().await?;
    let found = session.find("disks", &wanted.disk).await?;
    let (id, name) = (field(&found, "id"), field(&found, "name"));
    let holder = field(&found, "attached.holder");
    let path = format!("disks/{id}/detach");
    let mut disk = session.post(&path, &json!({ "force": wanted.force })).await?;
    let began = Instant::now();
    if !disk["attached"].is_null() {
        note(&format!(
            "disk {name} is attached by {}: that machine was asked to give it back, and looks four times a minute",
            field(&disk, "attached.holder")
        ));
    }
    while !disk["attached"].is_null() && disk["fence"] == found["fence"] {
        if began.elapsed() > Duration::from_secs(wanted.timeout) {
            return Err(Failure::new(
                Exit::Unavailable,
                format!(
                    "disk {name} is still attached by {} after {} s; it stays asked to give the disk back",
                    field(&disk, "attached.holder"),
                    wanted.timeout
                ),
            )
            .next("wait longer with --timeout; or take it away with --force: what was not made durable there is lost"));
        }
        tokio::time::sleep(LOOK_PERIOD).await;
        disk = session.get(&format!("disks/{id}")).await?.body;
    }
    context.screen.show(&disk, |disk| match (&*holder, &disk["attached"]) {
        ("", Value::Null) => format!("disk {name} is attached nowhere\n"),
        (holder, Value::Null) if wanted.force => {
            format!("disk {name} was taken from {holder}; it learns so within a minute, or when the disk is attached elsewhere\n")
        }
        (holder, Value::Null) => format!("disk {name} is detached from {holder}; everything is durable\n"),
        (_, _) => format!(
            "disk {name} was attached anew meanwhile, by {}\n",
            field(disk, "attached.holder")
        ),
    })
}
