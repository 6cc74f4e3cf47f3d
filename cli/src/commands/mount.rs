//! `firn mount`: a whole edge in the foreground, for a volume on a workstation.
//!
//! ```text
//! ~/.local/state/firn/mounts/VOLUME/    ($XDG_STATE_HOME)
//!   edge/            identity, journal, cache, as `firn edge join` and firn-edge make them
//!   mount.json       which volume, and where it lies: later starts need no service
//!   firn-edge.toml   made anew at each start
//!
//! nothing ─ invite ─▶ invited ─ join ─▶ joined ─ approve (recovery phrase) ─▶ firn-edge mount, which this program becomes
//! ```
//!
//! Each arrow is found done and left out when the command is repeated. Decision 0136.

use super::{
    Context, beside,
    edges::{Invited, approve_for, invite, join_here, joined_in},
    install::{is_plain, located, toml},
    volumes::LEASES_INODE,
};
use crate::{
    arguments::{Credentials, Mount},
    failure::{Exit, Failure, of_file},
    screen::{field, note},
    session::Session,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fs,
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::Command,
};
use zeroize::Zeroizing;

const REMEMBERED: &str = "mount.json";
const VERSION: u16 = 1;

/// `mount.json`.
#[derive(Serialize, Deserialize)]
struct Remembered {
    version: u16,
    tenant: String,
    volume: String,
    name: String,
    store: String,
    /// `service` or `environment`.
    credentials: String,
}

pub async fn run(context: &Context, wanted: Mount) -> Result<(), Failure> {
    // What this machine lacks is said before anything is made.
    let program = beside::program("firn-edge", "it serves volumes")?;
    require_directory(&wanted.directory)?;
    let mounts = mounts_directory()?;
    let place = match prepared(context, &wanted, &mounts).await {
        Ok(place) => place,
        Err(failure) if failure.exit == Exit::Unavailable => match remembered(&mounts, &wanted.volume)? {
            Some(place) => {
                note(&format!(
                    "{}; going on with what this machine has",
                    failure.what()
                ));
                place
            }
            None => return Err(failure),
        },
        Err(failure) => return Err(failure),
    };
    let configuration = place.join("firn-edge.toml");
    let text = configured(&wanted, &place, &read(&place)?)?;
    write_whole(&configuration, &text)?;
    let mut command = Command::new(&program);
    command
        .arg("--config")
        .arg(&configuration)
        .arg("mount")
        .arg(std::path::absolute(&wanted.directory).map_err(of_file(&wanted.directory))?);
    for (is_wanted, flag) in [
        (wanted.read_only, "--read-only"),
        (wanted.allow_other, "--allow-other"),
        (wanted.keep, "--keep"),
    ] {
        if is_wanted {
            command.arg(flag);
        }
    }
    Err(of_file(&program)(beside::become_it(command)))
}

/// Refuses what can be no mount point. One that a killed process left answers nothing, and is taken away by the next start.
fn require_directory(directory: &Path) -> Result<(), Failure> {
    match fs::metadata(directory) {
        Ok(status) if !status.is_dir() => {
            Err(Failure::usage(format!("{} is no directory", directory.display())))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Failure::usage(format!("{} is not there", directory.display()))
                .next(format!("make it: mkdir -p {}", directory.display())))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Where all mounts of this user keep what they have.
fn mounts_directory() -> Result<PathBuf, Failure> {
    let from = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from).filter(|path| path.is_absolute())
    };
    from("XDG_STATE_HOME")
        .or_else(|| from("HOME").map(|home| home.join(".local/state")))
        .map(|directory| directory.join("firn").join("mounts"))
        .ok_or_else(|| {
            Failure::usage("no place for the volume's journal and cache: set HOME or XDG_STATE_HOME")
        })
}

/// The directory of a volume whose keys this machine may take up; everything up to there is done.
async fn prepared(context: &Context, wanted: &Mount, mounts: &Path) -> Result<PathBuf, Failure> {
    let mut session = context.session().await?;
    let volume = session.find("volumes", &wanted.volume).await?;
    let place = mounts.join(field(&volume, "id"));
    remember(&session, wanted, &volume, &place)?;
    let state = place.join("edge");
    let edge = match joined_in(&state)? {
        Some(edge) => edge,
        None => {
            let Invited { edge, secret } = invited(&mut session, wanted, &volume).await?;
            join_here(&session, &state, &secret).await?;
            note(&format!(
                "this machine is the edge {} now; it keeps the volume's journal and cache in {}",
                field(&edge, "name"),
                place.display()
            ));
            field(&edge, "id")
        }
    };
    // An invitation is kept until what joined with it was approved.
    if session.profile.invitations.contains_key(&edge) {
        let edge = session.with_id("edges", &edge).await?;
        approve_for(&mut session, &edge, wanted.phrase.phrase_file.as_deref()).await?;
    }
    Ok(place)
}

