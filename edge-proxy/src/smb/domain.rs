//! The Active Directory domain that an edge's shares belong to: what of the configuration names it, and the watch over the way to it.
//!
//! `winbindd` runs beside smbd in the same namespaces ([`super::process`]), which starts it anew whenever it ends. Here it is asked again and again whether it answers
//! and reaches a controller, and the controller what time it has; a winbindd that hangs is ended. Whatever is wrong is a state of its own
//! ([`DomainPart`]): users of the table still log in, connections that are open go on, other protocols are as ever.
//!
//! | state | what was seen |
//! |---|---|
//! | `starting` | nothing yet |
//! | `joined` | winbindd answers and reaches a controller, whose clock is ours |
//! | `clock` | the controller's clock is too far from this machine's: Kerberos refuses tickets |
//! | `unreachable` | winbindd answers and reaches no controller, or none that takes this machine's account |
//! | `down` | winbindd does not answer |

use super::{paths::Paths, process, tools};
use firn_env::Env;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Numbers of a domain's users and groups: its RIDs, of which there are 2³⁰, begin here by default. Far above what tables of users have.
const FIRST_ID: u32 = 1_000_000;
/// RIDs that have a number: more than any domain gives out.
const IDS: u32 = 1_000_000_000;
/// Numbers below the domain's, for groups that every Windows machine has for itself; they own no files.
const BUILTIN_IDS: u32 = 1000;
/// Below are accounts of machines, and `nobody`.
const FIRST_ID_MIN: u32 = 65_536 + BUILTIN_IDS;
/// The sum stays below what systems with signed numbers take.
const FIRST_ID_MAX: u32 = 1_000_000_000;

/// Longest name that a domain or an account has.
const DNS_NAME_BYTES_MAX: usize = 253;
const ACCOUNT_CHARACTERS_MAX: usize = 64;
/// What Active Directory forbids in names of accounts, and what Samba's configuration would take for something else.
const ACCOUNT_FORBIDDEN: &str = "\"/\\[]:;|=,+*?<>@%";

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Looks between two questions for the controller's clock, while all is well.
const CLOCK_EVERY: u32 = 6;
/// How long winbindd has for an answer.
const ANSWER_SECONDS: u32 = 10;
/// Looks in a row that winbindd did not answer, after which it is ended.
const UNANSWERED_MAX: u32 = 3;
/// Kerberos takes 300 s of difference, by default on both sides; before that is the time to say something.
const CLOCK_MAX_SECONDS: i64 = 240;

/// `[smb.domain]`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct DomainSection {
    /// In DNS.
    pub name: String,
    /// Its NetBIOS name: what stands before the backslash of a user.
    pub short_name: String,
    /// The uid of RID 0. On all edges of a family the same: files have these numbers.
    #[serde(default = "first_id")]
    pub first_id: u32,
}

fn first_id() -> u32 {
    FIRST_ID
}

impl DomainSection {
    /// Says what is wrong, in the file's own words.
    pub fn check(&self) -> Result<(), String> {
        let fits = |label: &str| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if self.name.len() > DNS_NAME_BYTES_MAX || !self.name.contains('.') || !self.name.split('.').all(fits)
        {
            return Err(format!(
                "smb.domain.name {:?} must be the domain's name in DNS, as in corp.example.com",
                self.name
            ));
        }
        if !super::section::is_netbios(&self.short_name) {
            return Err(format!(
                "smb.domain.short_name {:?} must be the domain's NetBIOS name, as in CORP",
                self.short_name
            ));
        }
        if !(FIRST_ID_MIN..=FIRST_ID_MAX).contains(&self.first_id) {
            return Err(format!(
                "smb.domain.first_id must be between {FIRST_ID_MIN} and {FIRST_ID_MAX}"
            ));
        }
        Ok(())
    }

    /// Its name as Kerberos writes it.
    pub fn realm(&self) -> String {
        self.name.to_uppercase()
    }

