//! The verdict of NFS: the export, the rule for the client's network, squash, and the walk; again for each export behind a junction.

use super::{
    Access, Wish,
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
use std::sync::Arc;

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
    let parts: Vec<_> = rest.split('/').filter(|part| !part.is_empty()).collect();
    let (mut export, mut parts) = (export, &parts[..]);
    // Exports and their junctions are trees, so this ends.
    while let Some((next, behind)) = across(volumes, &mut out, (who, wish), (export, parts)).await {
        (export, parts) = (next, behind);
    }
    walk(&mut out, (who, wish), export, &parts.join("/"), wish.access).await;
    out
}

/// Explains the way to the first junction on the path, and gives the export that is shown there with the rest of the path.
async fn across<'a, 'p>(
    volumes: &'a Volumes,
    out: &mut Explanation,
    asked: (&Who, &Wish),
    (export, parts): (&Arc<Export>, &'p [&'p str]),
) -> Option<(&'a Arc<Export>, &'p [&'p str])> {
    // What keeps it from being known is told by the walk.
    let crossing = volumes.nfs.exports().junction_on(export, parts).await.ok()?;
    let (junction, names) = crossing?;
    let (before, behind) = parts.split_at(names);
    let (_, directories) = before.split_last()?;
    walk(out, asked, export, &directories.join("/"), Access::Execute).await;
    let text = format!(
        "{} of {} shows {}",
        junction.place(),
        export.path(),
        junction.target().path()
    );
    out.passes("junction", text);
    Some((junction.target(), behind))
}

/// The rules of one export, and the walk in it.
async fn walk(
    out: &mut Explanation,
    (who, wish): (&Who, &Wish),
    export: &Export,
    path: &str,
    access: Access,
) {
    let Some(rule) = admitted(out, export, wish) else {
        return;
    };
    let credentials = squashed(out, rule, who);
    let Some(vfs) = export.vfs() else {
        let text = format!(
            "its volume is not served now; clients of {} wait until it is",
            export.path()
        );
        out.refuses("volume", text, Refusal::Later);
        return;
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
        path,
        caller: &credentials,
        access,
        read_only,
    }
    .explain(out)
    .await;
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
