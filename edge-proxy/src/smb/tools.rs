//! Samba's own tools on the private table of passwords, in a table of mounts in which the accounts are those of the table of users.

use super::{paths::Paths, process::PATH};
use firn_env::Env;
use std::{
    io::Write,
    process::{Command, Stdio},
};

/// As in [`super::process`], without the volume, and with a directory to run by that is the tool's own: that of smbd is emptied whenever it starts.
const INSIDE: &str = r#"
mount --bind "$1" /etc/passwd && mount --bind "$2" /etc/group || exit 71
mount -t tmpfs -o size=32m,mode=755 tmpfs "$4" && mkdir -m 755 "$4/run" || exit 71
if [ -d /run/nscd ]; then mount -t tmpfs -o size=4k tmpfs /run/nscd || exit 71; fi
if [ -e "$5" ]; then
  mkdir -p /run/samba && mount --bind "$3/samba" /run/samba && mount --bind "$5" /etc/nsswitch.conf || exit 71
fi
shift 5
exec "$@"
"#;

/// How long a tool may take, in seconds: another may have the table of passwords locked.
const WITHIN_SECONDS: u32 = 30;

/// Runs a tool of Samba's to its end and returns what it printed.
///
/// # Errors
/// What it said, if it failed.
pub async fn run(
    env: &Env,
    paths: &Paths,
    tool: &str,
    arguments: &[&str],
    input: String,
) -> Result<String, String> {
    run_within(env, paths, WITHIN_SECONDS, tool, arguments, input).await
}

/// The same with a time of its own.
///
/// # Errors
/// What it said, if it failed.
pub async fn run_within(
    env: &Env,
    paths: &Paths,
    seconds: u32,
    tool: &str,
    arguments: &[&str],
    input: String,
) -> Result<String, String> {
    let mut command = Command::new("timeout");
    command
        .args([
            "--kill-after=5",
            &seconds.to_string(),
            "unshare",
            "--mount",
            "--",
            "sh",
            "-c",
            INSIDE,
            "firn-smb",
        ])
        .args([paths.passwd(), paths.group(), paths.run()])
        .arg(paths.stage())
        .arg(paths.name_service())
        .arg(tool)
        .args(arguments)
        .current_dir("/")
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let tool = tool.to_owned();
    env.compute(move || {
        let mut child = command
            .spawn()
            .map_err(|error| format!("{tool} cannot be run: {error}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A tool that does not want it says why by its end.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child
            .wait_with_output()
            .map_err(|error| format!("{tool}: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        // The first lines have the cause, what follows from it comes after.
        let said: Vec<&str> = said.lines().take(3).collect();
        Err(match output.status.code() {
            Some(127) => format!("{tool} is not there: install Samba's tools (Debian, Ubuntu: apt-get install samba, with a domain also winbind libnss-winbind)"),
            Some(124) => format!("{tool} did not end within {seconds} s"),
            _ => format!("{tool} failed ({}): {}", output.status, said.join("; ")),
        })
    })
    .await
}

/// The names of those who have a password.
///
/// # Errors
/// If the table of passwords cannot be read.
pub async fn names(env: &Env, paths: &Paths) -> Result<Vec<String>, String> {
    let configuration = paths.configuration().display().to_string();
    let listed = run(
        env,
        paths,
        "pdbedit",
        &["--list", "--configfile", &configuration],
        String::new(),
    )
    .await?;
    Ok(listed
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.to_owned())
        .collect())
}
