//! Amounts and prices: exact, checked, and printed as people write them.

use firn_quantity::{Dollars, Money, Rate};
use proptest::prelude::*;

#[test]
fn amounts_print_as_people_write_them() {
    for (nanos, text) in [
        (270_000_000, "0.27"),
        (400, "0.0000004"),
        (-1, "-0.000000001"),
        (12_000_000_000, "12.00"),
        (0, "0.00"),
    ] {
        assert_eq!(Money(nanos).to_string(), text);
    }
    assert_eq!(format!("{:>8}", Dollars(Money(270_000_000))), "   $0.27");
    for text in [
        "",
        ".",
        "1.",
        ".5",
        "-1",
        "1e3",
        "0.0000000001",
        "1,5",
        "9999999999999999999",
    ] {
        assert_eq!(Money::parse(text), None, "{text:?}");
    }
    assert_eq!(serde_json::to_string(&Money(-5)).unwrap(), "\"-5\"");
    for text in ["\"+5\"", "\"05\"", "\"-0\"", "5", "\"5.0\""] {
        assert!(serde_json::from_str::<Money>(text).is_err(), "{text}");
    }
}

#[test]
fn half_a_nano_goes_up_and_less_goes_down() {
    let rate = Rate {
        amount: Money(1),
        per: 1000,
    };
    assert_eq!(rate.of(499).unwrap(), Money(0));
    assert_eq!(rate.of(500).unwrap(), Money(1));
    assert_eq!(rate.of(1499).unwrap(), Money(1));
    assert_eq!(rate.of(1500).unwrap(), Money(2));
}

#[test]
fn what_does_not_fit_is_an_error_of_a_bill_and_the_limit_of_an_estimate() {
    let rate = Rate {
        amount: Money(i128::MAX),
        per: 1,
    };
    assert!(rate.of(u128::MAX).is_err());
    assert_eq!(rate.estimate(u64::MAX), Money(i128::MAX));
    assert!(Money(i128::MAX).plus(Money(1)).is_err());
    assert_eq!(Money(i128::MAX).saturating_plus(Money(1)), Money(i128::MAX));
    assert!(Money(i128::MIN).negated().is_err());
    assert!(Money::sum([Money(i128::MAX), Money(1), Money(-5)]).is_err());
    assert_eq!(
        (
            Money(i128::MAX).nanos(),
            Money(-5).nanos(),
            Money::of_nanos(7).nanos()
        ),
        (u64::MAX, 0, 7)
    );
}

proptest! {
    #[test]
    fn a_printed_amount_reads_back(nanos in 0..i128::from(u64::MAX)) {
        prop_assert_eq!(Money::parse(&Money(nanos).to_string()), Some(Money(nanos)));
    }

    #[test]
    fn a_price_is_within_half_a_nano_of_the_exact_one(units in any::<u64>(), nanos in any::<u32>(), per in 1..u64::MAX / 2) {
        let rate = Rate { amount: Money(i128::from(nanos)), per };
        let doubled = 2 * i128::from(units) * i128::from(nanos);
        let price = rate.of(u128::from(units)).unwrap().0;
        let difference = doubled - 2 * price * i128::from(per);
        prop_assert!(difference.abs() <= i128::from(per), "off by more than a half");
    }

    #[test]
    fn the_price_of_many_is_the_sum_of_prices_but_for_one_rounding(
        nanos in 0..10_000_000_000_u64, per in 1..10_000_000_u64, one in 0..1_u64 << 40, other in 0..1_u64 << 40,
    ) {
        let rate = Rate { amount: Money::of_nanos(nanos), per };
        let apart = rate.estimate(one).saturating_plus(rate.estimate(other));
        prop_assert!(apart.0.abs_diff(rate.estimate(one + other).0) <= 1);
    }
}
