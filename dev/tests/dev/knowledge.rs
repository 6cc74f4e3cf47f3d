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

/// Bytes that somebody took for text of a letter each.
fn letters(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
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

/// A volume's key is 32 bytes without any sense; it must be found in every form in which a program may write bytes down.
#[test]
fn a_planted_key_is_found_however_it_is_written() {
    let key: Vec<u8> = (0..32_u8)
        .map(|byte| byte.wrapping_mul(151).wrapping_add(0x9c))
        .collect();
    assert!(std::str::from_utf8(&key).is_err(), "it is no text");
    let mut secrets = Secrets::default();
    secrets.add("the key", &key);
    let written = |text: String| text.into_bytes();
    let numbers: Vec<String> = key.iter().map(u8::to_string).collect();
    let forms = [
        ("as it is", key.clone()),
        ("base64", base64(&key, STANDARD)),
        ("base64 for URLs", base64(&key, FOR_URLS)),
        ("hex", hex(&key)),
        ("HEX", hex(&key).to_ascii_uppercase()),
        (
            "a string of JSON",
            written(serde_json::to_string(&letters(&key)).unwrap()),
        ),
        ("escaped", escaped(letters(&key).as_bytes())),
        ("an array", written(serde_json::to_string(&key).unwrap())),
        (
            "a pretty array",
            written(serde_json::to_string_pretty(&key).unwrap()),
        ),
        ("numbers", written(numbers.join(", "))),
    ];
    for (how, form) in forms {
        for before in 0..6 {
            let plain = within(&form, before);
            for (hidden, bytes) in [
                ("", plain.clone()),
                (" in gzip", within(&gzip(&plain), before)),
                (" in base64", base64(&plain, STANDARD)),
                (" in gzip in base64", base64(&gzip(&plain), STANDARD)),
            ] {
                let found = secrets.in_bytes(&bytes);
                assert!(!found.is_empty(), "{how}{hidden}, after {before} bytes");
            }
        }
    }
    let mut other = key.clone();
    other[31] ^= 1;
    for bytes in [
        hex(&other),
        serde_json::to_vec(&other).unwrap(),
        letters(&other).into_bytes(),
    ] {
        assert_eq!(secrets.in_bytes(&bytes), Vec::<String>::new());
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