    /// The name of a user or group of the domain, without the domain's, if this is one.
    ///
    /// # Errors
    /// If it is one of another domain, or cannot be a name.
    pub fn account<'a>(&self, text: &'a str) -> Result<Option<&'a str>, String> {
        let Some((domain, name)) = text.split_once('\\') else {
            return Ok(None);
        };
        if !domain.eq_ignore_ascii_case(&self.short_name) {
            return Err(format!(
                "{text:?} is of another domain than {}, whose users alone can log in",
                self.short_name
            ));
        }
        let is_forbidden = |one: char| one.is_control() || ACCOUNT_FORBIDDEN.contains(one);
        if name.trim() != name
            || name.is_empty()
            || name.chars().count() > ACCOUNT_CHARACTERS_MAX
            || name.contains(is_forbidden)
        {
            return Err(format!("{text:?} cannot be a name of the domain"));
        }
        Ok(Some(name))
    }

    /// Whether a number is one of the domain's or of Windows' own groups.
    pub fn owns(&self, id: u32) -> bool {
        (self.first_id - BUILTIN_IDS..self.first_id + IDS).contains(&id)
    }

    /// What Samba's configuration says of it.
    pub fn settings(&self) -> Vec<(String, String)> {
        let short = self.short_name.to_uppercase();
        let range = |first: u32, count: u32| format!("{first}-{}", first + count - 1);
        [
            ("server role", "member server".into()),
            ("security", "ads".into()),
            ("realm", self.realm()),
            ("workgroup", short.clone()),
            ("kerberos method", "secrets only".into()),
            // Their numbers would be given in the order in which an edge meets them, and so differ from edge to edge.
            ("allow trusted domains", "no".into()),
            ("idmap config * : backend", "tdb".into()),
            (
                "idmap config * : range",
                range(self.first_id - BUILTIN_IDS, BUILTIN_IDS),
            ),
            (&format!("idmap config {short} : backend"), "rid".into()),
            (
                &format!("idmap config {short} : range"),
                range(self.first_id, IDS),
            ),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }
}

/// What `status` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainPart {
    pub name: String,
    /// See the module.
    pub state: String,
    /// What is wrong, and what to do.
    pub reason: Option<String>,
    /// How far the controller's clock is before this machine's, as it was seen last.
    pub clock_offset_seconds: Option<i64>,
    /// How often winbindd was ended because it did not answer.
    pub failures: u64,
}

impl DomainPart {
    /// Whether users of the domain may not be able to log in. Nothing is said before the first look.
    pub fn is_away(&self) -> bool {
        !matches!(self.state.as_str(), "joined" | "starting")
    }
}

/// Whether this machine has an account of the domain, as its own files say.
pub async fn is_joined(env: &Env, paths: &Paths) -> bool {
    let configuration = paths.configuration().display().to_string();
    let asked = ["getdomainsid", "--configfile", &configuration];
    matches!(tools::run(env, paths, "net", &asked, String::new()).await, Ok(said) if said.contains("SID for domain"))
}

/// How far the clock of a controller is before this machine's, in seconds.
///
/// # Errors
/// If no controller can be found, or none says so.
pub async fn clock_offset_seconds(env: &Env, paths: &Paths) -> Result<i64, String> {
    let configuration = paths.configuration().display().to_string();
    let asked = ["ads", "info", "--configfile", &configuration];
    let said = tools::run(env, paths, "net", &asked, String::new()).await?;
    offset_in(&said).ok_or_else(|| "no controller says what time it has".into())
}

fn offset_in(said: &str) -> Option<i64> {
    let value = said
        .lines()
        .find_map(|line| line.strip_prefix("Server time offset:"));
    value?.trim().parse().ok()
}

/// What is wrong with a clock that is so far off.
pub fn clock_fault(offset_seconds: i64) -> Option<String> {
    (offset_seconds.abs() > CLOCK_MAX_SECONDS).then(|| {
        let (seconds, way) = (offset_seconds.unsigned_abs(), if offset_seconds > 0 { "behind" } else { "before" });
        format!(
            "the clock of this machine is {seconds} s {way} that of the domain's controller, and Kerberos refuses more than 300 s: \
             set the clock that is wrong (timedatectl; both by NTP from one source)"
        )
    })
}

