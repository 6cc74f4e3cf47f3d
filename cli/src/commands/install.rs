//! Installation script of an edge: all that is typed on the machine that becomes one, from the packages to what its clients mount.
//!
//! ```text
//! here    invitation (made, or the one that waits) ─▶ script, configuration, mounts        secret ─▶ by hand
//! there   packages ▸ configuration ▸ check ▸ join (secret from standard input) ▸ keys ▸ check ▸ service ▸ what clients mount
//! ```
//!
//! The script holds no secret, so it may be carried in any way. It is one compound command: a shell reads all of it before it does anything, so
//! that of pasted lines none is taken for the secret. Names and addresses come from the service in part, and a shell of root's reads them:
//! every value is quoted, and what is no plain word is in no place where quotes do not reach.

use super::{
    Context,
    edges::{Invited, invite, join_command},
    volumes::LEASES_INODE,
};
use crate::{
    arguments::{Credentials, Install},
    failure::{Exit, Failure},
    profile::give_secret,
    screen::{field, note},
    session::Session,
};
use serde_json::{Value, json};
use zeroize::Zeroizing;

const DEBIAN: &str = include_str!("install/debian.sh");
const CONTAINER: &str = include_str!("install/container.sh");
/// The state directory of the package and of the image.
const STATE: &str = "/var/lib/firn";
/// In the image, whose clients do not find it by a port mapper that is told at the start.
const MOUNT_PORT: u16 = 20048;

/// A volume of the edge, as its configuration has it.
struct Served {
    id: String,
    /// The path that clients mount, without the slash before it.
    export: String,
    store: String,
    credentials: Credentials,
    /// Whether several offices write it at the same moment.
    is_by_inode: bool,
}

pub async fn run(context: &Context, install: &Install) -> Result<(), Failure> {
    let mut session = context.session().await?;
    // What could be refused is looked at before anything is made.
    let waiting = waiting(&session, install).await?;
    let volumes = match &waiting {
        Some(invited) => ids(&invited.edge),
        None => install.volumes.clone(),
    };
    let mut served = Vec::new();
    for volume in &volumes {
        let volume = session.find("volumes", volume).await?;
        served.push(serve(install, &volume, volumes.len())?);
    }
    unused(install, &volumes)?;
    let Invited { edge, secret } = match waiting {
        Some(invited) => invited,
        None => invite(&mut session, &install.name, &volumes).await?,
    };
    let file = give_secret(install.secret_file.as_deref(), &secret)?;
    let (name, configuration) = (field(&edge, "name"), configuration(install, &edge, &served)?);
    let join = join_command(&session, STATE).await?;
    let script = script(install, &edge, &configuration, &served, &join)?;
    let approve = format!("firn edge approve {}", quoted(&name));
    let shown = json!({
        "edge": edge,
        "script": script,
        "configuration": configuration,
        "mounts": served.iter().map(|served| mount(served, "HOST")).collect::<Vec<_>>(),
        "approve": approve,
        "secret": if file.is_some() { Value::Null } else { secret.to_string().into() },
        "secret_file": file.as_ref().map(|path| path.display().to_string()),
    });
    context.screen.show(&shown, |_| script.clone())?;
    if !context.screen.is_json() {
        note(&match &file {
            Some(file) => format!("\nThe join secret is in {}.", file.display()),
            None => format!(
                "\nThe join secret (one use, one hour), for when it is asked for there:\n\n  {}\n",
                *secret
            ),
        });
        note(&format!("Once it has joined, here: {approve}"));
    }
    Ok(())
}

/// The invitation of this name that waits, if there is one, with the secret that is kept here until it is used.
async fn waiting(session: &Session, install: &Install) -> Result<Option<Invited>, Failure> {
    let edges = session.list("edges").await?;
    let edge = edges
        .into_iter()
        .find(|edge| edge["name"] == *install.name && edge["state"] != "revoked");
    let Some(edge) = edge else {
        if install.volumes.is_empty() {
            return Err(Failure::usage(format!("there is no edge {:?} yet", install.name))
                .next("name what it serves, and it is invited: --volume VOLUME"));
        }
        return Ok(None);
    };
    let (id, name) = (field(&edge, "id"), field(&edge, "name"));
    let anew = format!("firn edge remove {name}, then this command again with --volume invites it anew");
    if edge["state"] != "invited" {
        return Err(Failure::new(
            Exit::Conflict,
            format!("edge {name} joined already: its machine is installed"),
        )
        .next(format!("for another machine: {anew}")));
    }
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    if edge["invitation_expires"].as_u64().is_some_and(|end| end < now) {
        return Err(
            Failure::new(Exit::Conflict, format!("the invitation of edge {name} expired")).next(anew),
        );
    }
    let kept = session.profile.invitations.get(&id);
    let Some(kept) = kept else {
        return Err(
            Failure::usage(format!("edge {name} was not invited on this machine"))
                .next(format!("do it where it was invited; or {anew}")),
        );
    };
    for volume in &install.volumes {
        let volume = session.find("volumes", volume).await?;
        if !ids(&edge).contains(&field(&volume, "id")) {
            return Err(Failure::new(
                Exit::Conflict,
                format!(
                    "edge {name} is invited already, and not to {}",
                    field(&volume, "name")
                ),
            )
            .next(anew));
        }
    }
    let secret = Zeroizing::new(kept.secret.clone());
    Ok(Some(Invited { edge, secret }))
}

