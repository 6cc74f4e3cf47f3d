//! The plan of a budget: how many challenges it buys, when each segment was touched, and what would be noticed.

use crate::{
    archive::{ARCHIVES, Archive, BUDGET, MONTH_DAYS, ROUTES, prices},
    asked::Asked,
    audits::Audits,
    table::{Table, bytes, dollars, figure, grouped, percent, requests},
};
use firn_cleaner::{DEFAULT_CHALLENGES, MAX_CHALLENGES};
use firn_quantity::Money;
use firn_store::Route;

/// Audits in a month of the page, by what people call it.
const CADENCES: [(u64, &str); 3] = [(MONTH_DAYS, "daily"), (4, "weekly"), (1, "once a month")];
/// Euler's constant, of the harmonic numbers.
const EULER: f64 = 0.577_215_664_9;

/// A month's audits of an archive.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Audits.
    pub audits: u64,
    /// What one may cost.
    pub each: Money,
    /// What one costs before its first challenge.
    pub fixed: Money,
    /// Challenges of one: of the trees, and as many of the manifest.
    pub challenges: u64,
    /// What a month costs.
    pub month: Money,
}

impl Plan {
    /// So many audits for `budget`, each with what is left after `fixed` for challenges of a price.
    pub fn new(budget: Money, audits: u64, fixed: Money, challenge: Money) -> Self {
        let each = Money(budget.0 / i128::from(audits));
        let left = each.0 - fixed.0;
        let challenges = match challenge.0 > 0 && left > 0 {
            true => u64::try_from(left / challenge.0)
                .unwrap_or(u64::MAX)
                .min(u64::from(MAX_CHALLENGES)),
            false => 0,
        };
        // One that does not come to its first challenge spends what it has in the walk.
        let cost = match challenges {
            0 => each.0,
            some => fixed.0 + i128::from(some) * challenge.0,
        };
        Self {
            audits,
            each,
            fixed,
            challenges,
            month: Money(cost * i128::from(audits)),
        }
    }

    /// Whether its audits come to an end.
    pub fn is_complete(&self) -> bool {
        self.challenges > 0
    }

    /// The probability to notice in a month that so much of the live bytes is damaged, whichever bytes these are: only draws of the trees count.
    pub fn notices(&self, share: f64) -> f64 {
        1.0 - (1.0 - share).powf((self.challenges * self.audits) as f64)
    }

    /// Segments of which a month's challenges read something, as expected.
    pub fn touched(&self, segments: u64) -> f64 {
        let draws = (2 * self.challenges * self.audits) as f64;
        segments as f64 * (1.0 - (draws * (-1.0 / segments as f64).ln_1p()).exp())
    }

    /// Months until each segment has been touched, as expected: the coupon collector's.
    pub fn months_until_all(&self, segments: u64) -> Option<f64> {
        let draws = (2 * self.challenges * self.audits) as f64;
        let segments = segments as f64;
        (draws > 0.0).then(|| segments * (segments.ln() + EULER) / draws)
    }
}

/// What an audit of an archive asks before its first challenge.
pub fn fixed(audits: &Audits, archive: Archive) -> Asked {
    audits
        .walk
        .at(archive.blocks())
        .plus(&audits.leaves.at(archive.segments()))
}

/// The price of a challenge.
fn challenge(audits: &Audits, route: Route) -> Money {
    let some = audits.challenges.at(1_001_000).since(&audits.challenges.at(1000));
    Money(some.bill(prices(), (route, route)).total().0 / 1_000_000)
}

/// The price of what an audit asks before its first challenge.
fn fixed_money(audits: &Audits, archive: Archive, route: Route) -> Money {
    fixed(audits, archive).bill(prices(), (route, route)).total()
}

