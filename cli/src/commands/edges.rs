//! Edges: invited with a secret made here, joined on their machine, approved by wrapping keys to what the secret proves.
//!
//! ```text
//! create    here     secret ─► look-up id, authenticator hash, sealed invitation ─► API       secret ─► the edge, by hand
//! join      there    secret ─► authenticator, opens the invitation (server, tenant key); keys made there, bound to the secret
//! approve   here     binding checked with the secret, volumes' keys wrapped, ring signed with the recovery phrase
//! ```
//!
//! The service sees neither the secret nor what it seals, so it can put no key of its own in the place of the edge's.

use super::{
    Context,
    account::{connect, der_of_pem},
    ask,
    edge_keys::proved,
    edge_state, wait_for,
};
use crate::{
    arguments::{Edge, Server, Wait},
    failure::{Exit, Failure, of_file},
    hexadecimal::hex,
    http::Http,
    names::Names,
    phrase,
    pins::PinnedInvitation,
    profile::{give_secret, private_file, read_secret},
    random::filled,
    rings,
    screen::{field, note, told},
    session::Session,
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_identity::{JoinSecret, PeerIdentity, SigningKey, certificate_request};
use firn_seal::RecipientSecret;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{ErrorKind, Write as _},
    path::Path,
};
use zeroize::Zeroizing;

/// What an edge must know, sealed under the join secret.
#[derive(Serialize, Deserialize)]
struct Invitation {
    version: u16,
    server: String,
    tenant: String,
    tenant_key: String,
    edge: String,
    name: String,
    volumes: Vec<String>,
    /// By volume: what the edge must find.
    #[serde(default)]
    pinned: BTreeMap<String, Pinned>,
}

/// What is known here of a volume's keys when an edge is invited to it.
#[derive(Serialize, Deserialize)]
struct Pinned {
    family: String,
    generation: u64,
}

pub async fn run(context: &Context, command: Edge) -> Result<(), Failure> {
    match command {
        Edge::List => {
            let session = context.session().await?;
            let edges = session.list("edges").await?;
            let names = Names::of(&session, context.screen, &["volumes"]).await?;
            context.screen.show(&Value::Array(edges), |edges| {
                let row = |edge: &Value| {
                    vec![
                        field(edge, "name"),
                        field(edge, "state"),
                        names.all(&edge["volumes"]),
                        told(edge, "last_seen"),
                        edge_state::waiting(edge),
                        field(edge, "observed.version"),
                        field(edge, "id"),
                    ]
                };
                let rows: Vec<_> = edges.as_array().into_iter().flatten().map(row).collect();
                let heads = [
                    "name",
                    "state",
                    "volumes",
                    "last seen",
                    "waiting",
                    "version",
                    "id",
                ];
                context.screen.table(&heads, &[], &rows)
            })
        }
        Edge::Create {
            name,
            volumes,
            secret_file,
        } => create(context, &name, &volumes, secret_file.as_deref()).await,
        Edge::Install(install) => super::install::run(context, &install).await,
        Edge::Join {
            server,
            tenant,
            state,
            secret_file,
        } => join(context, &server, &tenant, &state, secret_file.as_deref()).await,
        Edge::Approve { edge, phrase } => approve(context, &edge, phrase.phrase_file.as_deref()).await,
        Edge::Show { edge } => {
            let session = context.session().await?;
            let edge = session.find("edges", &edge).await?;
            if context.screen.is_json() {
                return context.show_one(&edge);
            }
            let names = Names::of(&session, context.screen, &["volumes"]).await?;
            context.show_one(&edge_state::shown(&edge, &names))
        }
        Edge::Remove {
            edge,
            phrase,
            sure,
            wait,
        } => {
            let mut session = context.session().await?;
            let edge = session.find("edges", &edge).await?;
            ask(
                &sure,
                &format!("Edge {} will be refused from now on", field(&edge, "name")),
            )?;
            let phrase = phrase::read(phrase.phrase_file.as_deref(), &session.profile.tenant_key)?;
            remove(context, &mut session, &edge, &phrase, &wait).await
        }
    }
}

