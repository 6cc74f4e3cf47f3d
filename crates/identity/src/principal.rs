//! Principals: a member, an API key, an edge or a node, each in a role.

use crate::{EdgeId, KeyId, MemberId, NodeId, ParseIdError};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// What somebody may do within a tenant; the policy says what each role is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Everything, including closing the tenant.
    Owner,
    /// Everything but what concerns owners and closing the tenant.
    Admin,
    /// Volumes, edges, disks and nodes.
    Operator,
    /// Usage, invoices, budgets.
    Billing,
    /// Looks at everything that is no secret, changes nothing.
    Reader,
    /// An edge proxy, by its certificate.
    Edge,
    /// A blockd node, by its certificate.
    Node,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Owner,
        Self::Admin,
        Self::Operator,
        Self::Billing,
        Self::Reader,
        Self::Edge,
        Self::Node,
    ];

    /// Whether somebody of this role may give another: owners any, admins any but owner, the others their own and reader.
    /// Roles of machines are given by nobody.
    ///
    /// ```text
    /// owner > admin > operator, billing > reader
    /// ```
    pub fn may_grant(self, other: Self) -> bool {
        match self {
            Self::Owner => !matches!(other, Self::Edge | Self::Node),
            Self::Admin => !matches!(other, Self::Owner | Self::Edge | Self::Node),
            Self::Operator => matches!(other, Self::Operator | Self::Reader),
            Self::Billing => matches!(other, Self::Billing | Self::Reader),
            Self::Reader => other == Self::Reader,
            Self::Edge | Self::Node => false,
        }
    }

    /// The role of somebody who is limited to both, in the order of [`Role::may_grant`]: the lower one, and where neither
    /// includes the other, reader. Nothing if one of them is a machine's.
    pub fn meet(self, other: Self) -> Option<Self> {
        if [self, other]
            .iter()
            .any(|role| matches!(role, Self::Edge | Self::Node))
        {
            None
        } else if self.may_grant(other) {
            Some(other)
        } else if other.may_grant(self) {
            Some(self)
        } else {
            Some(Self::Reader)
        }
    }

    /// Its name, as tokens and policies write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Billing => "billing",
            Self::Reader => "reader",
            Self::Edge => "edge",
            Self::Node => "node",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Who acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// A person.
    Member(MemberId),
    /// A program with an API key.
    Key(KeyId),
    /// An edge proxy.
    Edge(EdgeId),
    /// A blockd node.
    Node(NodeId),
}

impl fmt::Display for Principal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(id) => id.fmt(formatter),
            Self::Key(id) => id.fmt(formatter),
            Self::Edge(id) => id.fmt(formatter),
            Self::Node(id) => id.fmt(formatter),
        }
    }
}

impl FromStr for Principal {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        match text.split_once('_').map(|(prefix, _)| prefix) {
            Some(MemberId::PREFIX) => text.parse().map(Self::Member),
            Some(KeyId::PREFIX) => text.parse().map(Self::Key),
            Some(EdgeId::PREFIX) => text.parse().map(Self::Edge),
            Some(NodeId::PREFIX) => text.parse().map(Self::Node),
            Some(_) | None => Err(ParseIdError {
                prefix: "mem, key, edg or nod",
            }),
        }
    }
}

impl Serialize for Principal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}
