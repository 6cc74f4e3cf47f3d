//! The verdict of NFS: the export, the rule for the client's network, squash, and the walk.

use super::{
    Wish,
    explanation::{Explanation, Refusal},
    walk::Walk,
    who::Who,
};
use crate::volumes::Volumes;
use firn_nfs::{
    Admission, ClientRule, Export, Squash,
    rpc::{Credential, Peer, Transport},
};
use firn_vfs::Credentials;

/// The verdict of NFS.
pub async fn explain(volumes: &Volumes, who: &Who, wish: &Wish) -> Explanation {
    let title = format!(
        "over NFS: {} {} from {}",
        wish.access.word(),
        wish.path,
        wish.from
    );
    let mut out = Explanation::new("nfs", title);
    let Some((export, rest)) = volumes.nfs.exports().find(&wish.path) else {
        let all: Vec<_> = volumes.nfs.exports().iter().map(|export| export.path()).collect();
        let text = format!(
            "no export has this path; there are {}. The whole path is wanted, beginning with the export",
            all.join(", ")
        );
        out.refuses("export", text, Refusal::NotFound);
        return out;
    };
    let Some(rule) = admitted(&mut out, export, wish) else {
        return out;
    };
    let credentials = squashed(&mut out, rule, who);
    let Some(vfs) = export.vfs() else {
        let text = format!(
            "its volume is not served now; clients of {} wait until it is",
            export.path()
        );
        out.refuses("volume", text, Refusal::Later);
        return out;
    };
    let read_only = rule.read_only.then(|| {
        format!(
            "the export {} is read-only for {}; a client that asked by ACCESS before shows EACCES",
            export.path(),
            rule.network
        )
    });
    Walk {
        vfs: &*vfs,
        path: rest,
        caller: &credentials,
        access: wish.access,
        read_only,
    }
    .explain(&mut out)
    .await;
    out
}

/// The rule by which the client may use the export.
fn admitted<'a>(out: &mut Explanation, export: &'a Export, wish: &Wish) -> Option<&'a ClientRule> {
    let peer = Peer {
        address: wish.from,
        port: wish.port,
        transport: Transport::Tcp,
    };
    out.passes("export", export.path());
    match export.admission(&peer) {
        Admission::Admitted(rule) => {
            let rights = if rule.read_only {
                "only reads"
            } else {
                "reads and writes"
            };
            let text = format!(
                "{} {rights}; the narrowest of {} that has {}",
                rule.network,
                networks(export),
                wish.from
            );
            out.passes("client rule", text);
            Some(rule)
        }
        Admission::UnprivilegedPort(rule) => {
            let text = format!(
                "{} must call from a port below 1024 (require_privileged_port), not from {}",
                rule.network, wish.port
            );
            out.refuses("client rule", text, Refusal::Denied);
            None
        }
        Admission::NoRule => {
            let text = format!("{} is in none of {}", wish.from, networks(export));
            out.refuses("client rule", text, Refusal::Denied);
            None
        }
    }
}

fn networks(export: &Export) -> String {
    let all: Vec<_> = export
        .rules()
        .iter()
        .map(|rule| rule.network.to_string())
        .collect();
    all.join(", ")
}

/// On whose behalf the calls are made.
fn squashed(out: &mut Explanation, rule: &ClientRule, who: &Who) -> Credentials {
    let sent = &who.sent;
    let credential = Credential::sys("client", sent.uid, sent.gid, sent.groups.clone());
    let squashed = rule.credentials(&credential);
    let plain = Credentials {
        uid: sent.uid,
        gid: sent.gid,
        groups: sent.groups.clone(),
    };
    let kind = match rule.squash {
        Squash::None => "none",
        Squash::Root => "root",
        Squash::All => "all",
    };
    let text = match plain == squashed {
        true => format!(
            "{}, as the client sends it; squash = {kind:?} changes nothing",
            words(&squashed)
        ),
        false => format!(
            "{}, made of {} by squash = {kind:?}",
            words(&squashed),
            words(&plain)
        ),
    };
    out.passes("caller", text);
    if !sent.left_out.is_empty() {
        let left_out: Vec<String> = sent.left_out.iter().map(u32::to_string).collect();
        let text = format!(
            "AUTH_SYS carries {} groups, so these are not sent: {}",
            sent.groups.len(),
            left_out.join(", ")
        );
        out.says("", text);
    }
    squashed
}

/// Somebody's numbers.
pub fn words(credentials: &Credentials) -> String {
    let groups: Vec<String> = credentials.groups.iter().map(u32::to_string).collect();
    let Credentials { uid, gid, .. } = credentials;
    match groups.is_empty() {
        true => format!("uid {uid}, gid {gid}"),
        false => format!("uid {uid}, gid {gid}, groups {}", groups.join(" ")),
    }
}
