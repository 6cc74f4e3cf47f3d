//! The audit log's hash chain, checked without believing the service: written a second time from its description
//! (docs/control-plane.md), so that one mistake cannot hide in both.

use crate::screen::field;
use serde_json::Value;

/// What an entry's hash must be: BLAKE3 in key-derivation mode over every other field, each after its length.
fn hash(entry: &Value) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("firn-api 1 audit entry");
    for name in [
        "sequence",
        "at",
        "principal",
        "action",
        "target",
        "detail",
        "nonce",
        "previous",
    ] {
        let text = match entry.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Checks that `entries`, oldest first, form one chain from the very first; returns the last one's number and hash.
pub fn verify(entries: &[Value]) -> Result<(u64, String), String> {
    let (mut sequence, mut last) = (0, "0".repeat(64));
    for entry in entries {
        let number = entry["sequence"].as_u64().unwrap_or(0);
        if number != sequence + 1 {
            return Err(format!(
                "entry {number} follows entry {sequence}: entries are missing or doubled"
            ));
        }
        if field(entry, "previous") != last {
            return Err(format!("entry {number} does not name the entry before it"));
        }
        let computed = hash(entry);
        if field(entry, "hash") != computed {
            return Err(format!("entry {number} was changed after it was written"));
        }
        (sequence, last) = (number, computed);
    }
    Ok((sequence, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_changed_missing_or_swapped_entry_is_found() {
        let mut entries = Vec::new();
        let mut previous = "0".repeat(64);
        for sequence in 1..=3 {
            let mut entry = json!({ "sequence": sequence, "at": 5, "principal": null, "action": "a", "target": "t",
                                    "detail": "d", "nonce": "n", "previous": previous });
            previous = hash(&entry);
            entry["hash"] = previous.clone().into();
            entries.push(entry);
        }
        assert_eq!(verify(&entries), Ok((3, previous)));
        let mut changed = entries.clone();
        changed[1]["detail"] = "e".into();
        assert!(verify(&changed).unwrap_err().contains("entry 2 was changed"));
        assert!(verify(&entries[1..]).is_err());
        entries.swap(1, 2);
        assert!(verify(&entries).is_err());
    }
}
