//! `firn mount` by an ordinary user of a workstation: the kernel of this machine, `fusermount3`, and the customer's own commands.

use crate::{
    machine::{Machine, TIMEOUT, good, mount, program, wait_for},
    story::an_edge,
};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// `nobody`, where the test runs as root.
const NOBODY: u32 = 65_534;
const DEVICE: &str = "/dev/fuse";

/// A user of the machine with a home, who is logged in.
struct User {
    /// `None` if the test runs as an ordinary user itself.
    uid: Option<u32>,
    home: PathBuf,
    programs: PathBuf,
    /// Mode of /dev/fuse before, where no udev has given it that of all distributions.
    device_mode: Option<u32>,
}

fn give_to(path: &Path, uid: u32) {
    chown(path, Some(uid), Some(uid)).unwrap();
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give_to(&entry.unwrap().path(), uid);
        }
    }
}

impl User {
    /// Takes over what `machine` knows of the tenant, and gets the bucket.
    fn of(machine: &Machine, home: &Path) -> Self {
        let uid = rustix::process::geteuid().is_root().then_some(NOBODY);
        let profile = home.join(".config/firn");
        fs::create_dir_all(&profile).unwrap();
        for name in ["profile.json", "phrase"] {
            fs::copy(machine.path(&format!("customer/{name}")), profile.join(name)).unwrap();
        }
        fs::create_dir(home.join("work")).unwrap();
        // A directory of builds may be below one that is not everybody's.
        let programs = home.join("bin");
        fs::create_dir(&programs).unwrap();
        for name in ["firn", "firn-edge"] {
            let there = programs.join(name);
            if fs::hard_link(program(name), &there).is_err() {
                fs::copy(program(name), &there).unwrap();
            }
        }
        if let Some(uid) = uid {
            let bucket = machine.root.join("bucket");
            give_to(&bucket, uid);
            for directory in [home, &profile, &home.join("work"), &home.join(".config")] {
                chown(directory, Some(uid), Some(uid)).unwrap();
            }
            for name in ["profile.json", "phrase"] {
                chown(profile.join(name), Some(uid), Some(uid)).unwrap();
            }
        }
        let device = fs::metadata(DEVICE).unwrap().permissions().mode();
        let device_mode = (uid.is_some() && device & 0o666 != 0o666).then_some(device);
        if device_mode.is_some() {
            fs::set_permissions(DEVICE, fs::Permissions::from_mode(0o666)).unwrap();
        }
        Self {
            uid,
            home: home.to_owned(),
            programs,
            device_mode,
        }
    }

    fn work(&self) -> String {
        self.home.join("work").display().to_string()
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("HOME", &self.home)
            .env("USER", "ada")
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("FIRN_PROFILE")
            .current_dir("/")
            .stdin(Stdio::null());
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command
    }

    fn firn_mount(&self, more: &[&str]) -> Command {
        let mut command = self.command(self.programs.join("firn"));
        command.args(["mount", "files", &self.work()]).args(more);
        command
    }

    /// Mounts, and waits for the line that says so.
    #[track_caller]
    fn mounts(&self, more: &[&str]) -> Child {
        let errors = self.home.join("errors");
        let mut child = self
            .firn_mount(more)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let said = fs::read_to_string(&errors).unwrap();
        assert_eq!(
            line,
            format!("mounted on {}; Ctrl-C unmounts\n", self.work()),
            "{said}"
        );
        child
    }

    /// A mount that is refused with this exit code; what it says.
    #[track_caller]
    fn refused(&self, code: i32, more: &[&str]) -> String {
        let output = self.firn_mount(more).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        said
    }

    /// What a shell of this user's prints, who works on the mount.
    #[track_caller]
    fn shell(&self, script: &str) -> String {
        good(self.command("sh").args(["-ec", script, "sh", &self.work()]), "")
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // What a test that fails leaves; else there is nothing to take away.
        if let Some(mode) = self.device_mode {
            let _ = fs::set_permissions(DEVICE, fs::Permissions::from_mode(mode));
        }
        let work = self.home.join("work");
        let _ = Command::new("fusermount3")
            .args(["-u", "-z", "-q", "--"])
            .arg(&work)
            .stderr(Stdio::null())
            .status();
    }
}

fn is_mounted(path: &str) -> Option<String> {
    let table = fs::read_to_string("/proc/mounts").unwrap();
    table
        .lines()
        .find(|line| line.contains(&format!(" {path} ")))
        .map(str::to_owned)
}

