//! Names that people give: shown as they were typed, compared so that look-alikes by encoding count as one.
//!
//! Kept in Unicode's composed form (NFC). Refused: control and formatting characters (with which a text can read otherwise
//! than it is stored: bidirectional overrides, zero-width joiners), private-use and unassigned-looking ones, and blanks at the
//! ends. Two names are the same if their compatibility forms (NFKC), lower-cased, are.

use serde::{Deserialize, Serialize};
use std::fmt;
use unicode_normalization::UnicodeNormalization as _;

/// The longest name in characters; with four bytes each a name still fits every key many times over.
pub const MAX_NAME_CHARACTERS: usize = 64;
/// The longest mail address (RFC 5321's path less its brackets).
pub const MAX_EMAIL_BYTES: usize = 254;

/// A name of a tenant, member, volume, edge, disk or node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct DisplayName(String);

/// Why a text is no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadDisplayName {
    /// Too short or too long.
    #[error("a name has 1 to {MAX_NAME_CHARACTERS} characters")]
    Length,
    /// Characters that do not show, or show otherwise than they are.
    #[error("a name has no control, formatting or private-use characters and no blanks at its ends")]
    Character,
}

impl DisplayName {
    /// The form under which it is unique.
    pub fn folded(&self) -> String {
        self.0.nfkc().collect::<String>().to_lowercase()
    }

    /// The name as it is shown.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for DisplayName {
    type Error = BadDisplayName;

    fn try_from(text: String) -> Result<Self, BadDisplayName> {
        if text.len() > MAX_NAME_CHARACTERS * 4 {
            return Err(BadDisplayName::Length);
        }
        let name: String = text.nfc().collect();
        if !(1..=MAX_NAME_CHARACTERS).contains(&name.chars().count()) {
            return Err(BadDisplayName::Length);
        }
        if name.trim() != name || name.chars().any(is_misleading) {
            return Err(BadDisplayName::Character);
        }
        Ok(Self(name))
    }
}

impl fmt::Display for DisplayName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Control (Cc), formatting (Cf), surrogate-like and private-use characters, line separators, and blanks other than a space.
fn is_misleading(character: char) -> bool {
    character.is_control()
        || (character.is_whitespace() && character != ' ')
        || matches!(character,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
            | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{e000}'..='\u{f8ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{10ffff}')
}

/// A mail address: checked for what would do harm; whether it exists, the confirmation shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Email(String);

/// A text that is no mail address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a mail address in ASCII of at most {MAX_EMAIL_BYTES} bytes")]
pub struct BadEmail;

impl Email {
    /// The form under which it is unique: providers differ on case in the local part, none gives the other case away.
    pub fn folded(&self) -> String {
        self.0.to_ascii_lowercase()
    }

    /// The address as typed.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Email {
    type Error = BadEmail;

    fn try_from(text: String) -> Result<Self, BadEmail> {
        let (local, domain) = text.rsplit_once('@').ok_or(BadEmail)?;
        let plain = |part: &str, extra: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || extra.as_bytes().contains(&byte))
        };
        let valid = text.len() <= MAX_EMAIL_BYTES
            && local.len() <= 64
            && plain(local, ".!#$%&'*+/=?^_`{|}~-")
            && plain(domain, ".-")
            && domain.split('.').count() >= 2
            && domain
                .split('.')
                .all(|label| !label.is_empty() && label.len() <= 63);
        if valid { Ok(Self(text)) } else { Err(BadEmail) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_read_alike_are_the_same_name() {
        let name = |text: &str| DisplayName::try_from(text.to_owned()).unwrap();
        assert_eq!(name("Cafe\u{301}").as_str(), "Café");
        assert_eq!(name("Cafe\u{301}").folded(), name("CAFÉ").folded());
        assert_eq!(name("ﬁrn").folded(), name("firn").folded());
        assert_ne!(name("firn").folded(), name("firn2").folded());
    }

    #[test]
    fn names_that_hide_something_are_refused() {
        for text in [
            "",
            " a",
            "a ",
            "a\u{202e}b",
            "a\u{200b}b",
            "a\0b",
            "a\nb",
            "\u{feff}a",
            "\u{e001}",
            "a\u{a0}b",
        ] {
            assert!(DisplayName::try_from(text.to_owned()).is_err(), "{text:?}");
        }
        assert!(DisplayName::try_from("x".repeat(65)).is_err());
        assert!(DisplayName::try_from("名前 für Büro №1 🏔".to_owned()).is_ok());
    }

    #[test]
    fn addresses_that_could_carry_headers_are_refused() {
        for text in [
            "",
            "a",
            "a@b",
            "@b.c",
            "a@",
            "a@b..c",
            "a@b.c\r\nBcc: x@y.z",
            "a b@c.d",
            "é@b.c",
            "a@b.c,d@e.f",
        ] {
            assert!(Email::try_from(text.to_owned()).is_err(), "{text:?}");
        }
        assert!(Email::try_from("Ada.L+x@mail.example.org".to_owned()).is_ok());
    }
}
