//! Access control lists: what one protocol sets, the others see and are held to. What an ACL of Windows says and POSIX cannot, nobody gets more by.

use super::{
    super::{ALICE, BOB, Shared, agent::Agent, raw_client::RawClient},
    NONE,
    clients::{By, Clients},
    served,
};
use crate::machine::{Cloud, Files};
use bytes::Bytes;
use firn_nfs::{
    v3::types::{ACL_ACCESS, NewAttributes, SetAclCall, StableHow, WireAcl, WireAclEntry},
    xdr::Array,
};
use serde_json::json;
use std::process::{Command, Output};

/// Whom ACLs of these tests are about, and their group.
pub const BOBS_UID: u32 = 1002;
const STAFF: u32 = 3000;

/// Tags of NFSACL.
const USER_OBJECT: u32 = 1;
const USER: u32 = 2;
const GROUP_OBJECT: u32 = 4;
const MASK: u32 = 0x10;
const OTHER: u32 = 0x20;

/// What an open over SMB asks for: to read, to write, to write another ACL.
const READ: u32 = 0x0012_0089;
const WRITE: u32 = 0x0010_0002;
const WRITE_ACL: u32 = 0x0004_0000;

/// `smbcacls`, as alice.
fn smbcacls(edge: &Shared, who: &str, name: &str, more: &[&str]) -> Output {
    let mut command = Command::new("smbcacls");
    command
        .env("HOME", &edge.directory)
        .args(["--configfile=/dev/null", "--max-protocol=SMB3", "--user", who])
        .args(["//127.0.0.1/files", name])
        .args(more);
    command.output().expect("smbcacls runs")
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

/// By NFSACL: the owner everything, bob this if it is anything, nobody else anything.
async fn set_by_nfs(all: &Clients, name: &str, of_bob: Option<u32>) {
    let entry = |tag, id, permissions| WireAclEntry { tag, id, permissions };
    let mut entries = vec![entry(USER_OBJECT, 0, 6)];
    entries.extend(of_bob.map(|permissions| entry(USER, BOBS_UID, permissions)));
    entries.push(entry(GROUP_OBJECT, 0, 0));
    entries.extend(of_bob.map(|permissions| entry(MASK, 0, permissions)));
    entries.push(entry(OTHER, 0, 0));
    let call = SetAclCall {
        file: all.handle(name).await.expect("there"),
        mask: ACL_ACCESS,
        access: WireAcl {
            count: entries.len() as u32,
            entries: Array(entries),
        },
        default: WireAcl::default(),
    };
    let set = all.nfs.client().set_acl(&call).await;
    set.expect("an answer").expect("set");
}

/// What the ACL says of bob, in the words of the protocol.
async fn entry_of_bob(edge: &Shared, all: &Clients, by: By, name: &str) -> String {
    let found = match by {
        By::Nfs => {
            let file = all.handle(name).await.expect("there");
            let acl = all.nfs.client().get_acl(&file, ACL_ACCESS).await;
            let acl = acl.expect("an answer").expect("an ACL").access;
            let of_bob = acl
                .entries
                .0
                .iter()
                .find(|entry| (entry.tag, entry.id) == (USER, BOBS_UID));
            of_bob.map(|entry| {
                let letter = |bit, letter| if entry.permissions & bit == 0 { '-' } else { letter };
                format!(
                    "user:{BOBS_UID}:{}{}{}",
                    letter(4, 'r'),
                    letter(2, 'w'),
                    letter(1, 'x')
                )
            })
        }
        By::Fuse => {
            let listed = succeeds(
                Command::new("getfacl")
                    .args(["-n", "-c", "-p"])
                    .arg(all.path(name)),
            );
            let mut words = listed.split_whitespace();
            let of_bob = format!("user:{BOBS_UID}:");
            words.find(|word| word.starts_with(&of_bob)).map(str::to_owned)
        }
        By::Smb => {
            let output = smbcacls(edge, ALICE, name, &[]);
            assert!(output.status.success(), "{}", text(&output));
            let listed = text(&output);
            let of_bob = listed
                .lines()
                .find_map(|line| line.strip_prefix("ACL:EDGE\\bob:"));
            of_bob.map(|rest| format!("bob:{rest}"))
        }
    };
    found.map_or_else(|| "nothing".into(), |entry| format!("`{entry}`"))
}

/// Bob over SMB, on the mount and over NFS, as a member of the group or of none.
struct Bob {
    smb: Agent,
    nfs: Files,
}

impl Bob {
    async fn new(edge: &Shared) -> Self {
        Self {
            smb: Agent::raw(edge, BOB),
            nfs: edge.edge.client_in(BOBS_UID, vec![STAFF]).await,
        }
    }

    /// Whether the file can be read, and written.
    async fn may(&mut self, all: &Clients, by: By, name: &str) -> (bool, bool) {
        match by {
            By::Nfs => {
                let file = all.handle(name).await.expect("there");
                let read = self.nfs.client().read(&file, 0, 10).await.expect("an answer");
                let data = Bytes::from_static(b"f");
                let written = self.nfs.client().write(&file, 0, data, StableHow::FileSync).await;
                (read.is_ok(), written.expect("an answer").is_ok())
            }
            By::Fuse => {
                let path = all.path(name);
                let run = |command: &str| {
                    let mut child = Command::new("setpriv");
                    child
                        .args(["--reuid", &BOBS_UID.to_string(), "--regid", &BOBS_UID.to_string()])
                        .args(["--groups", &STAFF.to_string(), "sh", "-c", command, "sh"])
                        .arg(&path);
                    child.output().expect("it runs").status.success()
                };
                (
                    run("cat < \"$1\""),
                    run("printf f | dd conv=notrunc status=none of=\"$1\""),
                )
            }
            By::Smb => (self.opens(name, READ), self.opens(name, WRITE)),
        }
    }

    fn opens(&mut self, name: &str, access: u32) -> bool {
        match self.smb.call(json!(["open", name, access])) {
            Ok(handle) => {
                self.smb.call(json!(["close", handle])).expect("closed");
                true
            }
            Err(why) => {
                assert_eq!(why, "0xc0000022", "NT_STATUS_ACCESS_DENIED");
                false
            }
        }
    }

    /// Whether there is a way over SMB to get more than one has.
    fn may_help_themselves(&mut self, edge: &Shared, name: &str) -> bool {
        let add = ["--add", "ACL:EDGE\\bob:ALLOWED/0x0/FULL"];
        self.opens(name, WRITE_ACL) || smbcacls(edge, BOB, name, &add).status.success()
    }
}

/// Lets bob read.
pub async fn granted(edge: &Shared, all: &mut Clients, writer: By, reader: By, name: &str) -> String {
    private(all, name).await;
    match writer {
        By::Nfs => set_by_nfs(all, name, Some(4)).await,
        By::Fuse => {
            let entry = format!("u:{BOBS_UID}:r");
            succeeds(Command::new("setfacl").args(["-m", &entry]).arg(all.path(name)));
        }
        By::Smb => {
            let output = smbcacls(edge, ALICE, name, &["--add", "ACL:EDGE\\bob:ALLOWED/0x0/R"]);
            assert!(output.status.success(), "{}", text(&output));
        }
    }
    all.settled(writer).await;
    assert_eq!(Bob::new(edge).await.may(all, reader, name).await, (true, false));
    entry_of_bob(edge, all, reader, name).await
}

/// Takes away what an ACL of Windows gave.
pub async fn revoked(edge: &Shared, all: &mut Clients, writer: By, reader: By, name: &str) -> String {
    let full = given_by_smb(edge, all, name).await;
    match writer {
        By::Nfs => set_by_nfs(all, name, None).await,
        By::Fuse => {
            succeeds(Command::new("setfacl").arg("-b").arg(all.path(name)));
        }
        By::Smb => {
            let output = smbcacls(edge, ALICE, name, &["--delete", full]);
            assert!(output.status.success(), "{}", text(&output));
        }
    }
    all.settled(writer).await;
    let entry = entry_of_bob(edge, all, reader, name).await;
    if entry != "nothing" {
        return format!("WRONG: {entry}");
    }
    refused(edge, all, reader, name).await
}

/// Narrows by the mode what an ACL of Windows gave.
pub async fn narrowed(edge: &Shared, all: &mut Clients, writer: By, reader: By, name: &str) -> String {
    if writer == By::Smb {
        return NONE.into();
    }
    given_by_smb(edge, all, name).await;
    if writer == By::Nfs {
        let attributes = NewAttributes {
            mode: Some(0o600),
            ..NewAttributes::default()
        };
        let handle = all.handle(name).await.expect("there");
        let set = all.nfs.client().set_attributes(&handle, attributes, None).await;
        set.expect("an answer").expect("set");
    } else {
        all.set_mode(name, 0o600).await;
    }
    refused(edge, all, reader, name).await
}

/// A file of alice's that nobody else may use.
async fn private(all: &mut Clients, name: &str) {
    all.put(By::Fuse, name, b"first").await.expect("written");
    all.set_mode(name, 0o600).await;
}

/// Full control for bob, by an ACL of Windows; the entry.
async fn given_by_smb(edge: &Shared, all: &mut Clients, name: &str) -> &'static str {
    private(all, name).await;
    let full = "ACL:EDGE\\bob:ALLOWED/0x0/FULL";
    let output = smbcacls(edge, ALICE, name, &["--add", full]);
    assert!(output.status.success(), "{}", text(&output));
    all.settled(By::Smb).await;
    let mut bob = Bob::new(edge).await;
    for by in super::ALL {
        assert_eq!(bob.may(all, by, name).await, (true, true), "{by}");
    }
    assert!(bob.opens(name, WRITE_ACL), "an ACL of Windows is there");
    full
}

