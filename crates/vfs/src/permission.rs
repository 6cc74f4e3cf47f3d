//! Whoever asks, and access control lists (IEEE 1003.1e draft 17, as Linux implements it); who gets what by them is in [`crate::rules`].

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
