//! A budget that its owners share by dynamic thresholds: of a node, the memory of its connections and the connections themselves.
//!
//! Bounds of one connection bound nothing, since whoever has one can open a thousand. So every charge counts against its
//! **owner** (a tenant, another node; see [`Peer::owner`](crate::Peer::owner)), and an owner may hold as much as is still free
//! for everybody. One that is alone gets half of all; with n that take what they can get, each has 1/(n + 1) and as much is
//! left, so a newcomer always finds something, and nobody has to be told how many owners there are (Choudhury and Hahne,
//! "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998). An owner that holds nothing may have all that is
//! left, so that no charge waits for ever that fits at all.
//!
//! ```text
//! charged:  used(owner) + charge ≤ total − used(all)      or      used(owner) = 0 and charge ≤ total − used(all)
//! ```
//!
//! Who cannot be charged now waits behind earlier charges of the same owner; owners do not wait for each other.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::oneshot;

/// See the module. Cheap to clone.
pub struct Budget<O: Ord + Clone> {
    ledger: Arc<Mutex<Ledger<O>>>,
}

impl<O: Ord + Clone> Clone for Budget<O> {
    fn clone(&self) -> Self {
        Self {
            ledger: self.ledger.clone(),
        }
    }
}

struct Ledger<O: Ord + Clone> {
    total: usize,
    used: usize,
    /// Owners that hold something or wait for something, and no others.
    owners: BTreeMap<O, Holding<O>>,
}

struct Holding<O: Ord + Clone> {
    used: usize,
    waiting: VecDeque<(usize, oneshot::Sender<Charge<O>>)>,
}

impl<O: Ord + Clone> Default for Holding<O> {
    fn default() -> Self {
        Self {
            used: 0,
            waiting: VecDeque::new(),
        }
    }
}

/// One owner's way to a budget. Cheap to clone.
pub struct Account<O: Ord + Clone> {
    budget: Budget<O>,
    owner: O,
}

impl<O: Ord + Clone> Account<O> {
    /// Waits for `amount`; see [`Budget::charge`].
    pub async fn charge(&self, amount: usize) -> Charge<O> {
        self.budget.charge(&self.owner, amount).await
    }
}

/// A part of a budget that is in use; free again when dropped.
pub struct Charge<O: Ord + Clone> {
    /// Nothing once it was given back.
    budget: Option<Budget<O>>,
    owner: O,
    amount: usize,
}

impl<O: Ord + Clone> Charge<O> {
    /// How much it is.
    pub fn amount(&self) -> usize {
        self.amount
    }
}

impl<O: Ord + Clone> Drop for Charge<O> {
    fn drop(&mut self) {
        if let Some(budget) = self.budget.take() {
            budget.give_back(&self.owner, self.amount);
        }
    }
}

impl<O: Ord + Clone> Ledger<O> {
    fn fits(&self, owner: &O, amount: usize) -> bool {
        let free = self.total - self.used;
        match self.owners.get(owner).map_or(0, |holding| holding.used) {
            0 => amount <= free,
            used => used + amount <= free,
        }
    }

    fn take(&mut self, owner: &O, amount: usize) {
        self.used += amount;
        self.owners.entry(owner.clone()).or_default().used += amount;
    }

    fn put_back(&mut self, owner: &O, amount: usize) {
        self.used -= amount;
        if let Some(holding) = self.owners.get_mut(owner) {
            holding.used -= amount;
            if holding.used == 0 && holding.waiting.is_empty() {
                self.owners.remove(owner);
            }
        }
    }
}

impl<O: Ord + Clone> Budget<O> {
    /// So much for all owners together.
    pub fn new(total: usize) -> Self {
        Self {
            ledger: Arc::new(Mutex::new(Ledger {
                total,
                used: 0,
                owners: BTreeMap::new(),
            })),
        }
    }

