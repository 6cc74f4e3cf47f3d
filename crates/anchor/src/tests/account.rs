//! Notes of cleaners over a table that loses and delays: each counts once.

use super::support::{Dice, run, world};
use crate::{Anchor, AnchorCall, AnchorRole, CleaningAccount, CleaningNote, Listing, TupleError};
use firn_env::mutants::planting;
use firn_format::{FamilyId, SegmentId, WriterId};
use firn_table::{FaultRates, MemoryTable};

fn note(requests: u64) -> CleaningNote {
    CleaningNote {
        requests,
        listing: None,
        noted_at_ms: 1_800_000_000_000,
    }
}

/// What two cleaners noted with success, and what the account says, both in requests.
fn noted_by_two(seed: u64) -> (u64, u64) {
    let dice = Dice::new(seed);
    let table = MemoryTable::new();
    let rates = FaultRates {
        throttle_per_mille: 20,
        lose_reply_per_mille: 50,
        late_per_mille: 20,
        ..FaultRates::default()
    };
    let cleaners: Vec<_> = (0..2)
        .map(|_| {
            let env = world(dice.clone());
            let client = table.connect(&env);
            client.set_rates(rates.clone());
            Anchor::within(client, env, FamilyId([1; 16]), "anchor/t/v", AnchorRole::Cleaner)
        })
        .collect();
    let mut sum = 0;
    // One after the other: so an answer in doubt is resolved, and each that succeeds is counted.
    for number in 1..=200 {
        let cleaner = &cleaners[usize::from(number % 3 == 0)];
        if run(cleaner.note_cleaning(note(number))).is_ok() {
            sum += number;
        }
    }
    table.settle();
    let env = world(dice);
    let reader = Anchor::within(
        table.connect(&env),
        env,
        FamilyId([1; 16]),
        "anchor/t/v",
        AnchorRole::Observer,
    );
    (sum, run(reader.cleaning_account()).unwrap().0.requests)
}

#[test]
fn a_note_counts_once_whatever_is_lost_or_late() {
    for seed in 0..20 {
        let (noted, counted) = noted_by_two(seed);
        assert_eq!(counted, noted, "seed {seed}");
    }
    let (noted, counted) = planting(Some("anchor.notes_counted_twice"), || noted_by_two(1));
    assert!(counted > noted, "{counted} of {noted}");
}

#[test]
fn a_cleaner_notes_and_nobody_else() {
    let env = world(Dice::new(1));
    let call = AnchorCall::NoteCleaning {
        seen: None,
        note: note(1),
        change_id: [1; 16],
    };
    assert!(AnchorRole::Cleaner.may(&call));
    assert!(!AnchorRole::Edge.may(&call) && !AnchorRole::Observer.may(&call));
    let edge = Anchor::within(
        MemoryTable::new().connect(&env),
        env,
        FamilyId([1; 16]),
        "anchor/t/v",
        AnchorRole::Edge,
    );
    assert!(run(edge.note_cleaning(note(1))).is_err());
    assert_eq!(
        run(edge.cleaning_account()).unwrap(),
        (CleaningAccount::default(), None)
    );
}

#[test]
fn the_account_has_these_bytes_and_no_others_are_read() {
    let segment = SegmentId {
        writer: WriterId(7),
        sequence: 8,
    };
    let account = CleaningAccount {
        requests: 1,
        stored_byte_ms: (2 << 64) + 3,
        listed_bytes: 4,
        listed_at_ms: 5,
        swept: Some((segment, 6)),
        change_id: [9; 16],
    };
    let bytes = account.to_bytes();
    let number = |number: u8| format!("{number:02x}00000000000000");
    let expected: String = [
        "014101".to_owned(),
        (1..=8).map(number).collect(),
        "09".repeat(16),
    ]
    .concat();
    let hex = data_encoding::HEXLOWER.encode(&bytes);
    assert_eq!(hex, expected);
    assert_eq!(CleaningAccount::from_bytes(&bytes), Ok(account.clone()));
    let idle = CleaningAccount {
        swept: None,
        ..account
    };
    assert_eq!(CleaningAccount::from_bytes(&idle.to_bytes()), Ok(idle));
    // Flags say that no listing is under way, and there is the rest of one.
    let mut wrong = bytes.to_vec();
    wrong[2] = 0;
    assert!(matches!(
        CleaningAccount::from_bytes(&wrong),
        Err(TupleError::Malformed { .. })
    ));
    wrong[2] = 2;
    assert_eq!(
        CleaningAccount::from_bytes(&wrong),
        Err(TupleError::UnknownFlags { found: 2 })
    );
    for length in 0..bytes.len() {
        assert!(CleaningAccount::from_bytes(&bytes[..length]).is_err());
    }
    assert!(CleaningAccount::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
}

#[test]
fn the_text_of_a_note_is_this() {
    let call = AnchorCall::NoteCleaning {
        seen: None,
        note: CleaningNote {
            listing: Some(Listing {
                after: None,
                until: None,
                bytes: 1 << 40,
            }),
            ..note(12)
        },
        change_id: [0xab; 16],
    };
    let text = concat!(
        r#"{"note_cleaning":{"note":{"requests":"12","listing":{"bytes":"1099511627776"},"#,
        r#""noted_at_ms":1800000000000},"change_id":"abababababababababababababababab"}}"#
    );
    assert_eq!(serde_json::to_string(&call).unwrap(), text);
    assert_eq!(serde_json::from_str::<AnchorCall>(text).unwrap(), call);
}
