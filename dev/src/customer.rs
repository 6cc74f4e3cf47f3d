//! A scripted customer: sign up, make a volume, invite an edge, join it, approve it, as a customer types it. It runs `firn` itself,
//! so that keys are made where a customer's are and the service learns no more than a real one would.

use crate::layout::Layout;
use anyhow::{Context as _, Result, bail, ensure};
use futures::future::{Either, select};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    pin::pin,
    process::Stdio,
    time::Duration,
};
use tokio::{io::AsyncWriteExt as _, process::Command};

/// The share's volume, and its edge.
const VOLUME: &str = "files";
const EDGE: &str = "office";
/// A letter that is not there by then was not written.
const LETTER_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

/// `firn`: what `FIRN_PROGRAM` names (as `firn dev` sets it), or what lies beside this program.
fn firn() -> Result<PathBuf> {
    let path = match std::env::var_os("FIRN_PROGRAM") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()?.with_file_name("firn"),
    };
    ensure!(
        path.is_file(),
        "{} is not there; build it: cargo build --release -p firn-cli",
        path.display()
    );
    Ok(path)
}

struct Customer {
    firn: PathBuf,
    profile: String,
    typed: Vec<String>,
}

/// Signs up and makes a volume with an edge, unless that was done; gives the lines that a person would have typed.
pub async fn sign_up(layout: &Layout, url: &str) -> Result<Vec<String>> {
    let mut customer = Customer {
        firn: firn()?,
        profile: layout.text("profile.json"),
        typed: Vec::new(),
    };
    let (phrase, authority) = (layout.text("recovery-phrase"), layout.text("authority.pem"));
    if !layout.path("profile.json").exists() {
        // From an attempt that was cut off; nothing was signed with it.
        forget(&layout.path("recovery-phrase"))?;
        let arguments = [
            "signup",
            "--server",
            url,
            "--authority",
            &authority,
            "--email",
            "you@example.org",
            "--name",
            "Example",
            "--phrase-file",
            &phrase,
        ];
        customer.run(&arguments, Some(&layout.path("api/mail"))).await?;
    }
    let volumes = customer.ask(&["volume", "list"]).await?;
    if !named(&volumes, VOLUME) {
        let arguments = [
            "volume",
            "create",
            VOLUME,
            "--region",
            "local",
            "--phrase-file",
            &phrase,
        ];
        customer.run(&arguments, None).await?;
    }
    if layout.has_edge() {
        // Approving again wraps nothing twice.
        if !layout.path("edge/identity").exists() {
            customer
                .run(&["edge", "approve", EDGE, "--phrase-file", &phrase], None)
                .await?;
        }
        return Ok(customer.typed);
    }
    let edges = customer.ask(&["edge", "list"]).await?;
    if named(&edges, EDGE) {
        // Invited and cut off: the secret may be used up, so it is removed and invited anew.
        customer
            .run(&["edge", "remove", EDGE, "--yes", "--phrase-file", &phrase], None)
            .await?;
    }
    let secret = layout.text("join-secret");
    forget(Path::new(&secret))?;
    let state = layout.text("edge");
    if layout.path("edge").exists() {
        std::fs::remove_dir_all(&state)?;
    }
    let arguments = [
        "edge",
        "create",
        EDGE,
        "--volume",
        VOLUME,
        "--secret-file",
        &secret,
    ];
    customer.run(&arguments, None).await?;
    let tenant = customer.ask(&["whoami"]).await?["tenant"]
        .as_str()
        .context("whoami names a tenant")?
        .to_owned();
    let arguments = [
        "edge",
        "join",
        "--server",
        url,
        "--authority",
        &authority,
        "--tenant",
        &tenant,
        "--state",
        &state,
        "--secret-file",
        &secret,
    ];
    customer.run(&arguments, None).await?;
    forget(Path::new(&secret))?;
    customer
        .run(&["edge", "approve", EDGE, "--phrase-file", &phrase], None)
        .await?;
    Ok(customer.typed)
}

fn forget(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether a list has something of that name that is still there.
fn named(list: &Value, name: &str) -> bool {
    list.as_array().into_iter().flatten().any(|item| {
        item["name"] == name && !matches!(item["state"].as_str(), Some("erased" | "revoked" | "removed"))
    })
}

impl Customer {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.firn);
        command
            .args(["--output", "json", "--profile", &self.profile])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command that changes something, and notes the line.
    async fn run(&mut self, arguments: &[&str], letters: Option<&Path>) -> Result<Value> {
        let shown = arguments.iter().map(|argument| {
            if argument.contains(' ') {
                format!("'{argument}'")
            } else {
                (*argument).to_owned()
            }
        });
        self.typed
            .push(format!("firn {}", shown.collect::<Vec<_>>().join(" ")));
        let mut child = self.command(arguments).spawn()?;
        let mut input = child.stdin.take().context("a pipe was asked for")?;
        if let Some(directory) = letters {
            // One that is refused ends without a letter, and then says why.
            let letter = pin!(code(directory));
            if let Either::Left((code, _)) = select(letter, pin!(child.wait())).await {
                input.write_all(format!("{}\n", code?).as_bytes()).await?;
            }
        }
        drop(input);
        answer(arguments, child.wait_with_output().await?)
    }

    async fn ask(&self, arguments: &[&str]) -> Result<Value> {
        answer(arguments, self.command(arguments).output().await?)
    }
}

fn answer(arguments: &[&str], output: std::process::Output) -> Result<Value> {
    if !output.status.success() {
        bail!(
            "firn {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("what firn {} printed", arguments.join(" ")))
}

/// The code of the newest letter, once there is one.
async fn code(directory: &Path) -> Result<String> {
    let newest = || -> Option<String> {
        let letters = std::fs::read_dir(directory).ok()?;
        let path = letters.filter_map(|entry| Some(entry.ok()?.path())).max()?;
        let text = std::fs::read_to_string(path).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("Code: "))
            .map(str::to_owned)
    };
    let found = async {
        loop {
            match newest() {
                Some(code) => return code,
                None => tokio::time::sleep(LOOK).await,
            }
        }
    };
    tokio::time::timeout(LETTER_TIMEOUT, found)
        .await
        .with_context(|| format!("no letter came to {}", directory.display()))
}
