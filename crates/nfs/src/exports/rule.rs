//! Client rules: what the clients of a network may do with an export, and as whom.

use crate::{network::ClientNetwork, rpc::Credential};
use firn_vfs::Credentials;

/// The user and group that Linux gives to nobody.
pub const NOBODY: u32 = 65_534;

/// Which users of a client are turned into the anonymous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Squash {
    /// None: a client's root is root here.
    None,
    /// Root, as user and in groups. What every ordinary export wants.
    #[default]
    Root,
    /// Everyone.
    All,
}

/// What the clients of a network may do with an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRule {
    /// Whom the rule is about.
    pub network: ClientNetwork,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Who becomes anonymous.
    pub squash: Squash,
    /// The anonymous user.
    pub anonymous_uid: u32,
    /// The anonymous group.
    pub anonymous_gid: u32,
    /// Whether calls must come from a port below 1024, which on a trusted client only the kernel and root can use.
    pub require_privileged_port: bool,
}

impl ClientRule {
    /// Read and write for `network`, root squashed, privileged port required: what Linux exports by default.
    pub fn read_write(network: ClientNetwork) -> Self {
        Self {
            network,
            read_only: false,
            squash: Squash::Root,
            anonymous_uid: NOBODY,
            anonymous_gid: NOBODY,
            require_privileged_port: true,
        }
    }

    /// On whose behalf a call with `credential` is made.
    pub fn credentials(&self, credential: &Credential) -> Credentials {
        let anonymous = Credentials {
            uid: self.anonymous_uid,
            gid: self.anonymous_gid,
            groups: Vec::new(),
        };
        let Credential::Sys(sys) = credential else {
            // Who does not say who he is, is nobody.
            return anonymous;
        };
        match self.squash {
            Squash::All => anonymous,
            Squash::None => Credentials {
                uid: sys.uid,
                gid: sys.gid,
                groups: sys.groups.0.clone(),
            },
            Squash::Root => {
                let group = |gid: u32| if gid == 0 { self.anonymous_gid } else { gid };
                Credentials {
                    uid: if sys.uid == 0 { self.anonymous_uid } else { sys.uid },
                    gid: group(sys.gid),
                    groups: sys.groups.0.iter().copied().map(group).collect(),
                }
            }
        }
    }
}

/// What an export's rules say to a client: of those whose network contains its address, the narrowest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission<'a> {
    /// By this rule.
    Admitted(&'a ClientRule),
    /// This rule wants a port below 1024, and the call comes from another.
    UnprivilegedPort(&'a ClientRule),
    /// No rule's network has the address.
    NoRule,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(squash: Squash) -> ClientRule {
        ClientRule {
            squash,
            anonymous_uid: 99,
            anonymous_gid: 98,
            ..ClientRule::read_write(ClientNetwork::Everyone)
        }
    }

    fn squashed(squash: Squash, uid: u32, gid: u32, groups: Vec<u32>) -> (u32, u32, Vec<u32>) {
        let credentials = rule(squash).credentials(&Credential::sys("client", uid, gid, groups));
        (credentials.uid, credentials.gid, credentials.groups)
    }

    #[test]
    fn root_squash_takes_root_out_of_user_and_groups_and_leaves_others() {
        assert_eq!(squashed(Squash::Root, 0, 0, vec![0, 5]), (99, 98, vec![98, 5]));
        assert_eq!(squashed(Squash::Root, 7, 0, vec![0]), (7, 98, vec![98]));
        assert_eq!(squashed(Squash::Root, 7, 8, vec![9]), (7, 8, vec![9]));
    }

    #[test]
    fn all_squash_makes_everyone_anonymous_and_no_squash_nobody() {
        assert_eq!(squashed(Squash::All, 7, 8, vec![9]), (99, 98, vec![]));
        assert_eq!(squashed(Squash::None, 0, 0, vec![0]), (0, 0, vec![0]));
    }

    #[test]
    fn a_caller_without_credentials_is_anonymous_even_where_root_is_not_squashed() {
        let credentials = rule(Squash::None).credentials(&Credential::None);
        assert_eq!((credentials.uid, credentials.gid), (99, 98));
    }
}
