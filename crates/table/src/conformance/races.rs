//! Many at once: what a conditional table is for.

use super::{Subject, check, delete, put};
use crate::{Condition, Item, ItemKey, TableError, Write};
use futures::future::join_all;
use std::future::Future;

const RACERS: usize = 8;
/// Tries until a racer gets its turn; far more than any fair engine needs.
const MAX_TRIES: usize = 10_000;

/// Runs a task for each racer and returns what they returned.
async fn race<T, F>(subject: &Subject, task: impl Fn(Subject, usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = (0..RACERS)
        .map(|racer| subject.env.spawn("racer", task(subject.clone(), racer)))
        .collect();
    join_all(tasks)
        .await
        .into_iter()
        .map(|ended| ended.expect("a racer ends"))
        .collect()
}

async fn succeeds(subject: &Subject, writes: Vec<Write>) -> bool {
    match subject.transact(writes).await {
        Ok(_) => true,
        Err(TableError::ConditionFailed { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

fn number(item: &Item) -> u64 {
    u64::from_le_bytes(item.value[..].try_into().expect("eight bytes"))
}

async fn read(subject: &Subject, key: &ItemKey) -> (u64, Condition) {
    let item = subject.get(key).await.expect("it was made at the start");
    (number(&item), Condition::Version(item.version))
}

fn put_number(key: &ItemKey, value: u64, condition: Condition) -> Write {
    put(key, &value.to_le_bytes(), condition)
}

pub(super) async fn of_many_creators_exactly_one_wins(subject: &Subject) {
    for round in 0..10 {
        let key = subject.key("creators", &round.to_string());
        let contested = key.clone();
        let won = race(subject, move |subject, racer| {
            let key = contested.clone();
            async move { succeeds(&subject, vec![put(&key, &[racer as u8], Condition::Absent)]).await }
        })
        .await;
        let winners: Vec<_> = (0..RACERS).filter(|racer| won[*racer]).collect();
        assert_eq!(winners.len(), 1, "winners {winners:?}");
        let item = subject.get(&key).await.expect("one won");
        assert_eq!(item.value[..], [winners[0] as u8], "what the winner put");
    }
}

pub(super) async fn of_many_deleters_exactly_one_wins(subject: &Subject) {
    for round in 0..10 {
        let key = subject.key("deleters", &round.to_string());
        let version = subject.create(&key, b"x").await;
        let contested = key.clone();
        let won = race(subject, move |subject, _| {
            let key = contested.clone();
            async move { succeeds(&subject, vec![delete(&key, version)]).await }
        })
        .await;
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
        assert_eq!(subject.get(&key).await, None);
    }
}

pub(super) async fn a_counter_under_conditional_puts_loses_no_increment(subject: &Subject) {
    const INCREMENTS: u64 = 20;
    let key = subject.key("counter", "counter");
    subject.create(&key, &0u64.to_le_bytes()).await;
    let contested = key.clone();
    race(subject, move |subject, _| {
        let key = contested.clone();
        async move {
            for _ in 0..INCREMENTS {
                let mut tries = 0;
                loop {
                    let (value, unchanged) = read(&subject, &key).await;
                    if succeeds(&subject, vec![put_number(&key, value + 1, unchanged)]).await {
                        break;
                    }
                    tries += 1;
                    assert!(tries < MAX_TRIES, "a racer never gets its turn");
                }
            }
        }
    })
    .await;
    assert_eq!(read(subject, &key).await.0, INCREMENTS * RACERS as u64);
}

/// Half of the racers move money between three accounts, the others look: what they read counts only if a transaction of
/// checks says that all three values stood at one moment.
pub(super) async fn transfers_never_show_a_sum_that_never_was(subject: &Subject) {
    const START: u64 = 1000;
    const ROUNDS: usize = 15;
    let accounts = ["a", "b", "c"].map(|name| subject.key("transfers", name));
    for account in &accounts {
        subject.create(account, &START.to_le_bytes()).await;
    }
    let contested = accounts.clone();
    let outcomes = race(subject, move |subject, racer| {
        let accounts = contested.clone();
        async move {
            let mut done = 0;
            for round in 0..MAX_TRIES {
                if done == ROUNDS {
                    break;
                }
                if racer % 2 == 0 {
                    let (from, to) = (&accounts[round % 3], &accounts[(round + 1 + racer / 2 % 2) % 3]);
                    let (from_value, from_unchanged) = read(&subject, from).await;
                    let (to_value, to_unchanged) = read(&subject, to).await;
                    let amount = from_value.min(7);
                    let writes = vec![
                        put_number(from, from_value - amount, from_unchanged),
                        put_number(to, to_value + amount, to_unchanged),
                    ];
                    done += usize::from(succeeds(&subject, writes).await);
                } else {
                    let mut sum = 0;
                    let mut writes = Vec::new();
                    for account in &accounts {
                        let (value, unchanged) = read(&subject, account).await;
                        sum += value;
                        writes.push(check(account, unchanged));
                    }
                    if succeeds(&subject, writes).await {
                        assert_eq!(sum, 3 * START, "a sum that never was");
                    }
                    done += 1;
                }
            }
            done
        }
    })
    .await;
    assert!(
        outcomes.iter().all(|done| *done == ROUNDS),
        "a racer never gets its turn: {outcomes:?}"
    );
    let mut sum = 0;
    for account in &accounts {
        sum += read(subject, account).await.0;
    }
    assert_eq!(sum, 3 * START);
}

/// Two doctors may go off duty if the other is on duty. Each changes its own item and only checks the other's: without the
/// check, both could leave at once (write skew).
pub(super) async fn a_check_protects_what_a_transaction_only_read(subject: &Subject) {
    for round in 0..10 {
        let duty = ["one", "two"].map(|name| subject.key("duty", &format!("{round}/{name}")));
        for key in &duty {
            subject.create(key, &1u64.to_le_bytes()).await;
        }
        let contested = duty.clone();
        race(subject, move |subject, racer| {
            let (mine, other) = (contested[racer % 2].clone(), contested[(racer + 1) % 2].clone());
            async move {
                let (my_value, my_unchanged) = read(&subject, &mine).await;
                let (other_value, other_unchanged) = read(&subject, &other).await;
                if my_value == 1 && other_value == 1 {
                    let writes = vec![put_number(&mine, 0, my_unchanged), check(&other, other_unchanged)];
                    succeeds(&subject, writes).await;
                }
            }
        })
        .await;
        let on_duty = read(subject, &duty[0]).await.0 + read(subject, &duty[1]).await.0;
        assert_eq!(on_duty, 1, "exactly one went off duty");
    }
}