/// An edge that was invited here and has not joined yet.
pub(super) struct Invited {
    /// As the service tells it.
    pub edge: Value,
    /// What it joins with.
    pub secret: Zeroizing<String>,
}

/// Invites an edge to these volumes, by name or id.
pub(super) async fn invite(
    session: &mut Session,
    name: &str,
    volumes: &[String],
) -> Result<Invited, Failure> {
    session.tenant().await?;
    let (mut ids, mut pinned) = (Vec::new(), BTreeMap::new());
    for volume in volumes {
        let volume = session.find("volumes", volume).await?;
        let id = field(&volume, "id");
        same_name_as_before(session, &volume)?;
        if let Some(ring) = rings::fetch(session, &volume).await? {
            let known = Pinned {
                family: ring.family().to_string(),
                generation: ring.generation(),
            };
            pinned.insert(id.clone(), known);
        }
        ids.push(id);
    }
    let secret = JoinSecret::generate(&mut filled);
    let edge = secret.lookup_id().edge_id().to_string();
    let invitation = Invitation {
        version: 2,
        server: session.machine_server().await?,
        tenant: session.profile.tenant.clone(),
        tenant_key: session.profile.tenant_key.clone(),
        edge: edge.clone(),
        name: name.to_owned(),
        volumes: ids.clone(),
        pinned,
    };
    let content = serde_json::to_vec(&invitation).map_err(|error| Failure::failed(error.to_string()))?;
    let sealed = secret
        .seal(&content, &mut filled)
        .map_err(|error| Failure::failed(error.to_string()))?;
    let text = secret.expose();
    // Kept before the service hears of it: without the secret the edge could join and never be approved.
    let kept = PinnedInvitation {
        secret: text.to_string(),
        volumes: Some(ids.clone()),
    };
    session.profile.invitations.insert(edge.clone(), kept);
    session.save()?;
    let body = json!({
        "name": name,
        "volumes": ids,
        "lookup": secret.lookup_id().to_text(),
        "authenticator_hash": hex(&secret.authenticator().hash().0),
        "sealed": STANDARD_NO_PAD.encode(sealed),
    });
    match session.post("edges", &body).await {
        Ok(edge) => Ok(Invited { edge, secret: text }),
        Err(failure) => {
            if failure.exit != Exit::Unavailable {
                session.profile.invitations.remove(&edge);
                session.save()?;
            }
            Err(failure)
        }
    }
}

/// The words of `firn edge join` with this service, for the state directory; it holds no secret.
pub(super) async fn join_command(session: &Session, state: &str) -> Result<Vec<String>, Failure> {
    let (profile, server) = (&session.profile, session.machine_server().await?);
    let mut words = vec!["edge", "join", "--server", &server, "--tenant", &profile.tenant];
    words.extend(["--state", state]);
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    if let Some(pem) = &profile.authority {
        // As part of the command: a file would have to be carried there first.
        words.extend(["--authority-der".to_owned(), der_of_pem(pem)]);
    }
    Ok(words)
}

async fn create(
    context: &Context,
    name: &str,
    volumes: &[String],
    secret_file: Option<&Path>,
) -> Result<(), Failure> {
    let mut session = context.session().await?;
    let Invited { edge, secret } = invite(&mut session, name, volumes).await?;
    let file = give_secret(secret_file, &secret)?;
    let words = join_command(&session, "/var/lib/firn/edge").await?;
    let command = format!("firn {}", words.join(" "));
    let shown = json!({
        "edge": edge,
        "command": command,
        "secret": if file.is_some() { Value::Null } else { secret.to_string().into() },
        "secret_file": file.map(|path| path.display().to_string()),
    });
    context.screen.show(&shown, |shown| {
        let how = match (field(shown, "secret"), field(shown, "secret_file")) {
            (secret, file) if secret.is_empty() => format!("and give it the secret in {file}"),
            (secret, _) => format!("and give it, when asked, this secret (one use, one hour):\n\n  {secret}"),
        };
        format!(
            "edge  {}\n\nOn the machine that becomes the edge run\n\n  {command}\n\n{how}\n\nThen, here: firn edge approve {}\n",
            field(shown, "edge.id"),
            field(shown, "edge.name"),
        )
    })
}

