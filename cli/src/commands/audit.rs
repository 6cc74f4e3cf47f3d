//! The audit log: listed, and verified against what was signed and what was seen before.

use super::{Context, audit_reports};
use crate::{arguments::Audit, chain, failure::Failure, hexadecimal::unhex, screen::field, session::Session};
use firn_identity::VerifyingKey;
use serde_json::{Value, json};

pub async fn run(context: &Context, command: Audit) -> Result<(), Failure> {
    let mut session = context.session().await?;
    match command {
        Audit::List { volume: Some(volume) } => audit_reports::list(context, &session, &volume).await,
        Audit::List { volume: None } => {
            let entries = session.list("audit").await?;
            context.show_list(
                entries,
                &[
                    ("number", "sequence"),
                    ("at", "at"),
                    ("who", "principal"),
                    ("what", "action"),
                    ("to what", "target"),
                    ("detail", "detail"),
                ],
            )
        }
        Audit::Verify => {
            let (sequence, hash) = verify(&mut session).await?;
            let shown = json!({ "entries": sequence, "hash": hash });
            context.screen.show(&shown, |shown| {
                format!(
                    "{} entries, unbroken, signed, and with all that was seen before\n{}\n",
                    field(shown, "entries"),
                    field(shown, "hash")
                )
            })
        }
    }
}

/// Checks the whole log; remembers its end.
pub(super) async fn verify(session: &mut Session) -> Result<(u64, String), Failure> {
    // The head first: entries written meanwhile come after it.
    let head = session.get("audit/head").await?.body;
    check_head(session, &head)?;
    let entries = session.list("audit").await?;
    let (last, hash) =
        chain::verify(&entries).map_err(|why| Failure::untrusted(format!("the audit log: {why}")))?;
    let hash_of = |sequence: u64| {
        let index = usize::try_from(sequence.checked_sub(1)?).ok()?;
        entries.get(index).map(|entry| field(entry, "hash"))
    };
    let signed = head["sequence"].as_u64().unwrap_or(0);
    if hash_of(signed) != Some(field(&head, "hash")) {
        return Err(Failure::untrusted(
            "the audit log does not hold the entry that its signed head names",
        ));
    }
    if let Some((seen, hash)) = &session.profile.audit_head
        && hash_of(*seen).as_ref() != Some(hash)
    {
        return Err(Failure::untrusted(format!(
            "entry {seen} of the audit log is not the one that was seen before: it was rewritten or cut"
        )));
    }
    session.profile.audit_head = Some((last, hash.clone()));
    session.save()?;
    Ok((last, hash))
}

/// The head is signed by the key that was pinned when the first one was seen.
fn check_head(session: &mut Session, head: &Value) -> Result<(), Failure> {
    let public = field(head, "public_key");
    let message = format!(
        "firn 1 audit head\n{}\n{}\n{}\n{}",
        field(head, "tenant"),
        field(head, "sequence"),
        field(head, "hash"),
        field(head, "at")
    );
    let key = unhex::<65>(&public).and_then(|point| VerifyingKey::from_bytes(&point));
    let good = match (key, unhex::<64>(&field(head, "signature"))) {
        (Some(key), Some(signature)) => key.verifies(message.as_bytes(), &signature),
        (None, _) | (_, None) => false,
    };
    if !good || field(head, "tenant") != session.profile.tenant {
        return Err(Failure::untrusted("the audit log's head is not signed"));
    }
    match &session.profile.audit_key {
        Some(pinned) if *pinned != public => Err(Failure::untrusted(
            "the audit log's head is signed by another key than before",
        )),
        Some(_) => Ok(()),
        None => {
            session.profile.audit_key = Some(public);
            session.save()
        }
    }
}
