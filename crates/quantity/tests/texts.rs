//! Texts of quantities: what people may write, what is answered to anything else, and what is printed.

use firn_quantity::{ParseQuantityError, Size, Span};
use proptest::prelude::*;
use std::time::Duration;

#[test]
fn sizes_and_spans_need_a_unit_and_fit_64_bits() {
    assert_eq!("10GiB".parse(), Ok(Size(10 << 30)));
    assert_eq!("10 GB".parse(), Ok(Size(10_000_000_000)));
    assert_eq!("4096B".parse(), Ok(Size(4096)));
    assert_eq!("1 PiB".parse(), Ok(Size(1 << 50)));
    assert_eq!("30 s".parse(), Ok(Span(Duration::from_secs(30))));
    assert_eq!("2h".parse(), Ok(Span(Duration::from_secs(7200))));
    for wrong in [
        "",
        "10",
        "GiB",
        "10G",
        "-1 B",
        "1.5 GiB",
        "10 gib",
        " 10 GiB",
        "10 GiB more",
        "é",
    ] {
        let error = wrong.parse::<Size>().unwrap_err();
        assert!(
            error.to_string().contains("write for example \"10 GiB\""),
            "{error}"
        );
    }
    for large in ["99999999 PiB", "99999999999999999999 B"] {
        let error = large.parse::<Size>().unwrap_err();
        assert!(matches!(error, ParseQuantityError::TooLarge { .. }), "{error}");
    }
    let long = "é".repeat(1000).parse::<Span>().unwrap_err().to_string();
    assert!(
        long.len() < 200,
        "no more is repeated than tells what is meant: {long}"
    );
}

#[test]
fn a_command_line_may_say_bytes_without_a_unit_and_a_file_may_not() {
    assert_eq!(Size::parse_or_bytes("8388608"), Ok(Size(8 << 20)));
    assert_eq!(Size::parse_or_bytes("8 MiB"), Ok(Size(8 << 20)));
    assert!(Size::parse_or_bytes("").is_err() && Size::parse_or_bytes("GiB").is_err());
    let refused = |json: &str| serde_json::from_str::<Size>(json).unwrap_err().to_string();
    assert!(refused("4").contains("a size in quotes with its unit, such as \"4 GiB\""));
    assert!(refused("1.5").contains("in quotes"));
    assert!(refused("\"4\"").contains("10 GiB"));
    assert_eq!(serde_json::from_str::<Size>("\"4 GiB\"").unwrap(), Size(4 << 30));
    assert_eq!(
        serde_json::from_str::<Span>("\"5 min\"").unwrap(),
        Span(Duration::from_secs(300))
    );
    assert!(
        serde_json::from_str::<Span>("5")
            .unwrap_err()
            .to_string()
            .contains("a length of time")
    );
}

#[test]
fn sizes_are_printed_in_the_largest_unit_of_which_there_is_one() {
    for (bytes, text) in [
        (0, "0 B"),
        (5, "5 B"),
        (1536, "1.5 KiB"),
        (3 << 20, "3 MiB"),
        (10 << 30, "10 GiB"),
        (u64::MAX, "16384.0 PiB"),
    ] {
        assert_eq!(Size(bytes).to_string(), text);
    }
    assert_eq!(format!("{:>8}", Size(5)), "     5 B");
}

proptest! {
    #[test]
    fn no_text_panics_and_what_is_exact_reads_back(text in "\\PC{0,60}|[0-9]{0,22} ?[KMGTP]?i?B", bytes in any::<u64>()) {
        let _ = text.parse::<Size>();
        let _ = text.parse::<Span>();
        let printed = Size(bytes).to_string();
        if !printed.contains('.') {
            prop_assert_eq!(printed.parse(), Ok(Size(bytes)));
        }
    }
}