/// Makes the edge's keys on its own machine and joins with them.
async fn join(
    context: &Context,
    server: &Server,
    tenant: &str,
    state: &Path,
    secret_file: Option<&Path>,
) -> Result<(), Failure> {
    let (http, authority) = connect(server)?;
    let secret = read_secret(secret_file, "Join secret")?;
    let invitation = join_by(&http, authority.as_deref(), tenant, state, &secret).await?;
    let shown = json!({ "edge": invitation.edge, "name": invitation.name, "volumes": invitation.volumes,
                        "tenant_key": invitation.tenant_key, "state": state.display().to_string() });
    note("Joined. Next, where the edge was invited: firn edge approve");
    if invitation.volumes.len() > 1 {
        note(&format!(
            "It is invited to several volumes: its configuration has {} as [edge] state_directory, and a [[volume]] for each, named {}",
            state.display(),
            invitation.volumes.join(" and ")
        ));
    }
    context.show_one(&shown)
}

/// Joins by the secret of an invitation; the last of what it writes is the invitation.
async fn join_by(
    http: &Http,
    authority: Option<&str>,
    tenant: &str,
    state: &Path,
    secret: &str,
) -> Result<Invitation, Failure> {
    let secret = JoinSecret::parse(secret).map_err(|error| Failure::usage(error.to_string()))?;
    // Before the secret is used up, what will be needed is there.
    prepare(state)?;
    let service = http.send(Method::GET, "/healthz", None, None, None).await?.body;
    let name = PeerIdentity::parse(&format!(
        "spiffe://{}/tenant/{tenant}/edge/{}",
        field(&service, "trust_domain"),
        secret.lookup_id().edge_id()
    ))
    .map_err(|_| {
        Failure::usage(format!(
            "{tenant:?} is no tenant's id, or the service names no trust domain"
        ))
    })?;
    let mut seed = Zeroizing::new([0; 32]);
    filled(&mut *seed);
    let key = SigningKey::from_seed(*seed);
    filled(&mut *seed);
    let recipient = RecipientSecret::derive(&seed);
    for (file, bytes) in [
        ("key.der", &**key.to_pkcs8()),
        ("recipient", &recipient.to_bytes()[..]),
    ] {
        write(state, file, bytes)?;
    }
    let request = certificate_request(&key, &name);
    let public = recipient.public();
    let body = json!({
        "authenticator": *secret.authenticator().expose(),
        "recipient_key": public.to_string(),
        "certificate_request": STANDARD_NO_PAD.encode(request),
        "binding": hex(&secret.bind(&[public.to_bytes().as_slice(), &request].concat())),
    });
    let path = format!("/v1/tenants/{tenant}/joins/{}", secret.lookup_id().to_text());
    let joined = http
        .send(Method::POST, &path, None, Some(&body), None)
        .await
        .map_err(not_joined)?
        .body;
    let decode = |path: &str| {
        STANDARD_NO_PAD
            .decode(field(&joined, path))
            .map_err(|_| Failure::untrusted(format!("the service's {path} is none")))
    };
    let content = secret
        .open(&decode("sealed")?)
        .map_err(|error| Failure::untrusted(error.to_string()))?;
    let invitation: Invitation = serde_json::from_slice(&content)
        .map_err(|error| Failure::usage(format!("the invitation: {error}")))?;
    if invitation.tenant != tenant || invitation.edge != secret.lookup_id().edge_id().to_string() {
        return Err(Failure::untrusted(
            "the invitation is another tenant's or another edge's",
        ));
    }
    let shown = field(&joined, "edge.id");
    if shown != invitation.edge {
        return Err(Failure::untrusted(
            "the service names another edge than the secret does",
        ));
    }
    write(state, "certificate.der", &decode("certificate.certificate")?)?;
    write(state, "authority.der", &decode("certificate.authority")?)?;
    if let Some(pem) = authority {
        write(state, "server-authority.pem", pem.as_bytes())?;
    }
    write(state, "enrolment.json", &content)?;
    Ok(invitation)
}

