//! `docs/blockd.md` says what the code does: its tables of operations and refusals are those of the enums, and nothing else.

use bytes::Bytes;
use firn_blockd_protocol::*;
use std::collections::BTreeMap;

const PAGE: &str = include_str!("../../../docs/blockd.md");

/// The rows of the first table under a heading: code and name, the latter without spaces and in small letters.
fn table(heading: &str) -> BTreeMap<u8, String> {
    let section = PAGE
        .split_once(&format!("\n### {heading}\n"))
        .unwrap_or_else(|| panic!("the page has no heading {heading:?}"))
        .1;
    let section = section.split("\n#").next().unwrap_or_default();
    let rows: BTreeMap<u8, String> = section
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let code = cells.next()?.parse().ok()?;
            Some((code, plain(cells.next()?)))
        })
        .collect();
    assert!(!rows.is_empty(), "{heading} has a table with codes");
    rows
}

fn plain(name: &str) -> String {
    name.chars()
        .filter(|letter| letter.is_alphabetic())
        .collect::<String>()
        .to_lowercase()
}

#[test]
fn the_pages_operations_are_those_of_the_code() {
    let code: BTreeMap<u8, String> = Operation::ALL
        .iter()
        .map(|operation| (*operation as u8, plain(&format!("{operation:?}"))))
        .collect();
    assert_eq!(table("Operations"), code);
}

#[test]
fn the_pages_refusals_are_those_of_the_code() {
    let is_known = |status: &u8| {
        let header = FrameHeader {
            version: PROTOCOL_VERSION,
            kind: FrameKind::Reply,
            operation: Operation::Write as u8,
            status: *status,
            request: 1,
        };
        let frame = Frame {
            header,
            body: Bytes::new(),
            data: Bytes::new(),
        };
        !matches!(
            decode_reply(&frame),
            Err(DecodeError::Invalid { field: "status", .. })
        )
    };
    let known: Vec<u8> = (1..=u8::MAX).filter(is_known).collect();
    let page: Vec<u8> = table("Refusals").into_keys().collect();
    assert_eq!(page, known);
}

#[test]
fn the_page_names_the_versions_that_are_spoken() {
    let said = format!("## The protocol, versions {PREVIOUS_VERSION} and {PROTOCOL_VERSION}\n");
    assert!(PAGE.contains(&said), "{said:?} is no heading of the page");
}
