//! Keys and certificates as text (RFC 7468), for programs that take nothing else.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use zeroize::Zeroizing;

/// `bytes` (DER) between the lines that name them, such as `CERTIFICATE`; wiped when dropped, since it may be a key.
pub fn pem(label: &str, bytes: &[u8]) -> Zeroizing<String> {
    let text = Zeroizing::new(STANDARD.encode(bytes));
    let mut pem = Zeroizing::new(String::with_capacity(
        text.len() + text.len() / 64 + 64 + 2 * label.len(),
    ));
    for part in ["-----BEGIN ", label, "-----\n"] {
        pem.push_str(part);
    }
    for line in text.as_bytes().chunks(64) {
        pem.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        pem.push('\n');
    }
    for part in ["-----END ", label, "-----\n"] {
        pem.push_str(part);
    }
    pem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_sixty_four_characters_and_the_whole_is_read_back() {
        let der: Vec<u8> = (0..=255).collect();
        let text = pem("CERTIFICATE", &der);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "-----BEGIN CERTIFICATE-----");
        assert_eq!(lines[lines.len() - 1], "-----END CERTIFICATE-----");
        let body = &lines[1..lines.len() - 1];
        assert!(body[..body.len() - 1].iter().all(|line| line.len() == 64));
        assert_eq!(STANDARD.decode(body.concat()).unwrap(), der);
    }
}