/// Joins on this machine with what was invited on it.
pub(super) async fn join_here(session: &Session, state: &Path, secret: &str) -> Result<(), Failure> {
    let profile = &session.profile;
    let authority = profile.authority.as_deref();
    let http = Http::new(&profile.server, authority)?;
    join_by(&http, authority, &profile.tenant, state, secret)
        .await
        .map(drop)
}

/// Of the edge that joined in this directory, its id.
pub(super) fn joined_in(state: &Path) -> Result<Option<String>, Failure> {
    let path = state.join("enrolment.json");
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(of_file(&path)(error)),
    };
    let invitation: Invitation = serde_json::from_slice(&bytes)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    Ok(Some(invitation.edge))
}

/// What is written before the service is asked to join.
const KEYS: [&str; 2] = ["key.der", "recipient"];

/// Makes the directory of an edge. One in which a join before did not end well is used again: the keys that it left there were shown to
/// nobody who took them.
fn prepare(state: &Path) -> Result<(), Failure> {
    match fs::create_dir(state) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let entries = fs::read_dir(state).map_err(of_file(state))?;
            for entry in entries {
                let name = entry.map_err(of_file(state))?.file_name();
                if !KEYS.iter().any(|key| name == *key) {
                    return Err(Failure::usage(format!(
                        "{} holds {} already: an edge joined there, or it is something else's",
                        state.display(),
                        name.display()
                    ))
                    .next("name a new directory with --state"));
                }
            }
            for key in KEYS {
                match fs::remove_file(state.join(key)) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(of_file(state)(error)),
                    Ok(()) | Err(_) => {}
                }
            }
        }
        Err(error) => return Err(of_file(state)(error)),
    }
    #[cfg(unix)]
    fs::set_permissions(state, std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .map_err(of_file(state))?;
    Ok(())
}

/// Whether the secret is used up is what matters to whoever tries again.
fn not_joined(failure: Failure) -> Failure {
    match failure.exit {
        Exit::Unavailable => failure.next(
            "run the same command again; if the secret is then refused, the answer was lost: firn edge remove NAME and \
             firn edge create NAME give a new one",
        ),
        Exit::Credentials => failure.next("where it was invited: firn edge remove NAME, then firn edge create NAME, give a new secret"),
        _ => failure,
    }
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    let path = directory.join(name);
    let mut file = private_file(&path)?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(of_file(&path))
}

/// The volumes that this edge was invited to, as they were noted here: the service could name more, and get the keys of all wrapped.
fn invited_volumes(session: &Session, edge: &Value) -> Result<Vec<String>, Failure> {
    let id = field(edge, "id");
    let invitation = session.profile.invitations.get(&id);
    let Some(invited) = invitation.and_then(|invitation| invitation.volumes.clone()) else {
        return Err(Failure::usage(format!(
            "{id} was invited with an older firn, which did not note here for which volumes"
        ))
        .next("remove it and invite it anew"));
    };
    let listed = edge["volumes"].as_array().into_iter().flatten();
    let listed: BTreeSet<&str> = listed.filter_map(Value::as_str).collect();
    if listed != invited.iter().map(String::as_str).collect() {
        return Err(Failure::untrusted(format!(
            "{id} was invited to {}, and the service says {}; nothing was wrapped",
            invited.join(","),
            field(edge, "volumes")
        )));
    }
    Ok(invited)
}

