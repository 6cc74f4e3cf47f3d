//! The search itself, on models of which everything is known: it must see every state, the shortest history, and what cannot end.

use firn_lease_model::{Limits, Model, explore};
use std::fmt;

const ALL: Limits = Limits {
    depth: usize::MAX,
    states: usize::MAX,
};

/// Two processes take two locks, in the same order or crosswise.
struct Locks {
    orders: [[usize; 2]; 2],
    forbids_both_done: bool,
}

/// How far each process is, and who has which lock.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Held {
    taken: [usize; 2],
    by: [Option<usize>; 2],
}

#[derive(Clone, Copy)]
struct Turn(usize);

impl fmt::Display for Turn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "process {}", self.0)
    }
}

impl Model for Locks {
    type State = Held;
    type Step = Turn;

    fn initial(&self) -> Held {
        Held {
            taken: [0; 2],
            by: [None; 2],
        }
    }

    fn steps(&self, held: &Held) -> Vec<Turn> {
        let can_go = |process: &usize| match held.taken[*process] {
            taken @ (0 | 1) => held.by[self.orders[*process][taken]].is_none(),
            2 => true,
            _ => false,
        };
        (0..2).filter(can_go).map(Turn).collect()
    }

    fn take(&self, held: &Held, Turn(process): Turn) -> Result<Held, String> {
        let mut next = held.clone();
        match held.taken[process] {
            2 => next.by = held.by.map(|holder| holder.filter(|holder| *holder != process)),
            taken => next.by[self.orders[process][taken]] = Some(process),
        }
        next.taken[process] += 1;
        Ok(next)
    }

    fn check(&self, held: &Held) -> Result<(), String> {
        match self.forbids_both_done && held.taken == [3, 3] {
            true => Err("both are done".into()),
            false => Ok(()),
        }
    }

    fn is_from_outside(&self, _: Turn) -> bool {
        false
    }

    fn is_done(&self, held: &Held) -> bool {
        held.taken == [3, 3]
    }

    fn describe(&self, held: &Held) -> String {
        format!("{:?}", held.taken)
    }
}

#[test]
fn locks_in_one_order_always_end_and_every_state_is_seen() {
    let explored = explore(
        &Locks {
            orders: [[0, 1], [0, 1]],
            forbids_both_done: false,
        },
        ALL,
    );
    // One is at 0 or done while the other goes from 0 to 3.
    assert_eq!((explored.states, explored.depth), (12, 6));
    assert!(explored.is_whole && explored.broken.is_none());
}

#[test]
fn locks_crosswise_end_in_a_deadlock_that_is_found_by_its_shortest_history() {
    let explored = explore(
        &Locks {
            orders: [[0, 1], [1, 0]],
            forbids_both_done: false,
        },
        ALL,
    );
    let broken = explored.broken.expect("each has one and waits for the other");
    assert!(broken.promise.starts_with("progress"), "{broken}");
    assert_eq!(broken.trace.len(), 2, "{broken}");
    assert_eq!(broken.trace[1].1, "[1, 1]");
}

#[test]
fn a_broken_promise_is_told_with_all_steps_and_a_bound_is_said() {
    let locks = Locks {
        orders: [[0, 1], [0, 1]],
        forbids_both_done: true,
    };
    let broken = explore(&locks, ALL).broken.expect("both get done");
    assert_eq!(broken.trace.len(), 6, "{broken}");
    let bounded = explore(&locks, Limits { depth: 5, ..ALL });
    assert!(bounded.broken.is_none() && !bounded.is_whole);
    assert_eq!(bounded.depth, 5);
}
