//! Keys of edges, proved: by the join secret of an invitation that was made here, by what was noted when the edge was approved, or by a key ring
//! that this tenant signed. What the service shows is held against it.

use crate::{
    failure::{Exit, Failure},
    hexadecimal::unhex,
    rings,
    screen::field,
    session::Session,
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_identity::JoinSecret;
use firn_seal::RecipientPublic;
use serde_json::{Value, json};

/// What the edge joined with, proved by the secret that was made here.
pub(super) fn proved(session: &Session, edge: &Value) -> Result<RecipientPublic, Failure> {
    let id = field(edge, "id");
    let invitation = session.profile.invitations.get(&id).ok_or_else(|| {
        Failure::usage(format!("the join secret of {id} is not on this machine"))
            .next("approve it where it was invited, with the same profile; or remove it and invite it anew")
    })?;
    let secret = JoinSecret::parse(&invitation.secret).map_err(|error| Failure::usage(error.to_string()))?;
    if secret.lookup_id().edge_id().to_string() != id {
        return Err(Failure::untrusted(format!(
            "{id} is not the edge of its join secret"
        )));
    }
    let public: Option<[u8; 32]> = unhex(&field(edge, "recipient_key"));
    let binding: Option<[u8; 32]> = unhex(&field(edge, "binding"));
    let request = STANDARD_NO_PAD.decode(field(edge, "certificate_request")).ok();
    let (Some(public), Some(binding), Some(request)) = (public, binding, request) else {
        return Err(Failure::new(Exit::Conflict, format!("{id} did not join yet"))
            .next("run the join command on its machine first"));
    };
    if !secret.binds(&[public.as_slice(), &request].concat(), &binding) {
        return Err(Failure::untrusted(format!(
            "the key that the service shows for {id} is not the one that the edge made"
        )));
    }
    RecipientPublic::from_bytes(&public).map_err(|error| Failure::untrusted(error.to_string()))
}

/// The key of an edge that joined, as this machine knows it: proved when it was approved here, or to be proved by its join secret, or in a key
/// ring of this tenant. What the service shows must be the same.
pub(super) async fn known_key(session: &mut Session, edge: &Value) -> Result<RecipientPublic, Failure> {
    let id = field(edge, "id");
    if session.profile.invitations.contains_key(&id) {
        return proved(session, edge);
    }
    let mut known = session.profile.edges.get(&id).cloned();
    for volume in edge["volumes"].as_array().cloned().into_iter().flatten() {
        if known.is_some() {
            break;
        }
        let volume = session
            .with_id("volumes", &field(&json!({ "id": volume }), "id"))
            .await?;
        let ring = rings::fetch(session, &volume).await?;
        let recipients = ring.as_ref().map(|ring| ring.recipients()).unwrap_or_default();
        let of_it = recipients.iter().find(|recipient| recipient.name == id);
        known = of_it.map(|recipient| recipient.public.to_string());
    }
    let known = known.ok_or_else(|| {
        Failure::usage(format!(
            "the key of {id} was never proved here, and no key ring of yours has it"
        ))
        .next("do this where the edge was approved, with the same profile")
    })?;
    if known != field(edge, "recipient_key") {
        return Err(Failure::untrusted(format!(
            "the key that the service shows for {id} is not the one that was proved here"
        )));
    }
    let bytes: [u8; 32] =
        unhex(&known).ok_or_else(|| Failure::usage("the profile: an edge's key is none"))?;
    RecipientPublic::from_bytes(&bytes).map_err(|error| Failure::usage(format!("the profile: {error}")))
}