/// The best plan of those that are told: the most frequent of which audits end, or the once a month that does not.
pub fn best(audits: &Audits, archive: Archive, route: Route) -> Plan {
    let (fixed, challenge) = (fixed_money(audits, archive, route), challenge(audits, route));
    let plans = CADENCES.map(|(count, _)| Plan::new(BUDGET, count, fixed, challenge));
    let enough = |plan: &&Plan| plan.challenges >= u64::from(DEFAULT_CHALLENGES);
    plans
        .iter()
        .find(enough)
        .or(plans.last())
        .expect("some cadences")
        .clone()
}

/// The section of the page.
pub fn page(audits: &Audits) -> String {
    let challenge_asked = audits.challenges.at(1_001_000).since(&audits.challenges.at(1000));
    let mut text = format!(
        "An audit walks all trees, reads the manifest's leaves and a listing, and then its challenges: each draws a byte of the live data, whose object is read, and a byte of the log, of whose segment the index and an object are read: \
         {gets} GETs and {down} a challenge, counted. It costs {far} over the internet and {near} beside the bucket.\n\n",
        gets = figure(audits.challenges.each("GETs")),
        down = bytes(challenge_asked.first.bytes_down / 1_000_000),
        far = dollars(challenge(audits, Route::Internet)),
        near = dollars(challenge(audits, Route::SameRegion)),
    );
    let mut table = Table::new(&[
        "archive",
        "from",
        "walk: requests, bytes",
        "the same, each node by itself",
        "leaves and listing",
        "before the first challenge",
        "the least a month: one audit that ends",
    ]);
    for archive in ARCHIVES {
        for (route, from) in ROUTES {
            let (walk, alone) = (
                audits.walk.at(archive.blocks()),
                audits.scattered_walk.at(archive.blocks()),
            );
            let leaves = audits.leaves.at(archive.segments());
            let money = |asked: &Asked| dollars(asked.bill(prices(), (route, route)).total());
            let fixed = fixed_money(audits, archive, route);
            let least = Money(fixed.0 + i128::from(DEFAULT_CHALLENGES) * challenge(audits, route).0);
            table.row([
                format!("{} TiB", archive.tib),
                from.to_owned(),
                format!(
                    "{}; {}; {}",
                    requests(&walk),
                    bytes(walk.first.bytes_down),
                    money(&walk)
                ),
                format!("{}; {}", requests(&alone), money(&alone)),
                format!(
                    "{}; {}; {}",
                    requests(&leaves),
                    bytes(leaves.first.bytes_down),
                    money(&leaves)
                ),
                dollars(fixed),
                format!("{} with {} challenges", dollars(least), DEFAULT_CHALLENGES),
            ]);
        }
    }
    text += table.text();
    text += &format!(
        "\nWhat {} a month buys ({} challenges of one audit at most; nodes lie together, as after bulk):\n\n",
        dollars(BUDGET),
        grouped(u64::from(MAX_CHALLENGES))
    );
    let mut table = Table::new(&[
        "archive",
        "from",
        "audits",
        "does one end?",
        "challenges of one",
        "in a month",
        "costs a month",
        "segments touched in a month",
        "until each was touched",
        "0.1 % damaged is noticed",
        "1 % damaged is noticed",
    ]);
    for archive in ARCHIVES {
        for (route, from) in ROUTES {
            for (count, often) in CADENCES {
                let plan = Plan::new(
                    BUDGET,
                    count,
                    fixed_money(audits, archive, route),
                    challenge(audits, route),
                );
                table.row(row(archive, from, often, &plan));
            }
        }
    }
    text += table.text();
    let cut = &audits.cut;
    text += &format!(
        "\n**Where an audit does not end**, the money is too little for the walk: then it goes through the trees in their order, draws among what it came to, and says *incomplete*; the manifest is not held against the bucket. \
         The next one goes on where it was cut off, through the trees and then the manifest and the listing, so that everything is gone through by and by; *a round* in the table is in how many audits at least, what money there is divided by what one whole audit takes. \
         Counted: where an audit spent {} of what a whole one costs, the walk had come to {} of the data; after {} audits, each gone on with, to {}. \
         To know it sooner give audits more money, or run `firn-cleaner audit` beside the bucket.\n\n\
         Each audit that ends compares all names and lengths with a listing: what is not shown is named for certain, without a draw. *Touched* are segments of which a challenge read something, by both kinds of draws, as expected of draws by bytes \
         (computed: of S segments n draws touch S(1 − (1 − 1/S)ⁿ), and all after S(ln S + 0.577)). *Noticed* is 1 − (1 − x)ⁿ with the month's draws of live data alone, as reports print it; how often audits really noticed is in [audits-in-figures.md](audits-in-figures.md).\n",
        percent(cut.spent_share),
        percent(cut.counted_share),
        cut.audits,
        percent(cut.round_share),
    );
    text
}

