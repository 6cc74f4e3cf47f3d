//! Looking for secrets in everything that somebody holds: as they are, and as they would be after base64, hexadecimal digits, JSON's
//! escapes, as letters or numbers of a byte each, or after compression, one inside the other.
//!
//! What is searched is decoded rather than the secret encoded: so it does not matter where in a longer text the secret began.

use std::{
    collections::HashMap,
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// Encodings inside each other that are looked through.
const DEPTH: usize = 4;
/// A text shorter than this holds no secret that is looked for.
const RUN_MIN: usize = 12;
/// By so many first bytes a secret is recognised before it is compared.
const HEAD: usize = 8;

/// What must not be found.
pub struct Secret {
    pub what: String,
    pub bytes: Vec<u8>,
}

/// Secrets, ready to be looked for.
#[derive(Default)]
pub struct Secrets {
    by_head: HashMap<[u8; HEAD], Vec<Secret>>,
}

impl Secrets {
    /// Adds one, which must be long enough that it is not found by chance.
    pub fn add(&mut self, what: impl Into<String>, bytes: impl AsRef<[u8]>) {
        let (what, bytes) = (what.into(), bytes.as_ref().to_vec());
        assert!(bytes.len() >= HEAD, "{what} is too short to be looked for");
        let head = bytes[..HEAD].try_into().unwrap();
        self.by_head.entry(head).or_default().push(Secret { what, bytes });
    }

    /// What of them is in `bytes`, and how it was hidden.
    pub fn in_bytes(&self, bytes: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        self.look(bytes, "", DEPTH, &mut found);
        found.sort();
        found.dedup();
        found
    }

    /// The same for all files below a directory, or one file.
    pub fn below(&self, path: &Path) -> Vec<String> {
        if path.is_dir() {
            let entries = fs::read_dir(path).unwrap();
            return entries
                .flat_map(|entry| self.below(&entry.unwrap().path()))
                .collect();
        }
        // A socket, or gone by now.
        let Ok(bytes) = fs::read(path) else {
            return Vec::new();
        };
        let found = self.in_bytes(&bytes).into_iter();
        found
            .map(|found| format!("{}: {found}", path.display()))
            .collect()
    }

    fn look(&self, bytes: &[u8], how: &str, depth: usize, found: &mut Vec<String>) {
        for (at, head) in bytes.windows(HEAD).enumerate() {
            let candidates = self.by_head.get::<[u8; HEAD]>(head.try_into().unwrap());
            for secret in candidates.into_iter().flatten() {
                if bytes[at..].starts_with(&secret.bytes) {
                    found.push(format!("{}{how}", secret.what));
                }
            }
        }
        if depth == 0 {
            return;
        }
        for run in bytes
            .split(|byte| !is_base64(*byte))
            .filter(|run| run.len() >= RUN_MIN)
        {
            for from in 0..4 {
                self.look(
                    &base64(&run[from..]),
                    &format!("{how} in base64"),
                    depth - 1,
                    found,
                );
            }
        }
        let digits = bytes.split(|byte| !byte.is_ascii_hexdigit());
        for run in digits.filter(|run| run.len() >= 2 * HEAD) {
            for from in 0..2 {
                self.look(&hex(&run[from..]), &format!("{how} in hex"), depth - 1, found);
            }
        }
        if let Some(text) = unescaped(bytes) {
            self.look(&text, &format!("{how} in JSON's escapes"), depth - 1, found);
        }
        if let Some(text) = narrowed(bytes) {
            self.look(&text, &format!("{how} as letters"), depth - 1, found);
        }
        for run in numbers(bytes) {
            self.look(&run, &format!("{how} as numbers"), depth - 1, found);
        }
        for (at, _) in bytes
            .windows(3)
            .enumerate()
            .filter(|(_, magic)| *magic == b"\x1f\x8b\x08")
        {
            self.look(
                &gunzipped(&bytes[at..]),
                &format!("{how} in gzip"),
                depth - 1,
                found,
            );
        }
    }
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}

fn base64(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| -> u32 {
        match byte {
            b'A'..=b'Z' => u32::from(byte - b'A'),
            b'a'..=b'z' => u32::from(byte - b'a') + 26,
            b'0'..=b'9' => u32::from(byte - b'0') + 52,
            b'+' | b'-' => 62,
            _ => 63,
        }
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let bits = group.iter().fold(0, |bits, byte| bits << 6 | digit(*byte)) << (6 * (4 - group.len()));
        let whole = group.len() * 6 / 8;
        bytes.extend_from_slice(&bits.to_be_bytes()[1..1 + whole]);
    }
    bytes
}

fn hex(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
    text.chunks_exact(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

/// The bytes with JSON's escapes resolved; nothing if there is none.
fn unescaped(bytes: &[u8]) -> Option<Vec<u8>> {
    if !bytes.contains(&b'\\') {
        return None;
    }
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escaped = after.first().filter(|_| byte == b'\\');
        let Some(&escaped) = escaped else {
            plain.push(byte);
            continue;
        };
        rest = &after[1..];
        let code = rest
            .get(..4)
            .filter(|code| escaped == b'u' && code.iter().all(u8::is_ascii_hexdigit));
        match (escaped, code) {
            (b'u', Some(code)) => {
                let code = u32::from_str_radix(std::str::from_utf8(code).unwrap(), 16).unwrap();
                let letter = char::from_u32(code).unwrap_or('\u{fffd}');
                plain.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[4..];
            }
            (b'n', _) => plain.push(b'\n'),
            (b'r', _) => plain.push(b'\r'),
            (b't', _) => plain.push(b'\t'),
            (b'b', _) => plain.push(0x08),
            (b'f', _) => plain.push(0x0c),
            (other, _) => plain.push(other),
        }
    }
    (plain != bytes).then_some(plain)
}

/// Each letter below U+0100 as the byte of its number, which is how bytes look that somebody took for text; nothing if none is beyond
/// ASCII.
fn narrowed(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut narrow = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        match (byte, after.first()) {
            (0xc2 | 0xc3, Some(&next)) if next & 0xc0 == 0x80 => {
                narrow.push(byte << 6 | (next & 0x3f));
                rest = &after[1..];
            }
            _ => {
                narrow.push(byte);
                rest = after;
            }
        }
    }
    (narrow.len() < bytes.len()).then_some(narrow)
}

/// Lists of numbers below 256, as JSON has an array of bytes, that are long enough to hold a secret.
fn numbers(bytes: &[u8]) -> Vec<Vec<u8>> {
    let is_of_list = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_whitespace() || *byte == b',';
    let lists = bytes
        .split(|byte| !is_of_list(byte))
        .filter(|list| list.len() >= 2 * HEAD);
    let mut found = Vec::new();
    for list in lists {
        let mut run = Vec::new();
        for number in list.split(|byte| *byte == b',') {
            let number = std::str::from_utf8(number.trim_ascii()).unwrap_or_default();
            match number.parse::<u8>() {
                Ok(byte) => run.push(byte),
                Err(_) => found.push(std::mem::take(&mut run)),
            }
        }
        found.push(run);
    }
    found.retain(|run| run.len() >= HEAD);
    found
}

/// What gzip makes of it up to where it stops making sense.
fn gunzipped(bytes: &[u8]) -> Vec<u8> {
    let mut child = Command::new("gzip")
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut input, bytes) = (child.stdin.take().unwrap(), bytes.to_vec());
    // It stops reading at what is no gzip.
    let writer = std::thread::spawn(move || drop(input.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output.stdout
}
