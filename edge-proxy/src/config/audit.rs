//! `[audit]`: how often a volume is audited, how thoroughly, for how much.

use firn_cleaner::{DEFAULT_CHALLENGES, MAX_CHALLENGES};
use firn_quantity::{Money, Span};
use serde::{Deserialize, Deserializer, de::Error};
use std::time::Duration;

/// By which budgets go.
const MONTH: Duration = Duration::from_secs(30 * 86_400);

/// Audits of each volume by this edge.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditSection {
    /// Absent: only when somebody asks.
    pub every: Option<Span>,
    /// Bytes that are drawn.
    pub challenges: u32,
    /// What the store may charge for those of a month.
    #[serde(deserialize_with = "dollars")]
    pub monthly_budget: Money,
    /// Whether the second store is audited as well, if there is one.
    pub second: bool,
}

impl Default for AuditSection {
    fn default() -> Self {
        Self {
            every: None,
            challenges: DEFAULT_CHALLENGES,
            monthly_budget: Money::parse("1").expect("a dollar"),
            second: true,
        }
    }
}

fn dollars<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Money, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = || D::Error::custom(format!("{text:?} is no amount of dollars such as \"0.25\""));
    Money::parse(&text).ok_or_else(wrong)
}

impl AuditSection {
    /// What one may cost, so that those of 30 days cost the month's budget: rounded down to a billionth of a dollar.
    pub fn budget_of_one(&self) -> Money {
        let every = self.every.map_or(MONTH, |every| every.0.min(MONTH));
        let nanos = u128::from(self.monthly_budget.nanos()) * every.as_millis() / MONTH.as_millis();
        Money::of_nanos(u64::try_from(nanos).expect("no more than the month's"))
    }

    pub fn check(&self) -> Result<(), String> {
        let (hour, year) = (Duration::from_secs(3600), Duration::from_secs(366 * 86_400));
        if self.every.is_some_and(|every| !(hour..=year).contains(&every.0)) {
            return Err("audit.every must be between 1 h and 8784 h".into());
        }
        if !(1..=MAX_CHALLENGES).contains(&self.challenges) {
            return Err(format!("audit.challenges must be between 1 and {MAX_CHALLENGES}"));
        }
        if self.every.is_some() && self.budget_of_one().nanos() == 0 {
            return Err(
                "audit.monthly_budget: nothing is left for one audit; give more, or leave audit.every out"
                    .into(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_of_audits_costs_its_budget_at_most() {
        let section = |every_hours: u64| AuditSection {
            every: Some(Span(Duration::from_secs(every_hours * 3600))),
            ..AuditSection::default()
        };
        assert_eq!(section(24).budget_of_one(), Money::of_nanos(33_333_333));
        assert_eq!(section(24 * 90).budget_of_one(), Money::of_nanos(1_000_000_000));
        for hours in [1, 7, 24, 719] {
            let audits = 720 / hours;
            assert!(section(hours).budget_of_one().nanos() * audits <= 1_000_000_000);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let read = |text: &str| {
            let section: AuditSection = toml::from_str(text).map_err(|error| error.to_string())?;
            section.check()
        };
        read("every = \"24 h\"\nmonthly_budget = \"0.50\"").unwrap();
        read("").unwrap();
        for (text, why) in [
            ("every = \"10 min\"", "between 1 h and 8784 h"),
            ("challenges = 0", "between 1 and 100000"),
            ("monthly_budget = \"much\"", "no amount of dollars"),
            ("every = \"24 h\"\nmonthly_budget = \"0\"", "nothing is left"),
            ("monthly = \"1\"", "unknown field"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