async fn refused(edge: &Shared, all: &mut Clients, reader: By, name: &str) -> String {
    let mut bob = Bob::new(edge).await;
    let may = bob.may(all, reader, name).await;
    let more = reader == By::Smb && bob.may_help_themselves(edge, name);
    match (may, more) {
        ((false, false), false) => "bob is refused".into(),
        other => format!("WRONG: bob may {other:?}"),
    }
}

/// ACLs of Windows beyond what POSIX can say; `{A}`, `{B}` and `{S}` stand for alice, bob and the group that bob is in. By them bob may read, and
/// write, as Windows reads them. Who may execute may read over NFS (RFC 1813 §4.4), so where reading is denied executing is.
const BEYOND: [(&str, &str, (bool, bool)); 9] = [
    (
        "a user is denied",
        "D:P(D;;0x2;;;{B})(A;;0x1f01ff;;;WD)",
        (true, false),
    ),
    (
        "a group is denied what its member is allowed",
        "D:P(D;;0x2;;;{S})(A;;0x1f01ff;;;{B})(A;;0x1f01ff;;;{A})",
        (true, false),
    ),
    (
        "everybody is denied",
        "D:P(D;;0x21;;;WD)(A;;0x1f01ff;;;{B})(A;;0x1f01ff;;;{A})",
        (false, true),
    ),
    (
        "only the owner is in it",
        "D:P(A;;0x1f01ff;;;{A})",
        (false, false),
    ),
    (
        "to write is not to read",
        "D:P(A;;0x120002;;;{B})(A;;0x1f01ff;;;{A})",
        (false, true),
    ),
    (EMPTY, "D:P", (false, false)),
    (
        "only what would be made in it is meant",
        "D:P(A;OICIIO;0x1f01ff;;;{B})(A;;0x1f01ff;;;{A})",
        (false, false),
    ),
    (
        "an unknown is allowed, and who creates",
        "D:P(A;;0x1f01ff;;;S-1-5-21-1-2-3-4567)(A;OICIIO;0x1f01ff;;;CO)(A;;0x1f01ff;;;{A})",
        (false, false),
    ),
    (
        DISORDERED,
        "D:P(A;;0x120089;;;WD)(D;;0x21;;;{B})(A;;0x1f01ff;;;{A})",
        (true, false),
    ),
];

