//! smbd as a process that cannot outlive the edge.
//!
//! It runs in a process namespace, whose end the kernel makes the end of everything in it, and in a table of mounts of its own:
//!
//! ```text
//! firn-edge ─▶ setpriv --pdeathsig KILL ─▶ unshare --pid --mount --kill-child=KILL ─▶ sh (process 1 there) ─▶ smbd ─▶ smbd a connection
//! ```
//!
//! If the edge is killed, the kernel kills `unshare`, therefore `sh`, therefore all. At the end of an edge SIGTERM goes to the group of
//! processes, so that smbd closes what clients had open; whoever is left after a while is killed. The thread that started the child
//! waits for it: the kernel's signal of a parent's death is that of the thread. The process is noted with the time it was started at, so that
//! the next start finds one that is left in spite of all.

use super::{paths::Paths, section::SmbSection};
use firn_env::Env;
use futures::channel::oneshot;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::{
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

/// How long smbd has to close what clients had open.
const TERMINATE_WITHIN: Duration = Duration::from_secs(10);
/// How long the kernel has to end what was killed; what waits for the volume's answer waits for the end of the mount.
const KILL_WITHIN: Duration = Duration::from_secs(10);

/// What the first process of the namespace does. The arguments: the files of accounts, the volume, the directory of what smbd runs by, where
/// both are to be seen ([`Paths::stage`]); which names the C library asks whom for, which is there only with a domain, winbindd, its log, and
/// the configuration; then smbd's command. winbindd is started anew whenever it ends; its socket is where the C library's module looks for it.
/// File systems of servers are taken out of its table of mounts: Samba's module for names looks at each mount whenever a client connects, and one whose
/// server is away would keep the client waiting. Its /etc is one of its own, of links to the machine's: what is mounted on a file is gone as soon as
/// anybody replaces that file, as useradd does with the machine's accounts. Beside the accounts the daemon that caches the machine's own is hidden. It ends when nothing is left, after 5 s at most.
const FIRST: &str = r#"
mount -t tmpfs -o size=16k,mode=755 tmpfs "$5" && mkdir -m 755 "$5/files" "$5/run" "$5/etc" || exit 71
mount --rbind /etc "$5/etc" && mount -t tmpfs -o size=1m,mode=755 tmpfs /etc && ln -s "$5"/etc/* /etc/ || exit 71
for at in "$5"/etc/*; do
  if [ -L "$at" ]; then cp -P --remove-destination "$at" /etc/ || exit 71; fi
done
own() { rm -f "/etc/$2" && : > "/etc/$2" && mount --bind "$1" "/etc/$2" || exit 71; }
own "$1" passwd; own "$2" group
mount --bind "$3" "$5/files" && mount --bind "$4" "$5/run" || exit 71
while read -r _ where kind _; do
  case "$kind" in nfs|nfs4|cifs|smb3|ceph|fuse.sshfs|fuse.glusterfs) umount --lazy --no-canonicalize "$where" ;; esac
done < /proc/self/mounts
if [ -d /run/nscd ]; then mount -t tmpfs -o size=4k tmpfs /run/nscd || exit 71; fi
keep() {
  trap 'kill "$kept" 2>/dev/null; exit' TERM
  while :; do "$@" & kept=$!; wait "$kept"; sleep 1; done
}
keeper=
if [ -e "$6" ]; then
  mkdir -p /run/samba && mount --bind "$4/samba" /run/samba || exit 71
  own "$6" nsswitch.conf
  keep "$7" --foreground --no-process-group "--option=log file=$8" --configfile "$9" &
  keeper=$!
fi
shift 9
"$@" &
child=$!
trap : TERM
while :; do
  wait "$child"; status=$?
  kill -0 "$child" 2>/dev/null || break
done
if [ -n "$keeper" ]; then kill "$keeper" 2>/dev/null; fi
left=50
while [ "$left" -gt 0 ] && kill -0 -1 2>/dev/null; do sleep 0.1; left=$((left - 1)); done
exit "$status"
"#;

/// smbd, from its start to its end.
pub struct Running {
    child: Child,
    pid: Pid,
    /// Resolves when it has ended; it is not reaped then, so that its number still means it.
    ended: oneshot::Receiver<()>,
    pid_file: std::path::PathBuf,
}

/// Starts smbd.
///
/// # Errors
/// If the programs that run it cannot be started.
pub async fn start(smb: &SmbSection, paths: &Paths) -> io::Result<Running> {
    let log = File::create(paths.start_log())?;
    let mut command = Command::new("setpriv");
    command
        .args([
            "--pdeathsig",
            "KILL",
            "--",
            "unshare",
            "--pid",
            "--mount",
            "--fork",
            "--kill-child=KILL",
            "--",
        ])
        .args(["sh", "-c", FIRST, "firn-smb"])
        .args([paths.passwd(), paths.group(), paths.mount(), paths.run()])
        .arg(paths.stage())
        .arg(paths.name_service())
        .arg(smb.winbindd())
        .args([paths.log().join("log.winbindd"), paths.configuration()])
        .arg(&smb.program)
        .args(["--foreground", "--no-process-group", "--configfile"])
        .arg(paths.configuration())
        .current_dir("/")
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0);
    let (started, child) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let work = move || {
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        let pid = Pid::from_child(&child);
        if started.send(Ok(child)).is_ok() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while matches!(
                rustix::process::waitid(WaitId::Pid(pid), options),
                Err(rustix::io::Errno::INTR)
            ) {}
            let _ = end.send(());
        }
    };
    #[allow(
        clippy::disallowed_methods,
        reason = "a child's parent is the thread that started it, which must live as long"
    )]
    std::thread::Builder::new().name("smbd".into()).spawn(work)?;
    let child = child
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the thread that starts smbd ended")))?;
    let pid = Pid::from_child(&child);
    let pid_file = paths.pid();
    let note = format!("{} {}\n", child.id(), started_at(child.id()).unwrap_or(0));
    let running = Running {
        child,
        pid,
        ended,
        pid_file,
    };
    fs::write(&running.pid_file, note)?;
    Ok(running)
}

/// Where the programs are that run others: no more of the edge's environment, which has its credentials, goes to Samba.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Running {
    /// The process that stands for all of smbd's.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Completes when smbd has ended.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        let _ = (&mut self.ended).await;
        let status = self.child.wait()?;
        let _ = fs::remove_file(&self.pid_file);
        Ok(status)
    }

    /// Ends it, by force if need be. False if even that did not help.
    pub async fn stop(mut self, env: &Env) -> bool {
        let _ = rustix::process::kill_process_group(self.pid, Signal::TERM);
        if env.timeout(TERMINATE_WITHIN, self.ended()).await.is_ok() {
            return true;
        }
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        env.timeout(KILL_WITHIN, self.ended()).await.is_ok()
    }

    /// Ends it by force: it does not answer.
    pub async fn kill(mut self, env: &Env) -> bool {
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        env.timeout(KILL_WITHIN, self.ended()).await.is_ok()
    }
}

/// Kills the programs of this name among the descendants of a process, with their own: they do not answer.
pub fn end_program(ancestor: u32, name: &str) {
    let all = descendants(ancestor);
    let is_meant =
        |id: &&u32| fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|comm| comm.trim_end() == name);
    let meant: Vec<u32> = all.iter().filter(is_meant).copied().collect();
    for id in meant
        .iter()
        .flat_map(|id| descendants(*id))
        .chain(meant.iter().copied())
    {
        if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            tracing::warn!(process = id, name, "it does not answer, and is ended");
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// Ends the process of smbd's that a thread is of, and with it the connection of its client: a flush of it fails. Samba (seen with 4.17; its
/// modules for streams and names take the error from where it is not) answers such a flush never, and the client would wait for ever; so it
/// learns at once that what it wrote is not safe, and connects anew.
pub fn end_connection(thread: u32) {
    let Ok(status) = fs::read_to_string(format!("/proc/{thread}/status")) else {
        return;
    };
    let Some(pid) = smbd_of(&status) else {
        return;
    };
    tracing::warn!(
        process = pid.as_raw_pid(),
        "a flush of an SMB client failed: its connection is ended, so that it knows"
    );
    let _ = rustix::process::kill_process(pid, Signal::TERM);
}

/// The process of smbd's by what the kernel says of one of its threads; `None` if it is another program's.
fn smbd_of(status: &str) -> Option<Pid> {
    let field = |name: &str| {
        let mut lines = status.lines();
        Some(lines.find_map(|line| line.strip_prefix(name))?.trim())
    };
    // The programs call themselves by the name of smbd, and what they do for whom.
    let is_smbd = field("Name:")?.starts_with("smbd");
    let process = field("Tgid:")?.parse().ok()?;
    is_smbd.then(|| Pid::from_raw(process))?
}

/// The children of a process, and theirs, as the kernel lists them.
fn descendants(of: u32) -> Vec<u32> {
    /// Far more than smbd is allowed connections.
    const MAX: usize = 16_384;
    let mut all = vec![of];
    let mut at = 0;
    while at < all.len() && all.len() < MAX {
        let id = all[at];
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        all.extend(
            children
                .split_whitespace()
                .filter_map(|child| child.parse::<u32>().ok()),
        );
        at += 1;
    }
    all.split_off(1)
}

/// Ends what an earlier edge left. False if it does not end.
pub async fn end_stale(env: &Env, paths: &Paths) -> bool {
    let path = paths.pid();
    let Some((id, since)) = fs::read_to_string(&path).ok().as_deref().and_then(parse) else {
        return true;
    };
    let is_left = || started_at(id) == Some(since);
    if is_left()
        && let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw)
    {
        tracing::warn!(process = id, "an smbd that an earlier edge left is ended");
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        for _ in 0..100 {
            if !is_left() {
                break;
            }
            env.sleep(KILL_WITHIN / 100).await;
        }
    }
    if is_left() {
        return false;
    }
    let _ = fs::remove_file(&path);
    true
}

fn parse(text: &str) -> Option<(u32, u64)> {
    let (id, since) = text.trim().split_once(' ')?;
    Some((id.parse().ok()?, since.parse().ok()?))
}

/// When a process was started, in the kernel's ticks since the machine was: with its number this means one process. `None` if there is
/// none, or only what its parent has not noticed the end of.
fn started_at(id: u32) -> Option<u64> {
    let text = fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat")).ok()?;
    // The name before may have anything in it.
    let (_, fields) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    fields.get(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_ended_by_any_thread_of_smbds_and_no_other_program_is() {
        let status =
            |name: &str| format!("Name:\t{name}\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t41\nNgid:\t0\n");
        assert_eq!(smbd_of(&status("smbd[10.0.0.7]")), Pid::from_raw(41));
        assert_eq!(smbd_of(&status("smbd")), Pid::from_raw(41));
        assert_eq!(smbd_of(&status("cp")), None);
        assert_eq!(smbd_of(""), None);
    }

    #[test]
    fn a_process_is_told_from_another_of_its_number() {
        let own = std::process::id();
        let since = started_at(own).expect("it runs");
        assert_eq!(parse(&format!("{own} {since}\n")), Some((own, since)));
        assert_eq!(started_at(u32::MAX), None);
        assert_eq!(parse("nonsense"), None);
    }
}