fn ids(edge: &Value) -> Vec<String> {
    let volumes = edge["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Where a volume lies, and by whose credentials it is opened.
fn serve(install: &Install, volume: &Value, count: usize) -> Result<Served, Failure> {
    let (id, name) = (field(volume, "id"), field(volume, "name"));
    let given = install
        .stores
        .iter()
        .filter_map(|store| match split_store(store) {
            (Some(of), url) => (of == name || of == id).then_some(url),
            (None, url) => (count == 1).then_some(url),
        })
        .next();
    let of = if count == 1 {
        String::new()
    } else {
        format!("{name}=")
    };
    let (store, credentials) = located(volume, given, install.credentials, &of)?;
    if install.container && store.starts_with("file:") {
        return Err(
            Failure::usage("a container does not see the directories of its machine")
                .next("a store of this kind needs the packages: leave --container out"),
        );
    }
    Ok(Served {
        is_by_inode: volume["leases"] == LEASES_INODE,
        export: if is_plain(&name) { name } else { id.clone() },
        id,
        store,
        credentials,
    })
}

/// Where a volume lies and by whose credentials it is opened: as given, else as the service says. `of` stands before the URL of `--store`.
pub(super) fn located(
    volume: &Value,
    given: Option<&str>,
    credentials: Option<Credentials>,
    of: &str,
) -> Result<(String, Credentials), Failure> {
    let (store, by_default) = match (given, field(volume, "store")) {
        (Some(url), _) => (url.to_owned(), Credentials::Environment),
        (None, kept) if !kept.is_empty() => (kept, Credentials::Service),
        (None, _) => {
            let name = field(volume, "name");
            let bucket = field(volume, "bucket.url");
            let next = match bucket.starts_with("s3://") {
                true => format!(
                    "name it with its region: --store '{of}{bucket}?region=REGION' --credentials service"
                ),
                false => format!("name it as volume.store of an edge would: --store '{of}URL'"),
            };
            return Err(
                Failure::usage(format!("the service does not say where volume {name} lies")).next(next),
            );
        }
    };
    Ok((store, credentials.unwrap_or(by_default)))
}

/// `[VOLUME=]URL`: a URL has an `=` only behind its scheme.
fn split_store(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((volume, url)) if !volume.contains("://") => (Some(volume), url),
        _ => (None, text),
    }
}

/// A store that is of no volume is a mistake.
fn unused(install: &Install, volumes: &[String]) -> Result<(), Failure> {
    match install.stores.len() > volumes.len() {
        true => Err(Failure::usage("there are more --store than volumes")),
        false => Ok(()),
    }
}

/// The edge's configuration.
fn configuration(install: &Install, edge: &Value, served: &[Served]) -> Result<String, Failure> {
    let is_one = served.len() == 1;
    let mut text = "# Printed by `firn edge install`. Every other key with its default: /usr/share/doc/firn-edge/examples/firn-edge.toml.\n".to_owned();
    if !is_one {
        text.push_str(&format!("[edge]\nstate_directory = {}\n\n", toml(STATE)?));
    }
    let edge_name = toml(&field(edge, "name"))?;
    let clients = install.clients.iter().map(|network| toml(network));
    let clients = clients.collect::<Result<Vec<_>, _>>()?.join(", ");
    for volume in served {
        let (section, name) = match is_one {
            true => ("[volume]", &volume.export),
            // By the id it finds the enrolment of the whole edge.
            false => ("[[volume]]", &volume.id),
        };
        let credentials = match volume.credentials {
            Credentials::Service => "service",
            Credentials::Environment => "environment",
        };
        text.push_str(&format!(
            "{section}\nname = {}\nedge_name = {edge_name}\nstore = {}\nanchor = \"service\"\ncredentials = \"{credentials}\"\n",
            toml(name)?,
            toml(&volume.store)?
        ));
        if volume.is_by_inode {
            text.push_str(&format!("shared = true\nleases = \"{LEASES_INODE}\"\n"));
        }
        if is_one {
            text.push_str(&format!("state_directory = {}\n", toml(STATE)?));
        }
        text.push_str(&format!(
            "\n[[export]]\npath = {}\n",
            toml(&format!("/{}", volume.export))?
        ));
        if !is_one {
            text.push_str(&format!("volume = {}\n", toml(&volume.id)?));
        }
        text.push_str(&format!("clients = [{clients}]\n\n"));
    }
    if install.container {
        text.push_str(&format!("[nfs]\nmount_port = {MOUNT_PORT}\n"));
    }
    Ok(text.trim_end().to_owned() + "\n")
}

fn script(
    install: &Install,
    edge: &Value,
    configuration: &str,
    served: &[Served],
    join: &[String],
) -> Result<String, Failure> {
    let join: Vec<String> = join.iter().map(|word| quoted(word)).collect();
    let as_edge = if install.container {
        "edge"
    } else {
        "as_service firn-edge"
    };
    let enrol = served.iter().map(|volume| {
        let of = match served.len() {
            1 => String::new(),
            _ => format!("--volume {} ", quoted(&volume.id)),
        };
        format!("{as_edge} {of}enrol --wait --root-mode 1777 || stop \"the keys are not here yet; what to do is said above. Then run this again\"\n")
    });
    let directories = served.iter().filter_map(|volume| {
        let directory = volume.store.strip_prefix("file://")?;
        Some(format!(
            "install -d -o firn -g firn -m 700 {}\n",
            quoted(directory)
        ))
    });
    let clients = served.iter().map(|volume| {
        format!(
            "  mkdir -p /mnt/{0} && {1}\n  and in /etc/fstab, for every boot: $host:/{0} /mnt/{0} nfs vers=3,hard,_netdev 0 0\n",
            volume.export,
            mount(volume, "$host")
        )
    });
    let name = field(edge, "name");
    let values = [
        ("comment", name.clone()),
        ("name", quoted(&name)),
        ("edge", quoted(&field(edge, "id"))),
        ("packages", quoted(&install.packages)),
        ("configuration", configuration.to_owned()),
        ("directories", directories.collect()),
        (
            "join",
            match install.container {
                true => join.join(" "),
                false => format!("firn {}", join.join(" ")),
            },
        ),
        ("enrol", enrol.collect()),
        ("clients", clients.collect()),
    ];
    filled(if install.container { CONTAINER } else { DEBIAN }, &values)
}

fn mount(volume: &Served, host: &str) -> String {
    format!("mount -t nfs -o vers=3,hard {host}:/{0} /mnt/{0}", volume.export)
}

/// The template with its `{{names}}` replaced, once: a value that looks like a name stays what it is.
fn filled(template: &str, values: &[(&str, String)]) -> Result<String, Failure> {
    let mut text = String::new();
    let mut left = template;
    while let Some((before, name, after)) = left
        .split_once("{{")
        .and_then(|(before, rest)| rest.split_once("}}").map(|(name, after)| (before, name, after)))
    {
        let value = values.iter().find(|(known, _)| *known == name);
        let (_, value) = value.ok_or_else(|| Failure::failed(format!("the script has no {name}")))?;
        text.push_str(before);
        text.push_str(value);
        left = after;
    }
    Ok(text + left)
}

/// A word that means itself in a shell, in a path of NFS, and as a directory's name.
pub(super) fn is_plain(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && !text.starts_with(['.', '-']) && text.len() <= 100 && text.bytes().all(fits)
}

/// A word of a shell's command that means exactly this text.
fn quoted(text: &str) -> String {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:=@%+,".contains(&byte);
    match !text.is_empty() && text.bytes().all(fits) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// A text of TOML: written as JSON does, which knows the same escapes, where no control character is.
pub(super) fn toml(text: &str) -> Result<String, Failure> {
    if text.chars().any(char::is_control) {
        return Err(Failure::usage(format!("{text:?} has a control character")));
    }
    serde_json::to_string(text).map_err(|error| Failure::failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_of_roots_reads_is_quoted() {
        assert_eq!(quoted("https://localhost:7400"), "https://localhost:7400");
        assert_eq!(quoted("Büro; reboot"), "'Büro; reboot'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(toml("a\"b\\c").unwrap(), r#""a\"b\\c""#);
        assert!(toml("a\nCONFIGURATION\nreboot").is_err());
        assert!(
            is_plain("files-2.old")
                && !is_plain("-x")
                && !is_plain("..")
                && !is_plain("a b")
                && !is_plain("$(x)")
        );
    }

    #[test]
    fn a_value_is_put_in_once_and_every_name_has_one() {
        let values = [("a", "{{b}}".to_owned()), ("b", "2".to_owned())];
        assert_eq!(filled("{{a}}-{{b}}-{", &values).unwrap(), "{{b}}-2-{");
        assert!(filled("{{c}}", &values).is_err());
    }

    #[test]
    fn a_store_may_name_its_volume() {
        assert_eq!(split_store("s3://b/p?region=eu"), (None, "s3://b/p?region=eu"));
        assert_eq!(
            split_store("homes=s3://b/p?region=eu"),
            (Some("homes"), "s3://b/p?region=eu")
        );
        assert_eq!(split_store("file:///srv/a=b"), (None, "file:///srv/a=b"));
    }
}
