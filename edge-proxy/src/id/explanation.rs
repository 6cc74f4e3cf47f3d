//! An explanation: the steps that lead to a verdict, as they are sent and as people read them.

use super::Question;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// What the edge says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// All tables that name the user.
    pub accounts: Vec<AccountLine>,
    /// What could not be found out, or does not fit.
    pub notes: Vec<String>,
    /// One for each protocol.
    pub explanations: Vec<Explanation>,
}

/// A user in a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountLine {
    /// `passwd`, `smb`, `domain`, or `given` if it is in no table.
    pub table: String,
    pub name: Option<String>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<GroupLine>,
}

/// A further group of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLine {
    pub gid: u32,
    pub name: Option<String>,
}

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Passes,
    Refuses,
    /// It decides nothing and explains something.
    Says,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What is looked at: `export`, `caller`, a directory's path, and so on.
    pub of: String,
    pub text: String,
    pub verdict: Verdict,
}

/// A verdict with its steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// `nfs` or `smb`.
    pub protocol: String,
    /// What is asked, in words.
    pub title: String,
    pub steps: Vec<Step>,
    pub is_allowed: bool,
    /// Of the first step that refuses.
    pub cause: Option<String>,
    /// What the client is told, as its programs show it.
    pub error: Option<String>,
}

/// Why a step refuses, by the error that POSIX has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// EACCES.
    Denied,
    /// EPERM.
    NotOwner,
    /// EROFS.
    ReadOnly,
    /// ENOENT.
    NotFound,
    /// ENOTDIR.
    NotDirectory,
    /// Who asks is nobody's account.
    Unknown,
    /// It is answered "try again later", or cannot be looked at.
    Later,
}

impl Refusal {
    fn error(self, protocol: &str) -> &'static str {
        match (protocol, self) {
            ("smb", Self::Denied | Self::NotOwner | Self::ReadOnly) => "NT_STATUS_ACCESS_DENIED",
            ("smb", Self::NotFound) => "NT_STATUS_OBJECT_NAME_NOT_FOUND",
            ("smb", Self::NotDirectory) => "NT_STATUS_OBJECT_PATH_NOT_FOUND",
            ("smb", Self::Unknown) => "NT_STATUS_LOGON_FAILURE",
            ("smb", Self::Later) => "NT_STATUS_CONNECTION_REFUSED",
            (_, Self::Denied | Self::Unknown) => "EACCES",
            (_, Self::NotOwner) => "EPERM",
            (_, Self::ReadOnly) => "EROFS",
            (_, Self::NotFound) => "ENOENT",
            (_, Self::NotDirectory) => "ENOTDIR",
            (_, Self::Later) => "it waits",
        }
    }
}

impl Explanation {
    pub fn new(protocol: &str, title: String) -> Self {
        Self {
            protocol: protocol.into(),
            title,
            steps: Vec::new(),
            is_allowed: true,
            cause: None,
            error: None,
        }
    }

    fn step(&mut self, of: impl Into<String>, text: impl Into<String>, verdict: Verdict) {
        self.steps.push(Step {
            of: of.into(),
            text: text.into(),
            verdict,
        });
    }

    pub fn passes(&mut self, of: impl Into<String>, text: impl Into<String>) {
        self.step(of, text, Verdict::Passes);
    }

    pub fn says(&mut self, of: impl Into<String>, text: impl Into<String>) {
        self.step(of, text, Verdict::Says);
    }

    /// The first of these is the cause.
    pub fn refuses(&mut self, of: &str, text: impl Into<String>, refusal: Refusal) {
        let text = text.into();
        if self.is_allowed {
            self.is_allowed = false;
            self.cause = Some(format!("{of}: {text}"));
            self.error = Some(refusal.error(&self.protocol).into());
        }
        self.step(of, text, Verdict::Refuses);
    }
}

impl AccountLine {
    fn text(&self) -> String {
        let group = |group: &GroupLine| match &group.name {
            Some(name) => format!("{} ({name})", group.gid),
            None => group.gid.to_string(),
        };
        let groups: Vec<String> = self.groups.iter().map(group).collect();
        let table = match self.table.as_str() {
            "passwd" => "/etc/passwd and /etc/group of this machine",
            "smb" => "SMB's table of users",
            "domain" => "the domain, by winbind",
            _ => "no table here",
        };
        let name = self.name.as_deref().unwrap_or("(no name)");
        let further = match groups.is_empty() {
            true => "no further groups".to_owned(),
            false => format!("groups {}", groups.join(", ")),
        };
        format!(
            "{name}: uid {}, gid {}, {further}; of {table}",
            self.uid, self.gid
        )
    }
}

impl Answer {
    /// For people.
    pub fn text(&self, question: &Question) -> String {
        let mut out = String::new();
        for account in &self.accounts {
            let _ = writeln!(out, "{}", account.text());
        }
        if self.accounts.is_empty() {
            let _ = writeln!(out, "{}: of no table here", question.user);
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        for explanation in &self.explanations {
            let _ = write!(out, "\n{}", explanation.text());
        }
        out
    }
}

impl Explanation {
    fn text(&self) -> String {
        let mut out = format!("{}\n", self.title);
        let width = self
            .steps
            .iter()
            .map(|step| step.of.chars().count())
            .max()
            .unwrap_or(0);
        for step in &self.steps {
            let mark = match step.verdict {
                Verdict::Passes => "ok",
                Verdict::Refuses => "REFUSES",
                Verdict::Says => "",
            };
            let _ = writeln!(out, "  {mark:<8} {:<width$}  {}", step.of, step.text);
        }
        let _ = match (&self.cause, &self.error) {
            (Some(cause), Some(error)) => writeln!(out, "refused ({error}), because of {cause}"),
            _ => writeln!(out, "allowed"),
        };
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_is_the_cause_and_the_others_are_told() {
        let mut explanation = Explanation::new("nfs", "over NFS: write /e/f from 10.0.0.7".into());
        explanation.passes("export", "/e");
        explanation.refuses("client rule", "10.0.0.0/8 only reads", Refusal::ReadOnly);
        explanation.says("file", "a note");
        explanation.refuses("/f", "others' bits r-- of the mode", Refusal::Denied);
        assert_eq!(
            explanation.text(),
            "over NFS: write /e/f from 10.0.0.7\n\
             \x20 ok       export       /e\n\
             \x20 REFUSES  client rule  10.0.0.0/8 only reads\n\
             \x20          file         a note\n\
             \x20 REFUSES  /f           others' bits r-- of the mode\n\
             refused (EROFS), because of client rule: 10.0.0.0/8 only reads\n"
        );
    }
}
