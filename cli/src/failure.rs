//! Failures of a command: a message for a person, an exit code for a script.

use std::fmt;

/// Exit codes; documented in `firn --help` and docs/cli.md, and never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Something failed that no other code names.
    Failed = 1,
    /// The command line, what it names on this machine, or a value that the service does not take is wrong.
    Usage = 2,
    /// Not logged in, or the credentials are not accepted.
    Credentials = 3,
    /// The role does not allow it.
    NotAllowed = 4,
    /// There is no such thing.
    NotFound = 5,
    /// A name is taken, a state does not allow it, somebody else changed it.
    Conflict = 6,
    /// Over the quota or the budget.
    Quota = 7,
    /// The service did not answer; the same command may be repeated.
    Unavailable = 8,
    /// What the service said does not agree with what was signed or seen before. Do not go on.
    Untrusted = 9,
}

/// A failure: what happened, and what to do next.
#[derive(Clone, Debug)]
pub struct Failure {
    pub exit: Exit,
    what: String,
    next: Option<String>,
}

impl Failure {
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self {
            exit,
            what: what.into(),
            next: None,
        }
    }

    pub fn failed(what: impl Into<String>) -> Self {
        Self::new(Exit::Failed, what)
    }

    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    pub fn untrusted(what: impl Into<String>) -> Self {
        Self::new(Exit::Untrusted, what)
            .next("nothing was sent or wrapped; ask who runs the service, and compare keys by another way")
    }

    /// What happened, without what to do next.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Says what to do next.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.what)?;
        match &self.next {
            Some(next) => write!(formatter, "\n      {next}"),
            None => Ok(()),
        }
    }
}

/// A file that cannot be read or written.
pub fn of_file(path: &std::path::Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |error| Failure::usage(format!("{}: {error}", path.display()))
}