/// Refuses a name under which another volume was seen: it may have been renamed, or the service shows a volume in its place.
fn same_name_as_before(session: &Session, volume: &Value) -> Result<(), Failure> {
    let (id, name) = (field(volume, "id"), field(volume, "name"));
    let mut pins = session.profile.volumes.iter();
    let Some((other, _)) = pins.find(|(other, pin)| pin.name == name && **other != id) else {
        return Ok(());
    };
    if session.profile.volumes.contains_key(&id) {
        return Ok(());
    }
    Err(Failure::untrusted(format!(
        "{name:?} is volume {id} now and was {other} when it was seen here before"
    ))
    .next(format!(
        "look at both with: firn volume show {id}   If it is right, that command also notes it"
    )))
}

async fn approve(context: &Context, edge: &str, phrase_file: Option<&Path>) -> Result<(), Failure> {
    let mut session = context.session().await?;
    session.tenant().await?;
    let edge = session.find("edges", edge).await?;
    let id = field(&edge, "id");
    let wrapped = approve_for(&mut session, &edge, phrase_file).await?;
    let shown = json!({ "edge": id, "wrapped": wrapped });
    context.screen.show(&shown, |shown| {
        let name = field(&edge, "name");
        match field(shown, "wrapped") {
            none if none.is_empty() => {
                format!("edge {name} may open what it was invited to; it had the keys before\n")
            }
            volumes => format!("edge {name} may open: {volumes}\n"),
        }
    })
}

/// Wraps the keys of all volumes that an edge was invited to; gives the names of those whose keys it had not before.
pub(super) async fn approve_for(
    session: &mut Session,
    edge: &Value,
    phrase_file: Option<&Path>,
) -> Result<Vec<String>, Failure> {
    let public = proved(session, edge)?;
    let phrase = phrase::read(phrase_file, &session.profile.tenant_key)?;
    let id = field(edge, "id");
    let mut wrapped = Vec::new();
    for volume in invited_volumes(session, edge)? {
        let volume = session.with_id("volumes", &volume).await?;
        if rings::add_edge(session, &phrase, &volume, &id, public).await? {
            wrapped.push(field(&volume, "name"));
        }
    }
    session.profile.edges.insert(id.clone(), public.to_string());
    session.profile.invitations.remove(&id);
    session.save()?;
    Ok(wrapped)
}

/// First refused by the service, then left out of the keys: in between it can do nothing.
async fn remove(
    context: &Context,
    session: &mut Session,
    edge: &Value,
    phrase: &firn_seal::RecoveryPhrase,
    wait: &Wait,
) -> Result<(), Failure> {
    let id = field(edge, "id");
    let removed = session
        .call(Method::DELETE, &format!("edges/{id}"), None, None)
        .await?
        .body;
    let mut rotated = Vec::new();
    let volumes = session.list("volumes").await?;
    for volume in volumes.iter().cloned() {
        if volume["state"] == "active" && rings::remove_edge(session, phrase, &volume, &id).await? {
            rotated.push(field(&volume, "name"));
        }
    }
    session.profile.invitations.remove(&id);
    session.profile.edges.remove(&id);
    session.save()?;
    if wait.wait {
        let name = field(edge, "name");
        wait_for(session, &field(&removed, "operation"), &name, wait).await?;
    }
    let shown = json!({ "edge": removed, "new_key_epochs": rotated });
    context.screen.show(&shown, |shown| {
        let rotated = match field(shown, "new_key_epochs") {
            none if none.is_empty() => "it had no volume's keys".to_owned(),
            volumes => format!("new key epochs: {volumes}"),
        };
        format!(
            "edge {} is {}; {rotated}\n",
            field(shown, "edge.name"),
            field(shown, "edge.state")
        )
    })?;
    let hidden = rings::hidden(session, &volumes);
    if hidden.is_empty() {
        return Ok(());
    }
    Err(Failure::untrusted(format!(
        "the service does not list {}, which was seen here before: if the edge has its keys, it still has them",
        hidden.join(", ")
    )))
}
