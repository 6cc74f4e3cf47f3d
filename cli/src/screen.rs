//! Output: tables for people, JSON for programs. Standard output carries the result only; what is said beside goes to
//! standard error, so that a pipe gets no more than it asked for.

use crate::{arguments::Output, failure::Failure, times};
use firn_quantity::Size;
use serde_json::Value;
use std::io::{IsTerminal as _, Write as _};

/// How results are printed.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    output: Output,
    colour: bool,
}

impl Screen {
    pub fn new(output: Output) -> Self {
        // https://no-color.org: any value but an empty one.
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            output,
            colour: !refused && std::io::stdout().is_terminal(),
        }
    }

    pub fn is_json(self) -> bool {
        self.output == Output::Json
    }

    /// Prints `value` as JSON, its times as RFC 3339, or what `table` makes of it.
    pub fn show(self, value: &Value, table: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
        match self.output {
            Output::Json => {
                let text = serde_json::to_string_pretty(&times::stamped(value))
                    .map_err(|error| Failure::failed(error.to_string()))?;
                self.print(&format!("{text}\n"))
            }
            Output::Table => self.print(&table(value)),
        }
    }

    /// Prints text as it is. A reader that went away is no failure of ours.
    pub fn print(self, text: &str) -> Result<(), Failure> {
        match std::io::stdout().lock().write_all(text.as_bytes()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Failure::failed(format!("the output cannot be written: {error}")))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// A table with a heading for each column. Columns of `right` are aligned at their right.
    pub fn table(self, heads: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells
                .map(|cell| cell.chars().count())
                .chain([heads[column].len()])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..heads.len()).map(width).collect();
        let line = |cells: &[String]| {
            let mut text = String::new();
            for (column, cell) in cells.iter().enumerate() {
                let pad = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
                if right.contains(&column) {
                    text.push_str(&pad);
                    text.push_str(cell);
                } else {
                    text.push_str(cell);
                    text.push_str(&pad);
                }
                text.push_str("  ");
            }
            format!("{}\n", text.trim_end())
        };
        let head = line(&heads.iter().map(|head| head.to_uppercase()).collect::<Vec<_>>());
        let mut text = self.strong(&head);
        for row in rows {
            text.push_str(&line(row));
        }
        text
    }

    /// Emphasised, if colours are wanted.
    pub fn strong(self, text: &str) -> String {
        if self.colour {
            format!(
                "\x1b[1m{}\x1b[0m{}",
                text.trim_end_matches('\n'),
                if text.ends_with('\n') { "\n" } else { "" }
            )
        } else {
            text.to_owned()
        }
    }
}

/// Says something beside the result.
pub fn note(text: &str) {
    // Nobody may be reading; what was asked for goes on.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn member<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, name| value.get(name))
}

/// A member of an object as text: strings without quotes, nothing for what is absent. Control characters, with which a name
/// could move a terminal's cursor, are shown as such.
pub fn field(value: &Value, path: &str) -> String {
    match member(value, path) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => printable(text),
        Some(Value::Array(items)) => {
            let texts: Vec<String> = items
                .iter()
                .map(|item| item.as_str().map_or_else(|| item.to_string(), printable))
                .collect();
            texts.join(",")
        }
        Some(other) => other.to_string(),
    }
}

/// A member as people read it: a time in their zone, a size in its unit, lists and what is nested on one line.
pub fn told(value: &Value, path: &str) -> String {
    let name = path.rsplit('.').next().unwrap_or(path);
    member(value, path).map_or_else(String::new, |found| told_as(name, found))
}

fn told_as(name: &str, value: &Value) -> String {
    if let Some(time) = times::time_of(name, value) {
        return times::told(time);
    }
    match value {
        Value::Null => String::new(),
        Value::String(text) => printable(text),
        Value::Number(number) if name.ends_with("_bytes") => number
            .as_u64()
            .map_or_else(|| number.to_string(), |bytes| Size(bytes).to_string()),
        Value::Array(items) => join(items.iter().map(|item| told_as(name, item))),
        Value::Object(members) => join(members.iter().map(|(name, value)| {
            let text = told_as(name, value);
            format!("{} {text}", label(name))
        })),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(number) => number.to_string(),
    }
}

fn join(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}

/// What a member is called on the screen.
pub fn label(name: &str) -> String {
    name.strip_suffix("_bytes").unwrap_or(name).replace('_', " ")
}

fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// Rows of a list's items.
pub fn rows(items: &[Value], paths: &[&str]) -> Vec<Vec<String>> {
    let row = |item: &Value| paths.iter().map(|path| told(item, path)).collect();
    items.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_stand_in_line_and_nothing_in_them_moves_the_cursor() {
        let screen = Screen {
            output: Output::Table,
            colour: false,
        };
        let items = [json!({ "name": "a\u{1b}[2J", "n": 1 }), json!({ "name": "Büro" })];
        let text = screen.table(&["name", "n"], &[1], &rows(&items, &["name", "n"]));
        assert_eq!(text, "NAME   N\na\u{fffd}[2J  1\nBüro\n");
    }

    #[test]
    fn what_is_nested_is_told_on_one_line() {
        let volume = json!({ "policy": { "hourly": 48, "kept_bytes": 3_u64 << 30 }, "tags": ["a", "b"], "capped": false });
        assert_eq!(told(&volume, "policy"), "hourly 48, kept 3 GiB");
        assert_eq!(told(&volume, "tags"), "a, b");
        assert_eq!(told(&volume, "policy.kept_bytes"), "3 GiB");
        assert_eq!(told(&volume, "capped"), "no");
        assert_eq!(told(&volume, "absent.member"), "");
    }
}
