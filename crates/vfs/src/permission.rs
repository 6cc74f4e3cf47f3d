//! Permission checks: POSIX modes and access control lists (IEEE 1003.1e draft 17, as Linux implements it).

use crate::Attributes;

/// On whose behalf a call is made, after the export's squashing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// The superuser, to whom mode bits do not apply.
    pub fn root() -> Self {
        Self::default()
    }

    /// Whether this is the superuser.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is a member of `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Whom an ACL entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AclTag {
    /// The owner.
    UserObject,
    /// A named user.
    User(u32),
    /// The owning group.
    GroupObject,
    /// A named group.
    Group(u32),
    /// The upper bound for everyone but owner and others.
    Mask,
    /// Everyone else.
    Other,
}

/// One line of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AclEntry {
    /// Whom it is about.
    pub tag: AclTag,
    /// Read 4, write 2, execute 1.
    pub permissions: u8,
}

/// An access or default ACL, entries sorted by tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Acl {
    /// The lines; empty means: no ACL, the mode decides.
    pub entries: Vec<AclEntry>,
}

/// The permissions (read 4, write 2, execute 1) that `credentials` have on a file with `attributes` and access ACL `acl`.
pub fn access(attributes: &Attributes, acl: Option<&Acl>, credentials: &Credentials) -> u8 {
    let mode = attributes.mode;
    if credentials.is_root() {
        // Root reads and writes anything, and executes what anybody may execute (directories always).
        let executable = attributes.kind == crate::FileKind::Directory || mode & 0o111 != 0;
        return if executable { 7 } else { 6 };
    }
    if credentials.uid == attributes.uid {
        return (mode >> 6 & 7) as u8;
    }
    match acl {
        Some(acl) if !acl.entries.is_empty() => access_by_acl(attributes, acl, credentials),
        _ if credentials.in_group(attributes.gid) => (mode >> 3 & 7) as u8,
        _ => (mode & 7) as u8,
    }
}

fn access_by_acl(attributes: &Attributes, acl: &Acl, credentials: &Credentials) -> u8 {
    let find = |tag: AclTag| {
        acl.entries
            .iter()
            .find(|entry| entry.tag == tag)
            .map(|entry| entry.permissions)
    };
    let mask = find(AclTag::Mask).unwrap_or(7);
    if let Some(permissions) = find(AclTag::User(credentials.uid)) {
        return permissions & mask;
    }
    // The draft grants a request if any one matching group grants it; the union answers that for single-bit requests and
    // is what `access` needs. A caller that asks for several bits at once checks them against each entry through the union.
    let mut matched = false;
    let mut granted = 0;
    for entry in &acl.entries {
        let applies = match entry.tag {
            AclTag::GroupObject => credentials.in_group(attributes.gid),
            AclTag::Group(gid) => credentials.in_group(gid),
            AclTag::UserObject | AclTag::User(_) | AclTag::Mask | AclTag::Other => false,
        };
        if applies {
            matched = true;
            granted |= entry.permissions;
        }
    }
    if matched {
        granted & mask
    } else {
        find(AclTag::Other).unwrap_or(0)
    }
}