    /// The way of `owner` to it.
    pub fn account(&self, owner: O) -> Account<O> {
        Account {
            budget: self.clone(),
            owner,
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger<O>> {
        self.ledger.lock().expect("no panic under this lock")
    }

    fn charge_of(&self, owner: &O, amount: usize) -> Charge<O> {
        Charge {
            budget: Some(self.clone()),
            owner: owner.clone(),
            amount,
        }
    }

    /// What is in use.
    pub fn used(&self) -> usize {
        self.ledger().used
    }

    /// Charges that wait.
    pub fn waiting(&self) -> usize {
        self.ledger()
            .owners
            .values()
            .map(|holding| holding.waiting.len())
            .sum()
    }

    /// Takes `amount` for `owner` if it can be had now.
    pub fn try_charge(&self, owner: &O, amount: usize) -> Option<Charge<O>> {
        let mut ledger = self.ledger();
        let is_first = ledger
            .owners
            .get(owner)
            .is_none_or(|holding| holding.waiting.is_empty());
        if !is_first || !ledger.fits(owner, amount) {
            return None;
        }
        ledger.take(owner, amount);
        drop(ledger);
        Some(self.charge_of(owner, amount))
    }

    /// Waits for `amount`, which must not be more than the whole budget. Cancel-safe.
    ///
    /// # Panics
    /// If it is more than the whole budget.
    pub async fn charge(&self, owner: &O, amount: usize) -> Charge<O> {
        if let Some(charge) = self.try_charge(owner, amount) {
            return charge;
        }
        let granted = {
            let mut ledger = self.ledger();
            assert!(amount <= ledger.total, "no charge is larger than the budget");
            let (grant, granted) = oneshot::channel();
            let holding = ledger.owners.entry(owner.clone()).or_default();
            holding.waiting.push_back((amount, grant));
            granted
        };
        // Something may have been given back in between.
        self.grant();
        granted
            .await
            .expect("a charge that waits is answered or dropped with the budget")
    }

    fn give_back(&self, owner: &O, amount: usize) {
        self.ledger().put_back(owner, amount);
        self.grant();
    }

    /// Grants what can be granted.
    fn grant(&self) {
        let mut granted = Vec::new();
        {
            let mut ledger = self.ledger();
            if ledger.owners.values().all(|holding| holding.waiting.is_empty()) {
                return;
            }
            let owners: Vec<O> = ledger.owners.keys().cloned().collect();
            for owner in owners {
                while let Some((amount, grant)) = ledger.owners.get_mut(&owner).and_then(|holding| {
                    // Who waits no longer needs nothing.
                    while holding
                        .waiting
                        .front()
                        .is_some_and(|(_, grant)| grant.is_closed())
                    {
                        holding.waiting.pop_front();
                    }
                    holding.waiting.pop_front()
                }) {
                    if ledger.fits(&owner, amount) {
                        ledger.take(&owner, amount);
                        granted.push((owner.clone(), amount, grant));
                        continue;
                    }
                    let holding = ledger.owners.entry(owner.clone()).or_default();
                    holding.waiting.push_front((amount, grant));
                    break;
                }
                // Nothing is taken and nothing waits any more: nothing is kept of it.
                ledger.put_back(&owner, 0);
            }
        }
        // Outside the lock: what cannot be delivered any more is given back at once.
        for (owner, amount, grant) in granted {
            let _ = grant.send(self.charge_of(&owner, amount));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, future::join_all};

    #[test]
    fn whoever_is_alone_gets_half_and_a_newcomer_always_finds_something() {
        let budget = Budget::new(1200);
        let mut held = Vec::new();
        while let Some(charge) = budget.try_charge(&"greedy", 10) {
            held.push(charge);
        }
        assert_eq!(budget.used(), 600);
        while let Some(charge) = budget.try_charge(&"second", 10) {
            held.push(charge);
        }
        // Who came later gets no more than is left; with both back at it they would have a third each.
        assert_eq!(budget.used(), 900);
        assert!(budget.try_charge(&"third", 300).is_some(), "all that is left");
        assert!(budget.try_charge(&"third", 301).is_none());
        drop(held);
        assert_eq!(budget.used(), 0);
        assert!(
            budget.ledger().owners.is_empty(),
            "nothing is kept of who holds nothing"
        );
    }

    #[test]
    fn charges_wait_in_order_and_not_for_other_owners() {
        let budget = Budget::new(100);
        let held = budget.try_charge(&1, 60).expect("it is alone");
        let mut large = Box::pin(budget.charge(&1, 30));
        let mut small = Box::pin(budget.charge(&1, 1));
        assert!(large.as_mut().now_or_never().is_none());
        assert!(small.as_mut().now_or_never().is_none(), "no overtaking");
        assert_eq!(budget.waiting(), 2);
        let other = budget
            .charge(&2, 40)
            .now_or_never()
            .expect("others do not wait for it");
        drop(other);
        drop(held);
        assert_eq!(large.now_or_never().expect("there is room").amount(), 30);
        assert!(small.now_or_never().is_some());
        assert_eq!((budget.used(), budget.waiting()), (0, 0));
    }

    #[test]
    fn who_gives_up_waiting_holds_nothing() {
        let budget = Budget::new(100);
        let held = budget.try_charge(&1, 60).expect("it is alone");
        let mut given_up = Box::pin(budget.charge(&1, 50));
        assert!(given_up.as_mut().now_or_never().is_none());
        drop(given_up);
        let mut waits = Box::pin(budget.charge(&1, 20));
        assert!(
            waits.as_mut().now_or_never().is_none(),
            "60 and 20 are more than what is left"
        );
        drop(held);
        assert!(waits.now_or_never().is_some());
        assert_eq!(budget.used(), 0);
    }

    /// Whatever is taken and given back in whatever order, the sum is right and everybody is served in the end.
    #[test]
    fn everybody_is_served_in_the_end() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let budget = Budget::new(1000);
            let work = (0..200_usize).map(|at| {
                let budget = budget.clone();
                async move {
                    let amount = 1 + at * 37 % 900;
                    let charge = budget.charge(&(at % 7), amount).await;
                    assert!(budget.used() <= 1000);
                    tokio::task::yield_now().await;
                    drop(charge);
                }
            });
            join_all(work).await;
            assert_eq!((budget.used(), budget.waiting()), (0, 0));
        });
    }
}
