//! Writes the golden vectors into the corpora, so that fuzzing starts from well-formed input.

use std::{fs, io, path::Path};

/// Which vectors start which target.
const SEEDS: [(&str, &str, &[&str]); 5] = [
    ("object", "crates/format", &["block", "node", "checkpoint"]),
    ("segment", "crates/format", &["segment"]),
    ("checkpoint", "crates/format", &["checkpoint"]),
    ("journal_record", "crates/format", &["journal"]),
    ("key_ring", "crates/seal", &["key-ring"]),
];

/// Where the checkpoint's plain section lies in its vector, and the slots of its children.
const CHECKPOINT_PLAIN: std::ops::Range<usize> = 88..88 + 176 + 40;
const CHECKPOINT_SLOTS: [u8; 4] = [0, 2, 3, 4];

fn main() -> io::Result<()> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (target, owner, names) in SEEDS {
        let corpus = fuzz.join("corpus").join(target);
        fs::create_dir_all(&corpus)?;
        for name in names {
            let path = fuzz
                .join("..")
                .join(owner)
                .join(format!("tests/vectors/v1/{name}.hex"));
            let bytes = parse(&fs::read_to_string(path)?);
            let seed = match target {
                // No record is repaired: the vector's checksums are right. Records without the header come second.
                "journal_record" => {
                    fs::write(corpus.join("records"), [&[9], &bytes[84..]].concat())?;
                    [&[0], &bytes[..]].concat()
                }
                "checkpoint" => {
                    let plain = &bytes[CHECKPOINT_PLAIN];
                    let count = CHECKPOINT_SLOTS.len() as u8;
                    fs::write(
                        corpus.join("plain"),
                        [&[count], &CHECKPOINT_SLOTS[..], plain].concat(),
                    )?;
                    bytes
                }
                _ => bytes,
            };
            fs::write(corpus.join(name), seed)?;
        }
    }
    Ok(())
}

fn parse(text: &str) -> Vec<u8> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .flat_map(|(_, digits)| digits.split(' '))
        .filter_map(|pair| u8::from_str_radix(pair, 16).ok())
        .collect()
}
