//! Keys as Azure takes them, and the limits that follow.
//!
//! Azure refuses `/ \ # ?` and control characters in keys, and says no more of their order than that it is lexical. Base 32 with the
//! extended hex alphabet (RFC 4648 §7) has digits and upper-case letters only, and sorts as the bytes do.

use data_encoding::BASE32HEX_NOPAD;
use firn_table::{ItemKey, TableError, Write};

/// Bytes of either half of a key: 512 characters, of two bytes each, are Azure's 1 KiB. The longest key of an anchor has 260.
pub const MAX_KEY_BYTES: usize = 320;
/// Bytes of a transaction, as [`firn_table::MAX_TRANSACTION_BYTES`] counts them. In base 64 they take 3.34 MiB of Azure's 4, which leaves
/// room for everything else, below.
pub const MAX_TRANSACTION_BYTES: usize = 5 << 19;
/// Azure's limit of a request.
const REQUEST_BYTES: usize = 4 << 20;
/// What an operation takes beside the value: its key in its address and in its body, headers and names.
const OPERATION_BYTES: usize = 4 << 10;

const _: () = assert!(
    MAX_TRANSACTION_BYTES.div_ceil(3) * 4 + firn_table::MAX_TRANSACTION_OPERATIONS * OPERATION_BYTES
        <= REQUEST_BYTES
);
const _: () = assert!(MAX_KEY_BYTES * 8 / 5 <= 512);

/// A half of a key, or where in a partition something begins.
pub(crate) fn encode(half: impl AsRef<[u8]>) -> String {
    BASE32HEX_NOPAD.encode(half.as_ref())
}

/// `None`: we have not written it.
pub(crate) fn decode(key: &str) -> Option<String> {
    String::from_utf8(BASE32HEX_NOPAD.decode(key.as_bytes()).ok()?).ok()
}

/// The first place behind everything that begins with `prefix`; `None`: there is none before the partition's end.
pub(crate) fn behind(prefix: &str) -> Option<String> {
    let mut bytes = prefix.as_bytes().to_vec();
    // UTF-8 has no byte 255.
    *bytes.last_mut()? += 1;
    Some(encode(bytes))
}

/// # Errors
/// [`TableError::Limit`].
pub(crate) fn check_key(key: &ItemKey) -> Result<(), TableError> {
    firn_table::limits::check_key(key)?;
    check_half("partition", &key.partition)?;
    check_half("sort", &key.sort)
}

/// # Errors
/// [`TableError::Limit`].
pub(crate) fn check_half(which: &str, half: &str) -> Result<(), TableError> {
    if half.len() > MAX_KEY_BYTES {
        return Err(TableError::Limit(format!(
            "a {which} key of {} bytes, {MAX_KEY_BYTES} are allowed in Azure Table Storage",
            half.len()
        )));
    }
    Ok(())
}

/// # Errors
/// [`TableError::Limit`].
pub(crate) fn check_transaction(writes: &[Write]) -> Result<(), TableError> {
    firn_table::limits::check_transaction(writes)?;
    let mut bytes = 0;
    for write in writes {
        let key = write.key();
        check_key(key)?;
        let first = writes[0].key();
        if key.partition != first.partition {
            return Err(TableError::Limit(format!(
                "a transaction in partitions {:?} and {:?}: Azure Table Storage has them within one only",
                first.partition, key.partition
            )));
        }
        let value_bytes = match write {
            Write::Put { value, .. } => value.len(),
            Write::Delete { .. } | Write::Check { .. } => 0,
        };
        bytes += firn_table::limits::item_bytes(key, value_bytes);
    }
    if bytes > MAX_TRANSACTION_BYTES {
        return Err(TableError::Limit(format!(
            "the transaction takes {bytes} bytes, {MAX_TRANSACTION_BYTES} are allowed in Azure Table Storage"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_in_the_order_of_their_bytes() {
        let keys = [
            "",
            "\u{0}",
            " ",
            "/",
            "a",
            "a\u{0}",
            "a/",
            "a/b",
            "aa",
            "b",
            "é",
            "\u{ffff}",
            "\u{10000}",
        ];
        for (one, other) in keys.iter().zip(&keys[1..]) {
            assert!(encode(one) < encode(other), "{one:?} before {other:?}");
        }
        for key in keys {
            assert_eq!(decode(&encode(key)).as_deref(), Some(key));
            assert!(encode(key).bytes().all(|byte| byte.is_ascii_alphanumeric()));
        }
    }

    #[test]
    fn what_begins_with_a_prefix_lies_before_what_is_behind_it() {
        for prefix in ["a", "a/", "é", "\u{10ffff}"] {
            let (from, to) = (encode(prefix), behind(prefix).unwrap());
            for (key, within) in [
                (format!("{prefix}\u{10ffff}"), true),
                (prefix.to_owned(), true),
                (
                    prefix[..prefix.len() - prefix.chars().last().unwrap().len_utf8()].to_owned(),
                    false,
                ),
            ] {
                let key = encode(key);
                assert_eq!(from <= key && key < to, within, "{prefix:?}");
            }
        }
        assert_eq!(behind(""), None);
    }

    #[test]
    fn a_transaction_of_two_partitions_is_refused_with_both_named() {
        let check = |partition: &str| Write::Check {
            key: ItemKey::new(partition, "s"),
            condition: firn_table::Condition::Absent,
        };
        let refused = check_transaction(&[check("one"), check("two")]).unwrap_err();
        let said = refused.to_string();
        assert!(
            matches!(refused, TableError::Limit(_)) && said.contains("\"one\"") && said.contains("\"two\""),
            "{said}"
        );
    }
}
