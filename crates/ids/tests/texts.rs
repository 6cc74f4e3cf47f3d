//! The forms in which ids are written, stored and read back.

use firn_ids::{
    DiskId, EdgeId, KeyId, MemberId, NodeId, ParseIdError, TenantId, TokenId, VolumeId, parse_hex,
};
use proptest::prelude::*;

#[test]
fn every_kind_has_the_texts_that_are_stored_of_it() {
    macro_rules! texts {
        ($($kind:ident $prefix:literal),*) => {$(
            let id = $kind([0xa0; 16]);
            assert_eq!(id.to_string(), format!("{}_{}", $prefix, "a0".repeat(16)));
            assert_eq!(id.hex().to_string(), "a0".repeat(16));
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!($kind::from_hex(&id.hex().to_string()), Ok(id));
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(json, format!("\"{id}\""));
            assert_eq!(serde_json::from_str::<$kind>(&json).unwrap(), id);
            assert_eq!(serde_json::from_reader::<_, $kind>(json.as_bytes()).unwrap(), id);
        )*};
    }
    texts!(
        TenantId "ten", MemberId "mem", KeyId "key", VolumeId "vol", EdgeId "edg", DiskId "dsk", NodeId "nod",
        TokenId "tok"
    );
}

#[test]
fn an_id_of_another_kind_or_spelling_is_refused_and_not_repeated() {
    let disk = DiskId([0xa0; 16]).to_string();
    let digits = "a0".repeat(16);
    for wrong in [
        "",
        "dsk",
        "dsk_",
        &digits,
        &disk.to_uppercase(),
        &disk.replace('a', "A"),
        &disk[..disk.len() - 1],
        &format!("{disk}0"),
        &format!(" {disk}"),
        &format!("ten_{digits}"),
        "dsk_é",
    ] {
        assert_eq!(
            wrong.parse::<DiskId>(),
            Err(ParseIdError { prefix: "dsk" }),
            "{wrong:?}"
        );
    }
    for wrong in ["", &disk, &digits.to_uppercase(), &digits[1..], "é"] {
        assert_eq!(
            DiskId::from_hex(wrong),
            Err(ParseIdError { prefix: "dsk" }),
            "{wrong:?}"
        );
    }
    let refused = "firn_secret".parse::<TenantId>().unwrap_err().to_string();
    assert!(
        refused.contains("ten_") && !refused.contains("secret"),
        "{refused}"
    );
}

#[test]
fn records_may_hold_the_digits_alone() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Record {
        #[serde(with = "firn_ids::digits")]
        disk: DiskId,
    }
    let record = Record {
        disk: DiskId([0xa0; 16]),
    };
    let json = serde_json::to_string(&record).unwrap();
    assert_eq!(json, format!("{{\"disk\":\"{}\"}}", "a0".repeat(16)));
    assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), record);
    for wrong in [
        json.replace("a0", "A0"),
        json.replace("\"a0", "\"dsk_a0"),
        json.replace("a0\"", "\""),
    ] {
        serde_json::from_str::<Record>(&wrong).unwrap_err();
    }
}

proptest! {
    #[test]
    fn whatever_is_read_is_written_the_same(text in "\\PC{0,80}|(ten_)?[0-9a-f]{30,34}|ten_[0-9a-fA-F]{32}") {
        if let Ok(id) = text.parse::<TenantId>() {
            prop_assert_eq!(id.to_string(), &*text);
        }
        if let Ok(id) = TenantId::from_hex(&text) {
            prop_assert_eq!(id.hex().to_string(), &*text);
        }
        if let Some(bytes) = parse_hex::<32>(&text) {
            prop_assert_eq!(firn_ids::Hex(&bytes).to_string(), text);
        }
    }

    #[test]
    fn what_is_drawn_is_read_back(bytes: [u8; 16]) {
        let id = NodeId::random(&mut |room| room.copy_from_slice(&bytes));
        prop_assert_eq!(id, NodeId(bytes));
        prop_assert_eq!(id.to_string().parse(), Ok(id));
    }
}
