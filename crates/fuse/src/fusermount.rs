//! `fusermount3`: the set-uid program of Linux distributions by which a user without CAP_SYS_ADMIN mounts and unmounts.
//!
//! ```text
//! we ── socket pair ── fusermount3 (its standard input, named by _FUSE_COMMFD) ── mount(2)
//!    ◀── SCM_RIGHTS: the open /dev/fuse ──
//! ```
//!
//! It decides who may: the directory must be the user's, `allow_other` needs `user_allow_other` in /etc/fuse.conf, and mounts are `nosuid` and
//! `nodev`. What it refuses it says on standard error, in words for people. Source: mount.fuse3(8), fusermount3(1), and what strace shows of it.

use crate::device::MountError;
use rustix::{
    fs::OFlags,
    net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType},
};
use std::{
    io::{self, ErrorKind, IoSliceMut},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Stdio},
};

const PROGRAM: &str = "fusermount3";
/// Its standard input.
const SOCKET: (&str, &str) = ("_FUSE_COMMFD", "0");
/// Of what it says when it refuses.
const SAID_BYTES_MAX: usize = 1000;

/// Mounts on `path`; the device is to be read without blocking. Blocks.
pub(crate) fn mount(
    path: &Path,
    source: &str,
    read_only: bool,
    allow_other: bool,
) -> Result<OwnedFd, MountError> {
    let failed = |source: io::Error| MountError::Failed {
        path: path.to_owned(),
        source,
    };
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| failed(error.into()))?;
    let mut command = Command::new(PROGRAM);
    command
        .args(["-o", &options(source, read_only, allow_other), "--"])
        .arg(path)
        .env(SOCKET.0, SOCKET.1)
        .stdin(theirs);
    let refusal = run(&mut command).map_err(|error| match error.kind() {
        ErrorKind::NotFound => MountError::NoHelper {
            path: path.to_owned(),
        },
        _ => failed(error),
    })?;
    // The socket's other end: from here on nobody has it, so that nothing is waited for.
    drop(command);
    if let Some(said) = refusal {
        return Err(MountError::Refused {
            path: path.to_owned(),
            said,
        });
    }
    let device = receive(&ours).map_err(failed)?;
    let flags = rustix::fs::fcntl_getfl(&device).map_err(|error| failed(error.into()))?;
    rustix::fs::fcntl_setfl(&device, flags | OFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
    Ok(device)
}

/// Unmounts, or with `lazily` only takes the mount away from new accesses. Blocks.
pub(crate) fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    command
        .args(if lazily { &["-u", "-z"][..] } else { &["-u"] })
        .arg("--")
        .arg(path)
        .stdin(Stdio::null());
    match run(&mut command)? {
        None => Ok(()),
        Some(said) => Err(io::Error::other(said)),
    }
}

fn options(source: &str, read_only: bool, allow_other: bool) -> String {
    let mut name = String::new();
    for letter in source.chars() {
        if matches!(letter, ',' | '\\') {
            name.push('\\');
        }
        name.push(letter);
    }
    let mut options = format!("fsname={name},subtype=firn,default_permissions");
    for (is_wanted, option) in [(read_only, ",ro"), (allow_other, ",allow_other")] {
        if is_wanted {
            options.push_str(option);
        }
    }
    options
}

/// Runs it to its end; what it said if it refused.
fn run(command: &mut Command) -> io::Result<Option<String>> {
    let output = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?
        .wait_with_output()?;
    if output.status.success() {
        return Ok(None);
    }
    let said = &output.stderr[..output.stderr.len().min(SAID_BYTES_MAX)];
    let said = String::from_utf8_lossy(said);
    Ok(Some(match said.trim() {
        "" => format!("{PROGRAM} ended with {}", output.status),
        said => said.replace('\n', "; "),
    }))
}

/// The descriptor that came over the socket.
fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    device.ok_or_else(|| io::Error::other(format!("{PROGRAM} mounted, and did not give the device")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volumes_name_is_no_option() {
        assert_eq!(
            options(r"firn:a,b\c", true, true),
            r"fsname=firn:a\,b\\c,subtype=firn,default_permissions,ro,allow_other"
        );
    }
}