/// Which no dialog of Windows writes: Samba keeps them for SMB, and leaves the POSIX ACL as it was.
const UNMAPPED: [&str; 2] = [DISORDERED, EMPTY];
const DISORDERED: &str = "a user is denied behind what everybody is allowed";
const EMPTY: &str = "nobody is in it";

/// By whom a file on the mount is owned, as SMB says: user and group.
fn owners(all: &mut Clients, name: &str) -> (String, String) {
    let sddl = all.smb.call(json!(["acl", name])).expect("an ACL");
    let sddl = sddl.as_str().expect("text");
    let (owner, rest) = sddl
        .strip_prefix("O:")
        .and_then(|rest| rest.split_once("G:"))
        .expect("an owner");
    let group = rest.split_once("D:").map_or(rest, |(group, _)| group);
    (owner.into(), group.into())
}

#[tokio::test]
async fn an_acl_of_windows_that_posix_cannot_express_gives_nobody_more_than_it_says() {
    let cloud = Cloud::new();
    let Some((mut edge, mut all, _kept)) = served(&cloud).await else {
        return;
    };
    let mut bob = Bob::new(&edge).await;
    all.put(By::Fuse, "whose", b"").await.expect("written");
    let (alice, _) = owners(&mut all, "whose");
    std::os::unix::fs::chown(all.path("whose"), Some(BOBS_UID), Some(STAFF)).expect("bob's");
    all.settled(By::Fuse).await;
    let (of_bob, staff) = owners(&mut all, "whose");
    assert!(
        alice != of_bob && staff.starts_with("S-1-"),
        "{alice} {of_bob} {staff}"
    );
    for (number, (words, sddl, meant)) in BEYOND.into_iter().enumerate() {
        let name = format!("file-{number}");
        all.put(By::Fuse, &name, b"first").await.expect("written");
        // Everybody may everything before, so that what is refused is refused by the ACL.
        for by in super::ALL {
            assert_eq!(bob.may(&all, by, &name).await, (true, true), "{by}");
        }
        let sddl = sddl
            .replace("{A}", &alice)
            .replace("{B}", &of_bob)
            .replace("{S}", &staff);
        let mut setting = RawClient::new(&edge, &name, &sddl);
        assert_eq!(setting.says(), "set", "{words}");
        let kept = setting.says();
        setting.end();
        all.settled(By::Smb).await;
        let shown = succeeds(
            Command::new("getfacl")
                .args(["-n", "-c", "-p"])
                .arg(all.path(&name)),
        );
        println!("{words}: {kept}\n{shown}");
        for by in super::ALL {
            let may = bob.may(&all, by, &name).await;
            println!("  {by}: {may:?} of {meant:?}");
            if UNMAPPED.contains(&words) && by != By::Smb {
                assert_eq!(may, (true, true), "{by}: as it was");
                continue;
            }
            let more = may.0 && !meant.0 || may.1 && !meant.1;
            assert!(!more, "{words}: over {by} bob may {may:?}, meant is {meant:?}");
            // It may be less where POSIX has no words for it; over SMB it is what it says.
            assert!(by != By::Smb || may == meant, "{words}: {may:?}");
        }
        let is_unmapped = sddl.contains("4567");
        assert!(!is_unmapped || kept.contains("4567"), "kept for Windows: {kept}");
        // The owner is never shut out.
        assert_eq!(
            all.get(By::Nfs, &name).await.map(|data| data.len()),
            Ok(5),
            "{words}"
        );
    }
    edge.edge.stop();
    assert_eq!(edge.edge.log().matches("ERROR").count(), 0, "{}", edge.edge.log());
}