fn interrupt(mut child: Child) -> Option<i32> {
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    wait_for("it ends", || child.try_wait().unwrap()).code()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_user_mounts_a_volume_and_an_office_serves_it_afterwards() {
    let has_fusermount = Command::new("fusermount3").arg("--version").output().is_ok();
    if !Path::new(DEVICE).exists() || !has_fusermount {
        eprintln!(
            "SKIPPED: this machine has no /dev/fuse or no fusermount3 (scripts/setup test); firn mount was not tested"
        );
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let mut machine = Machine::new(&place.path().join("firn"));
    machine.start();
    machine.sign_up();
    machine.make_volume("files");
    let user = User::of(&machine, &place.path().join("home"));
    if user.uid.is_some() {
        // The bucket, and nothing else there, is open to whoever knows its name.
        fs::set_permissions(&machine.root, fs::Permissions::from_mode(0o711)).unwrap();
    }
    let work = user.work();

    // What is wrong is said before anything is made.
    let said = good(
        user.command("sh")
            .args([
                "-c",
                "rmdir \"$1\"; \"$0\" mount files \"$1\" 2>&1; echo $?; mkdir \"$1\"",
            ])
            .arg(user.programs.join("firn"))
            .arg(&work),
        "",
    );
    assert!(
        said.contains("mkdir -p") && said.trim_end().ends_with('2'),
        "{said}"
    );
    let said = user.refused(2, &[]);
    assert!(said.contains("does not say where volume files lies"), "{said}");
    assert_eq!(machine.tell(&["edge", "list"], "").as_array().unwrap().len(), 0);

    // The first time: invited, joined, approved.
    let store = format!("file://{}", machine.path("bucket"));
    let own_phrase = user.home.join(".config/firn/phrase").display().to_string();
    let first = [
        "--store",
        &store,
        "--phrase-file",
        &own_phrase,
        "--edge",
        "laptop",
    ];
    let mut running = user.mounts(&first);
    let line = is_mounted(&work).expect("mounted");
    assert!(
        line.starts_with("firn:files ") && line.contains(" fuse.firn ") && line.contains("nosuid,nodev"),
        "{line}"
    );
    user.shell(
        "cd $1; echo 'from a workstation' > letter; mkdir drafts; echo one > drafts/1; sync letter drafts/1",
    );
    assert_eq!(user.shell("stat -c '%u' $1").trim(), user.shell("id -u").trim());
    if user.uid.is_some() {
        // Not even root's, as the kernel has it for mounts of users.
        assert!(fs::read(format!("{work}/letter")).is_err());
    }
    let said = user.refused(1, &[]);
    assert!(said.contains("by another process that is alive"), "{said}");

    // A kill: nobody hangs, and the same words mount it again, without a phrase.
    running.kill().unwrap();
    running.wait().unwrap();
    let said = user.shell("ls $1 2>&1 || true");
    assert!(said.contains("not connected"), "{said}");
    let mut running = user.mounts(&[]);
    assert_eq!(
        user.shell("cat $1/letter $1/drafts/1"),
        "from a workstation\none\n"
    );

    // Without the service it goes on from what it has.
    running.kill().unwrap();
    running.wait().unwrap();
    machine.stop();
    let mut running = user.mounts(&[]);
    let errors = fs::read_to_string(user.home.join("errors")).unwrap();
    assert!(errors.contains("going on with what this machine has"), "{errors}");
    user.shell("cat $1/letter; echo 'away from home' > $1/away; sync $1/away");
    running.kill().unwrap();
    running.wait().unwrap();
    machine.start();

    // Ctrl-C: everything is in the cloud, and the volume is anybody's.
    let running = user.mounts(&[]);
    user.shell("mv $1/drafts/1 $1/drafts/final");
    assert_eq!(interrupt(running), Some(0));
    assert_eq!(is_mounted(&work), None);

    let allowed = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if user.uid.is_some() && !allowed.lines().any(|line| line.trim() == "user_allow_other") {
        let said = user.refused(2, &["--allow-other"]);
        assert!(said.contains("/etc/fuse.conf"), "{said}");
    }

    an_edge(&machine, &machine.path("edge"));
    let mut client = tokio::time::timeout(TIMEOUT, mount(machine.nfs, firn_rig::EXPORT))
        .await
        .unwrap();
    let root = client.root.clone();
    for (name, content) in [("letter", "from a workstation\n"), ("away", "away from home\n")] {
        let file = client.lookup(&root, name.as_bytes()).await.unwrap();
        let (checksum, _) = client.checksum(&file).await.unwrap();
        assert_eq!(checksum, blake3::hash(content.as_bytes()), "{name}");
    }
    let drafts = client.lookup(&root, b"drafts").await.unwrap();
    client.lookup(&drafts, b"final").await.unwrap();

    // While the office has it nobody else does, and that is said.
    let said = user.refused(3, &[]);
    assert!(said.contains("office") || said.contains("dev"), "{said}");
    machine.stop();
}
