//! The search itself finds what is planted: otherwise that nothing is found proves nothing.

use crate::search::Secrets;
use std::{
    io::Write as _,
    process::{Command, Stdio},
};

const SECRET: &[u8] = b"Gehaltsliste M\xc3\xa4rz.ods";

fn base64(bytes: &[u8], alphabet: &[u8; 64]) -> Vec<u8> {
    let mut text = Vec::new();
    for group in bytes.chunks(3) {
        let bits = group
            .iter()
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        for place in 0..=group.len() {
            text.push(alphabet[(bits >> (18 - 6 * place)) as usize & 63]);
        }
    }
    text
}

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const FOR_URLS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes
        .iter()
        .flat_map(|byte| format!("{byte:02x}").into_bytes())
        .collect()
}

fn escaped(bytes: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(bytes).unwrap().chars();
    text.flat_map(|letter| format!("\\u{:04x}", u32::from(letter)).into_bytes())
        .collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut child = Command::new("gzip")
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    child.wait_with_output().unwrap().stdout
}

/// In the middle of something longer, as a secret in a table or a request would be.
fn within(bytes: &[u8], before: usize) -> Vec<u8> {
    [&b"\""[..], &vec![b'x'; before], bytes, b"\", more"].concat()
}

#[test]
fn a_planted_secret_is_found_however_it_is_hidden() {
    let mut secrets = Secrets::default();
    secrets.add("the name", SECRET);
    secrets.add("something else", b"not in there");
    let only = |found: Vec<String>, how: &str| {
        assert!(
            found.iter().any(|found| found.starts_with("the name")),
            "{how}: {found:?}"
        );
        assert!(
            found.iter().all(|found| found.starts_with("the name")),
            "{how}: {found:?}"
        );
    };
    for before in 0..6 {
        only(secrets.in_bytes(&within(SECRET, before)), "as it is");
        for alphabet in [STANDARD, FOR_URLS] {
            only(
                secrets.in_bytes(&within(&base64(SECRET, alphabet), before)),
                "base64",
            );
            // Somewhere in a longer text that was encoded as a whole.
            only(
                secrets.in_bytes(&base64(&within(SECRET, before), alphabet)),
                "inside base64",
            );
        }
        only(secrets.in_bytes(&within(&hex(SECRET), before)), "hex");
        only(secrets.in_bytes(&within(&escaped(SECRET), before)), "escapes");
        only(secrets.in_bytes(&within(&gzip(SECRET), before)), "gzip");
        only(
            secrets.in_bytes(&base64(&within(&gzip(&escaped(SECRET)), before), STANDARD)),
            "escapes in gzip in base64",
        );
    }
}

#[test]
fn what_is_not_there_is_not_found() {
    let mut secrets = Secrets::default();
    secrets.add("the name", SECRET);
    let mut other = SECRET.to_vec();
    *other.last_mut().unwrap() ^= 1;
    for bytes in [
        other.clone(),
        base64(&other, STANDARD),
        hex(&other),
        gzip(&other),
        SECRET[1..].to_vec(),
    ] {
        assert_eq!(secrets.in_bytes(&bytes), Vec::<String>::new());
    }
}
