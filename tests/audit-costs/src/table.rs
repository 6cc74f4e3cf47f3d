//! Tables in Markdown, and figures in them.

use crate::asked::{Asked, CLASS_NAMES, Series, deviation};
use firn_quantity::Money;

/// A table of so many columns.
pub struct Table {
    columns: usize,
    text: String,
}

impl Table {
    /// With its head.
    pub fn new(head: &[&str]) -> Self {
        let mut table = Self {
            columns: head.len(),
            text: String::new(),
        };
        table.row(head.iter().map(ToString::to_string));
        table.text += &"|---".repeat(head.len());
        table.text += "|\n";
        table
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has another number of cells than the head.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns, "{cells:?}");
        self.text += &format!("| {} |\n", cells.join(" | "));
    }

    /// The whole.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// What was counted, class by class.
pub fn of_series<'a>(all: impl IntoIterator<Item = &'a Series>) -> String {
    let mut table = Table::new(&[
        "work",
        "counted",
        "a unit at N",
        "a unit at 4 N",
        "at 4 N, foretold by N and 2 N",
        "counted",
    ]);
    for series in all {
        let [(fewest, least), _, (most, last)] = &series.sizes;
        let (least, last, foretold) = (least.counts(), last.counts(), series.foretold());
        for (class, name) in CLASS_NAMES.iter().enumerate() {
            if last[class] == 0 {
                continue;
            }
            let off = deviation(foretold[class], last[class]);
            table.row([
                format!("{}, {fewest} to {most} {}s", series.what, series.unit),
                (*name).to_owned(),
                figure(least[class] as f64 / *fewest as f64),
                figure(last[class] as f64 / *most as f64),
                grouped(foretold[class]),
                format!("{} ({} off)", grouped(last[class]), percent(off)),
            ]);
        }
    }
    table.text
}

/// Requests of a row, in few words.
pub fn requests(asked: &Asked) -> String {
    let counts = asked.counts();
    let told = CLASS_NAMES.iter().zip(counts).filter(|(name, count)| {
        *count > 0
            && !name.starts_with("bytes")
            && !name.starts_with("table: read units")
            && !name.starts_with("table: write units")
    });
    let told: Vec<String> = told
        .map(|(name, count)| format!("{} {name}", grouped(count)))
        .collect();
    match told.is_empty() {
        true => "none".to_owned(),
        false => told.join(", "),
    }
}

/// Thousands apart.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// With three digits that tell something.
pub fn figure(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value >= 100.0 => grouped(value.round() as u64),
        value if value >= 1.0 => format!("{value:.2}"),
        value if value >= 0.01 => format!("{value:.4}"),
        value => format!("{value:.6}"),
    }
}

/// A share.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        percent if percent > 99.99 => "over 99.99 %".to_owned(),
        percent if percent >= 99.0 => format!("{percent:.2} %"),
        percent if percent >= 10.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.2} %"),
    }
}

/// Money to the cent from ten cents on, and to three digits below.
pub fn dollars(money: Money) -> String {
    match money.as_f64() {
        0.0 => "$0".to_owned(),
        amount if amount >= 100.0 => format!("${}", grouped(amount.round() as u64)),
        amount if amount >= 0.1 => format!("${amount:.2}"),
        amount if amount >= 0.001 => format!("${amount:.4}"),
        amount => format!("${amount:.7}"),
    }
}

/// Bytes, in the unit that suits.
pub fn bytes(count: u64) -> String {
    let count = count as f64;
    match count {
        count if count >= 1e12 => format!("{:.2} TB", count / 1e12),
        count if count >= 1e9 => format!("{:.2} GB", count / 1e9),
        count if count >= 1e6 => format!("{:.1} MB", count / 1e6),
        count if count >= 1e4 => format!("{:.1} KB", count / 1e3),
        count => format!("{count} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_told_with_what_they_mean() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
        assert_eq!(dollars(Money::of_nanos(23_456_000_000)), "$23.46");
        assert_eq!(dollars(Money::of_nanos(2_355_200_000_000)), "$2,355");
        assert_eq!(dollars(Money::of_nanos(3_400)), "$0.0000034");
        assert_eq!(percent(0.999_99), "over 99.99 %");
        assert_eq!(
            percent(1.0),
            "over 99.99 %",
            "of a probability that a number of 64 bits rounds up"
        );
        assert_eq!(bytes(9_700), "9700 bytes");
        assert_eq!(bytes(1 << 40), "1.10 TB");
    }
}
