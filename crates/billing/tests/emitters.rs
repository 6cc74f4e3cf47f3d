//! The page's table of meters against the code: each meter is emitted where docs/billing.md says.

use firn_usage::Meter;
use std::{fs, path::Path};

/// The files of the page's rows for a meter: the last column of those whose first names it.
fn emitters(page: &str, meter: Meter) -> Vec<String> {
    let begins = format!("| `{meter}` |");
    let rows = page.lines().filter(|line| line.starts_with(&begins));
    let files = rows.filter_map(|row| row.trim_end_matches(" |").rsplit("| ").next());
    files
        .filter_map(|file| file.strip_prefix('`')?.strip_suffix('`'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_meter_is_emitted_where_the_page_says() {
    let root = Path::new("../..");
    let page = fs::read_to_string(root.join("docs/billing.md")).expect("the page");
    for meter in Meter::known() {
        let files = emitters(&page, meter);
        assert_eq!(files.len(), 1, "one row for {meter}, with a file: {files:?}");
        let source =
            fs::read_to_string(root.join(&files[0])).unwrap_or_else(|error| panic!("{}: {error}", files[0]));
        let constant = format!("Meter::{}", meter.to_string().to_uppercase().replace('-', "_"));
        assert!(
            source.contains(&constant),
            "{} does not emit {constant}",
            files[0]
        );
        assert!(
            source.contains("Observation {"),
            "{} makes no observations",
            files[0]
        );
    }
}

#[test]
fn a_row_without_a_file_is_no_emitter() {
    let page = "| `root-commits` | a root | the anchor |\n| `edge-hours` | an edge | `a/b.rs` |\n";
    assert_eq!(emitters(page, Meter::ROOT_COMMITS), Vec::<String>::new());
    assert_eq!(emitters(page, Meter::EDGE_HOURS), ["a/b.rs"]);
}
