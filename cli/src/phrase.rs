//! The recovery phrase: made offline, written down, typed back; read again for what has to be signed.

use crate::{
    failure::{Failure, of_file},
    profile::{give_secret, read_secret},
    random::entropy,
    screen::note,
};
use firn_seal::RecoveryPhrase;
use std::path::Path;
use zeroize::Zeroizing;

/// Words asked back: guessing them is hopeless, typing them is a minute.
const ASKED: usize = 3;

/// Makes a phrase, and makes sure that somebody has it. Nothing has been sent when this returns.
pub fn make(file: Option<&Path>) -> Result<RecoveryPhrase, Failure> {
    let mut bytes = Zeroizing::new([0; 32]);
    entropy(&mut *bytes)?;
    let phrase = RecoveryPhrase::from_entropy(*bytes);
    let words = phrase.expose_words();
    if let Some(path) = give_secret(file, &words)? {
        note(&format!(
            "The recovery phrase is in {}. Whoever has it can read every volume; without it and without an edge nobody can.",
            path.display()
        ));
        return Ok(phrase);
    }
    note("Your recovery phrase. It is made on this machine, is sent nowhere and is shown once.");
    note("Whoever has it can read every volume; without it and without an edge nobody can. Write it down:\n");
    let list: Vec<&str> = words.split(' ').collect();
    for (row, part) in list.chunks(4).enumerate() {
        let numbered: Vec<String> = part
            .iter()
            .enumerate()
            .map(|(index, word)| format!("{:>2} {word:<10}", row * 4 + index + 1))
            .collect();
        note(&format!("  {}", numbered.join("  ")));
    }
    confirm(&list)?;
    Ok(phrase)
}

fn confirm(words: &[&str]) -> Result<(), Failure> {
    let mut positions: Vec<usize> = Vec::new();
    while positions.len() < ASKED {
        let mut random = [0; 2];
        entropy(&mut random)?;
        let position = usize::from(u16::from_le_bytes(random)) % words.len();
        if !positions.contains(&position) {
            positions.push(position);
        }
    }
    for position in positions {
        let typed = read_secret(
            None,
            &format!("\nTo be sure that you have it, type word {}", position + 1),
        )?;
        if !typed.eq_ignore_ascii_case(words[position]) {
            return Err(
                Failure::usage("that is another word; nothing was sent and no account was made")
                    .next("run it again: a new phrase is made each time"),
            );
        }
    }
    Ok(())
}

/// Reads the phrase, and checks that it is the one of the tenant whose key is pinned.
pub fn read(file: Option<&Path>, tenant_key: &str) -> Result<RecoveryPhrase, Failure> {
    let phrase = read_any(file)?;
    if phrase.signing_key().public().to_string() != tenant_key {
        return Err(Failure::usage("this recovery phrase is another tenant's")
            .next("firn whoami shows which tenant is logged in"));
    }
    Ok(phrase)
}

/// Reads the phrase of whichever tenant.
pub fn read_any(file: Option<&Path>) -> Result<RecoveryPhrase, Failure> {
    let text = match file {
        Some(path) => Zeroizing::new(std::fs::read_to_string(path).map_err(of_file(path))?),
        None => read_secret(None, "Recovery phrase (24 words)")?,
    };
    RecoveryPhrase::parse(&text).map_err(|error| Failure::usage(format!("the recovery phrase: {error}")))
}