/// Invites this machine, or takes the invitation up that was cut off.
async fn invited(session: &mut Session, wanted: &Mount, volume: &Value) -> Result<Invited, Failure> {
    let name = match &wanted.edge {
        Some(name) => name.clone(),
        None => default_name(&field(volume, "name")),
    };
    let edges = session.list("edges").await?;
    let known = edges
        .into_iter()
        .find(|edge| edge["name"] == *name && edge["state"] != "revoked");
    let Some(edge) = known else {
        return invite(session, &name, &[field(volume, "id")]).await;
    };
    let kept = session.profile.invitations.get(&field(&edge, "id"));
    match kept {
        Some(kept) if edge["state"] == "invited" => {
            let secret = Zeroizing::new(kept.secret.clone());
            Ok(Invited { edge, secret })
        }
        _ => Err(Failure::new(
            Exit::Conflict,
            format!("there is an edge {name} already, and its keys are not in this user's directory"),
        )
        .next(format!(
            "give this one another name with --edge; or, if that one is gone: firn edge remove {name}"
        ))),
    }
}

/// USER-HOST-VOLUME, of the letters that names have everywhere.
fn default_name(volume: &str) -> String {
    let user = ["USER", "LOGNAME"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let words = [
        user.as_deref().unwrap_or("user"),
        host.split('.').next().unwrap_or_default().trim(),
        volume,
    ];
    let whole = words
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join("-");
    let plain = whole.chars().map(|letter| match letter {
        letter if letter.is_alphanumeric() || "._-".contains(letter) => letter,
        _ => '-',
    });
    plain.take(60).collect()
}

/// Notes which volume is kept in `place`, and where it lies.
fn remember(session: &Session, wanted: &Mount, volume: &Value, place: &Path) -> Result<(), Failure> {
    let name = field(volume, "name");
    if volume["leases"] == LEASES_INODE {
        return Err(Failure::usage(format!(
            "several offices write volume {name} at the same moment, and a mount of this machine would not be told what others change; nothing was changed"
        ))
        .next("mount what an office's edge exports: firn edge install shows how"));
    }
    make_private(place)?;
    let remembered = match read(place) {
        Ok(known) if wanted.store.is_none() && wanted.credentials.is_none() => Remembered { name, ..known },
        _ => {
            let (store, credentials) = located(volume, wanted.store.as_deref(), wanted.credentials, "")?;
            Remembered {
                version: VERSION,
                tenant: session.profile.tenant.clone(),
                volume: field(volume, "id"),
                name,
                store,
                credentials: match credentials {
                    Credentials::Service => "service".into(),
                    Credentials::Environment => "environment".into(),
                },
            }
        }
    };
    let text = serde_json::to_string(&remembered).map_err(|error| Failure::failed(error.to_string()))?;
    write_whole(&place.join(REMEMBERED), &text)
}

fn read(place: &Path) -> Result<Remembered, Failure> {
    let path = place.join(REMEMBERED);
    let text = fs::read(&path).map_err(of_file(&path))?;
    let remembered: Remembered = serde_json::from_slice(&text)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    match remembered.version {
        VERSION => Ok(remembered),
        other => Err(Failure::usage(format!(
            "{}: version {other}, this build reads {VERSION}",
            path.display()
        ))),
    }
}

/// The directory of the one volume of this name or id that was mounted here before.
fn remembered(mounts: &Path, wanted: &str) -> Result<Option<PathBuf>, Failure> {
    let entries = match fs::read_dir(mounts) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(of_file(mounts)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let place = entry.map_err(of_file(mounts))?.path();
        let is_meant = read(&place).is_ok_and(|known| known.volume == wanted || known.name == wanted);
        if is_meant && joined_in(&place.join("edge"))?.is_some() {
            found.push(place);
        }
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err(Failure::usage(format!(
            "several volumes called {wanted} were mounted here: name one by its id"
        ))),
    }
}

/// The configuration of the edge.
fn configured(wanted: &Mount, place: &Path, of: &Remembered) -> Result<String, Failure> {
    let state = place.join("edge");
    let state = state
        .to_str()
        .ok_or_else(|| Failure::usage(format!("{} is no text", state.display())))?;
    Ok(format!(
        "# Made by `firn mount` anew at every start.\n[volume]\nname = {}\nedge_name = {}\nstore = {}\nanchor = \"service\"\ncredentials = {}\n\
         state_directory = {}\n\n[limits]\ndisk_cache = \"{}B\"\n\n[log]\nlevel = \"warn\"\n",
        toml(if is_plain(&of.name) { &of.name } else { &of.volume })?,
        toml(&default_name(&of.name))?,
        toml(&of.store)?,
        toml(&of.credentials)?,
        toml(state)?,
        wanted.cache.0,
    ))
}

/// Makes a directory, and those above it, that only its owner looks into.
fn make_private(directory: &Path) -> Result<(), Failure> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory).map_err(of_file(directory))
}

/// Replaces a file whole, so that an interruption leaves the old one or the new one.
fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let next = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(&next).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(of_file(&next))?;
    fs::rename(&next, path).map_err(of_file(path))
}

#[cfg(test)]
mod tests {
    use super::default_name;

    #[test]
    fn a_machines_name_as_an_edge_is_of_plain_letters_and_bounded() {
        let name = default_name(&format!("Büro /\u{7}{}", "x".repeat(100)));
        assert!(name.contains("Büro---x") && name.chars().count() <= 60, "{name}");
        assert!(!name.contains(['/', ' ', '\u{7}']), "{name}");
    }
}
