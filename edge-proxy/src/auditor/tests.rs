//! The calendar, and who may sign.

use super::*;

const DAY: Duration = Duration::from_secs(86_400);
const HOUR_MS: i64 = 3_600_000;

#[test]
fn the_calendar_goes_on_where_the_last_audit_ended() {
    let due = |outcome, now_ms| due_at(Some((1000, outcome)), DAY, 7, now_ms);
    assert_eq!(due(Outcome::Intact, 2000), 1000 + 24 * HOUR_MS);
    // Long off: at once, and one, not one for each day.
    assert_eq!(due(Outcome::Intact, 100 * 24 * HOUR_MS), 1000 + 24 * HOUR_MS);
    assert_eq!(due(Outcome::Failed, 2000), 1000 + HOUR_MS);
    assert_eq!(due_at(None, DAY, 7, 5), 7);
}

#[test]
fn a_clock_that_was_wrong_delays_no_audit_for_longer_than_the_calendar_says() {
    let future = Some((i64::MAX - 1, Outcome::Intact));
    assert_eq!(due_at(future, DAY, 7, 1000), 1000 + 24 * HOUR_MS);
    assert_eq!(due_at(None, DAY, i64::MAX, 1000), 1000 + 24 * HOUR_MS);
}

#[test]
fn the_default_finds_one_percent_nearly_always() {
    let missed = (1.0 - TOLD_SHARE).powi(i32::try_from(firn_cleaner::DEFAULT_CHALLENGES).expect("few"));
    assert!(missed < 0.001, "{missed}");
}