fn row(archive: Archive, from: &str, often: &str, plan: &Plan) -> [String; 11] {
    let segments = archive.segments();
    let told = |text: String| if plan.is_complete() { text } else { "-".to_owned() };
    let ends = match plan.is_complete() {
        true => "yes".to_owned(),
        false => format!(
            "**no**: {} of {}; a round in {} audits",
            dollars(plan.each),
            dollars(plan.fixed),
            grouped(u64::try_from((plan.fixed.0 + plan.each.0 - 1) / plan.each.0.max(1)).unwrap_or(u64::MAX))
        ),
    };
    [
        format!("{} TiB", archive.tib),
        from.to_owned(),
        often.to_owned(),
        ends,
        told(grouped(plan.challenges)),
        told(grouped(plan.challenges * plan.audits)),
        dollars(plan.month),
        told(format!(
            "{} of {}",
            grouped(plan.touched(segments) as u64),
            grouped(segments)
        )),
        plan.months_until_all(segments)
            .map_or("never".to_owned(), |months| format!("{} months", figure(months))),
        told(percent(plan.notices(0.001))),
        told(percent(plan.notices(0.01))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_what_is_before_the_challenges_and_the_challenges() {
        let cents = |cents: i128| Money(cents * 10_000_000);
        let plan = Plan::new(cents(100), 4, cents(20), Money(10_000));
        assert_eq!((plan.each, plan.challenges), (cents(25), 5000));
        assert_eq!(plan.month, cents(100), "the budget, and not more");
        let plan = Plan::new(cents(100), 1, cents(20), Money(1));
        assert_eq!(plan.challenges, u64::from(MAX_CHALLENGES));
        assert_eq!(plan.month.0, cents(20).0 + 100_000);
        let plan = Plan::new(cents(100), 30, cents(20), Money(10_000));
        assert!(!plan.is_complete());
        assert_eq!((plan.notices(0.5), plan.months_until_all(10)), (0.0, None));
    }

    #[test]
    fn probabilities_and_coupons_are_those_of_a_simulation() {
        let plan = Plan {
            audits: 1,
            each: BUDGET,
            fixed: Money::ZERO,
            challenges: 100,
            month: BUDGET,
        };
        let (segments, runs) = (64_u64, 2000);
        let mut random = firn_env::sim::Seeded::new(3, 1);
        let (mut touched, mut draws_until_all, mut noticed) = (0, 0, 0);
        for _ in 0..runs {
            let mut seen = std::collections::BTreeSet::new();
            seen.extend((0..2 * plan.challenges).map(|_| random.below(segments)));
            touched += seen.len();
            noticed += u64::from((0..plan.challenges).any(|_| random.below(100) == 0));
            let mut seen = std::collections::BTreeSet::new();
            while (seen.len() as u64) < segments {
                seen.insert(random.below(segments));
                draws_until_all += 1;
            }
        }
        let runs = f64::from(runs);
        assert!((plan.touched(segments) - touched as f64 / runs).abs() < 0.2);
        let months = plan.months_until_all(segments).expect("some draws");
        assert!(
            (months - f64::from(draws_until_all) / runs / 200.0).abs() < 0.05,
            "{months}"
        );
        assert!((plan.notices(0.01) - noticed as f64 / runs).abs() < 0.05);
    }
}
