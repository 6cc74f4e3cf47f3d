//! Case folding of names: the rule by which two names that differ only in upper and lower case are one to an SMB client.
//!
//! Each code point is taken to its upper case, one to one, as NTFS's table of upper cases does, and as Unicode's simple mapping
//! says: `ß` stays itself, since its upper case is two letters. Three rules keep it to what Windows takes for one:
//! letters outside ASCII never become ASCII (`ı` is not `i`, `ſ` is not `s`), the micro sign is no Greek letter, and what needs two units
//! of UTF-16 has no case. Letters that Unicode gained since Windows 2000 (as Romanian `ș`) have theirs, as with Windows of today; Samba's own table
//! does not know them yet. Composed and decomposed forms stay different names. Bytes that are not UTF-8, which
//! no SMB client can ask for, are kept.

/// What of a code point counts.
fn fold_letter(letter: char) -> char {
    if letter.is_ascii() {
        return letter.to_ascii_uppercase();
    }
    if letter == 'µ' || letter > '\u{ffff}' {
        return letter;
    }
    let mut upper = letter.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(one), None) if !one.is_ascii() => one,
        _ => letter,
    }
}

/// What all spellings of a name have in common.
pub(crate) fn fold(name: &[u8]) -> Vec<u8> {
    let mut folded = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            folded.extend_from_slice(fold_letter(letter).encode_utf8(&mut [0; 4]).as_bytes());
        }
        folded.extend_from_slice(chunk.invalid());
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_as_windows_takes_them_for_one() {
        for (one, other) in [
            ("Report.TXT", "rEPORT.txt"),
            ("ärger", "ÄRGER"),
            ("ПРОТОКОЛ № 7", "протокол № 7"),
            ("ΟΔΟΣ", "οδοσ"),
            ("œuvre ÿ", "ŒUVRE Ÿ"),
            ("ԱՐԵՎ", "արեվ"),
            ("ｆｕｌｌ", "ＦＵＬＬ"),
            ("ș ț", "Ș Ț"),
            ("ǆ", "Ǆ"),
        ] {
            assert_eq!(fold(one.as_bytes()), fold(other.as_bytes()), "{one} {other}");
        }
        for (one, other) in [
            ("straße", "STRASSE"),
            ("ı", "i"),
            ("ſ", "s"),
            ("µ", "μ"),
            ("\u{10428}", "\u{10400}"),
            ("é", "e\u{301}"),
            ("ﬁ", "FI"),
            ("a", "b"),
            ("a", "aa"),
        ] {
            assert_ne!(fold(one.as_bytes()), fold(other.as_bytes()), "{one} {other}");
        }
    }

    #[test]
    fn a_fold_is_its_own_fold_and_bytes_that_are_no_text_stay() {
        for letter in ('\0'..=char::MAX).filter(|letter| *letter <= '\u{1ffff}') {
            let folded = fold_letter(letter);
            assert_eq!(fold_letter(folded), folded, "{letter:?}");
        }
        assert_eq!(fold(b"a\xff\xfeb\xc3"), b"A\xff\xfeB\xc3");
    }
}
