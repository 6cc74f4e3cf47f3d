//! The batch's bytes: golden vectors, and what is refused.

use crate::{
    BATCH_MAX_BYTES, BATCH_MAX_RECORDS, BatchError, Incarnation, Meter, Observation, ResourceName, SourceId,
    TenantName, UsageBatch, UsageRecord,
};
use proptest::prelude::*;

fn observation(tenant: &str, resource: &str, meter: Meter, quantity: u64, from_ms: u64) -> Observation {
    Observation {
        tenant: TenantName::new(tenant).unwrap(),
        resource: ResourceName::new(resource).unwrap(),
        meter,
        quantity,
        from_ms,
        duration_ms: 60_000,
    }
}

fn golden() -> UsageBatch {
    UsageBatch::new(
        SourceId::new("api/1").unwrap(),
        Incarnation(0x0123_4567_89ab_cdef),
        7,
        vec![
            observation("acme", "volume/1", Meter::ROOT_COMMITS, 3, 1_767_225_600_000),
            observation(
                "acme",
                "volume/2",
                Meter::STORED_BYTE_HOURS,
                1 << 40,
                1_767_225_599_000,
            ),
            observation("zeta", "volume/1", Meter(900), u64::MAX, 1_767_225_660_000),
        ],
    )
    .unwrap()
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

#[test]
fn version_1_of_a_batch_has_these_bytes_for_ever() {
    let bytes = golden().encode().unwrap();
    assert_eq!(hex(&bytes), include_str!("batch-v1.hex").trim());
    assert_eq!(UsageBatch::decode(&bytes), Ok(golden()));
}

#[test]
fn version_1_of_a_record_in_json_has_these_fields_for_ever() {
    let text = include_str!("record-v1.json").trim();
    let record: UsageRecord = serde_json::from_str(text).unwrap();
    assert_eq!(Some(&record), golden().records().next().as_ref());
    assert_eq!(serde_json::to_string(&record).unwrap(), text);
    for (from, to) in [
        ("\"quantity\":3", "\"quantity\":-3"),
        ("\"quantity\":3", "\"quantity\":18446744073709551616"),
        ("\"quantity\":3", "\"quantity\":3.5"),
        ("\"quantity\":3", "\"quantity\":3,\"discount\":1"),
        ("root-commits", "free-lunches"),
        ("acme", "ac me"),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text);
        assert!(
            serde_json::from_str::<UsageRecord>(&changed).is_err(),
            "{changed}"
        );
    }
}

#[test]
fn a_batch_of_another_version_is_told_from_a_damaged_one() {
    let mut bytes = golden().encode().unwrap();
    bytes[4] = 2;
    assert_eq!(
        UsageBatch::decode(&bytes),
        Err(BatchError::Version { version: Some(2) })
    );
    bytes[4] = 1;
    bytes[20] ^= 1;
    assert_eq!(UsageBatch::decode(&bytes), Err(BatchError::Checksum));
    assert_eq!(
        UsageBatch::decode(b"hello"),
        Err(BatchError::Version { version: None })
    );
    let enormous = vec![0; BATCH_MAX_BYTES + 1];
    assert!(matches!(UsageBatch::decode(&enormous), Err(BatchError::Limit(_))));
}

#[test]
fn a_batch_without_records_or_numbers_is_none() {
    let some = observation("acme", "volume/1", Meter::ROOT_COMMITS, 1, 0);
    let make = |first, count| {
        UsageBatch::new(
            SourceId::new("api/1").unwrap(),
            Incarnation(1),
            first,
            vec![some.clone(); count],
        )
    };
    assert!(make(1, 0).is_err());
    assert!(make(0, 1).is_err());
    assert!(make(1, BATCH_MAX_RECORDS + 1).is_err());
    assert!(make(u64::MAX, 1).is_err());
    assert!(make(u64::MAX - 1, 1).is_ok());
    let late = Observation {
        from_ms: crate::LATEST_MS,
        ..some
    };
    assert!(UsageBatch::new(SourceId::new("a").unwrap(), Incarnation(1), 1, vec![late]).is_err());
}

#[test]
fn a_full_batch_of_an_ordinary_stream_takes_about_a_dozen_bytes_a_record() {
    let observations: Vec<_> = (0..BATCH_MAX_RECORDS as u64)
        .map(|number| {
            observation(
                &format!("tenant-{}", number % 50),
                &format!("volume/{:04x}", number % 200),
                Meter::ROOT_COMMITS,
                1 + number % 30,
                1_767_225_600_000 + number * 37 + number % 1000,
            )
        })
        .collect();
    assert_eq!(UsageBatch::fitting(&observations), BATCH_MAX_RECORDS);
    let batch = UsageBatch::new(SourceId::new("api/1").unwrap(), Incarnation(1), 1, observations).unwrap();
    let each = batch.encode().unwrap().len() / BATCH_MAX_RECORDS;
    assert!(each <= 14, "{each} bytes a record");
}

fn names() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9][a-zA-Z0-9._/-]{0,63}"
}

prop_compose! {
    fn any_observation()(
        tenant in names(), resource in names(), meter in any::<u16>(), quantity in any::<u64>(),
        from_ms in 0..=crate::LATEST_MS - u64::from(u32::MAX), duration_ms in any::<u32>(),
    ) -> Observation {
        Observation {
            tenant: TenantName::new(&tenant).unwrap(),
            resource: ResourceName::new(&resource).unwrap(),
            meter: Meter(meter),
            quantity,
            from_ms,
            duration_ms,
        }
    }
}

proptest! {
    #[test]
    fn what_is_encoded_reads_back(
        observations in proptest::collection::vec(any_observation(), 1..40), first in 1..1_u64 << 60, life in any::<u64>(),
    ) {
        let batch = UsageBatch::new(SourceId::new("node/1").unwrap(), Incarnation(life), first, observations).unwrap();
        prop_assert_eq!(UsageBatch::decode(&batch.encode().unwrap()), Ok(batch));
    }

    #[test]
    fn what_is_said_to_fit_does(observations in proptest::collection::vec(any_observation(), 1..40), times in 1..200_usize) {
        let many: Vec<_> = observations.iter().cycle().take(observations.len() * times).cloned().collect();
        let count = UsageBatch::fitting(&many);
        prop_assert!(count > 0);
        let source = SourceId::new(&"s".repeat(64)).unwrap();
        let batch = UsageBatch::new(source, Incarnation(1), 1, many[..count].to_vec()).unwrap();
        prop_assert!(batch.encode().is_ok());
    }

    #[test]
    fn arbitrary_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = UsageBatch::decode(&bytes);
        // Past the checksum too.
        let mut framed = b"FUSG\x01\x00".to_vec();
        framed.extend_from_slice(&bytes);
        framed.extend_from_slice(&crc32c::crc32c(&framed).to_le_bytes());
        if let Ok(batch) = UsageBatch::decode(&framed) {
            prop_assert_eq!(batch.encode().unwrap(), framed, "equal batches have equal bytes");
        }
    }

    #[test]
    fn a_changed_byte_never_gives_another_batch(place in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let mut bytes = golden().encode().unwrap();
        let place = place.index(bytes.len());
        bytes[place] ^= flip;
        prop_assert!(UsageBatch::decode(&bytes).is_err());
        // With a checksum that matches again it is another batch, or none, but has one spelling.
        let end = bytes.len() - 4;
        let checksum = crc32c::crc32c(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&checksum);
        if let Ok(batch) = UsageBatch::decode(&bytes) {
            prop_assert_eq!(batch.encode().unwrap(), bytes);
        }
    }
}