/// The watch over winbindd and the domain while smbd runs. Never ends.
pub async fn watch(
    env: &Env,
    paths: &Paths,
    domain: &DomainSection,
    process: u32,
    set: impl Fn(&dyn Fn(&mut DomainPart)),
) {
    let mut unanswered = 0;
    let mut looks = 0_u32;
    let mut clock_offset = None;
    let mut said_before = None;
    loop {
        let ping = tools::run_within(env, paths, ANSWER_SECONDS, "wbinfo", &["--ping"], String::new()).await;
        let (state, reason) = match ping {
            Err(error) => {
                unanswered += 1;
                if unanswered >= UNANSWERED_MAX {
                    unanswered = 0;
                    process::end_program(process, "winbindd");
                    set(&|part| part.failures += 1);
                }
                let why = format!(
                    "winbindd does not answer ({error}); it is started anew. Until then users of the domain cannot log in; connections that are open go on"
                );
                ("down", Some(why))
            }
            Ok(_) => {
                unanswered = 0;
                let reached = tools::run(env, paths, "wbinfo", &["--ping-dc"], String::new()).await;
                if reached.is_err()
                    || looks.is_multiple_of(CLOCK_EVERY)
                    || clock_offset.and_then(clock_fault).is_some()
                {
                    clock_offset = clock_offset_seconds(env, paths).await.ok();
                }
                match (clock_offset.and_then(clock_fault), reached) {
                    (Some(fault), _) => ("clock", Some(fault)),
                    (None, Ok(_)) => ("joined", None),
                    (None, Err(error)) => (
                        "unreachable",
                        Some(unreachable_reason(domain, clock_offset, &error)),
                    ),
                }
            }
        };
        looks = looks.wrapping_add(1);
        set(&|part| {
            state.clone_into(&mut part.state);
            part.reason.clone_from(&reason);
            part.clock_offset_seconds = clock_offset;
        });
        // Once for each state: the words of a tool differ from look to look.
        if said_before != Some(state) {
            said_before = Some(state);
            match reason {
                Some(reason) => tracing::warn!(
                    state,
                    reason,
                    "users of the domain may not be able to log in over SMB"
                ),
                None => tracing::info!(domain = domain.name, "the domain answers"),
            }
        }
        env.sleep(LOOK_EVERY).await;
    }
}

fn unreachable_reason(domain: &DomainSection, clock_offset: Option<i64>, error: &str) -> String {
    match clock_offset {
        // One answers, so it is this machine's account.
        Some(_) => format!(
            "a controller of {} answers, but does not take this machine's account: firn-edge smb join {} makes it anew ({error})",
            domain.name, domain.name
        ),
        None => format!(
            "no controller of {} answers: see whether this machine's DNS finds _ldap._tcp.{} and ports 88, 389 and 445 of it are open. Who has logged in goes on; \
             new logins of the domain's users fail ({error})",
            domain.name, domain.name
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain() -> DomainSection {
        DomainSection {
            name: "corp.example.com".into(),
            short_name: "CORP".into(),
            first_id: FIRST_ID,
        }
    }

    #[test]
    fn names_of_the_domain_are_told_from_those_of_the_table() {
        let domain = domain();
        domain.check().expect("fine");
        assert_eq!(domain.account("alice"), Ok(None));
        assert_eq!(domain.account("corp\\Domain Users"), Ok(Some("Domain Users")));
        for wrong in [
            "OTHER\\alice",
            "CORP\\",
            "CORP\\a\\b",
            "CORP\\a%U",
            "CORP\\a\"b",
            "CORP\\a\nb",
        ] {
            domain.account(wrong).expect_err(wrong);
        }
        for name in ["corp", "corp..com", "corp.exa mple.com", ".com"] {
            DomainSection {
                name: name.into(),
                ..self::domain()
            }
            .check()
            .expect_err(name);
        }
    }

    #[test]
    fn numbers_are_the_same_wherever_the_configuration_is() {
        let settings = domain().settings();
        let value = |key: &str| {
            settings
                .iter()
                .find(|(one, _)| one == key)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(value("idmap config CORP : backend"), Some("rid"));
        assert_eq!(value("idmap config CORP : range"), Some("1000000-1000999999"));
        assert_eq!(value("idmap config * : range"), Some("999000-999999"));
        assert!(domain().owns(1_001_103) && !domain().owns(1001));
    }

    #[test]
    fn a_clock_that_kerberos_would_refuse_is_named_and_which_way() {
        let said =
            "LDAP server: 10.0.0.1\nServer time offset: -600\nLast machine account password change: x\n";
        assert_eq!(offset_in(said), Some(-600));
        assert_eq!(offset_in("Server time offset: soon"), None);
        assert!(clock_fault(-600).is_some_and(|fault| fault.contains("600 s before")));
        assert!(clock_fault(600).is_some_and(|fault| fault.contains("600 s behind")));
        assert_eq!(clock_fault(200), None);
    }
}
