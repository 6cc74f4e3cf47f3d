//! `firn-cleaner mirror`: the second store has what the first has, and what the first lost is written anew, by somebody who has no keys.

use crate::{Failure, config::Config, failed, failure, metrics::Figures, usage};
use firn_cleaner_host::{Host, Mirrored, Target};
use firn_env::{Monotonic, eprintln, println};
use firn_quantity::{Dollars, Money};
use firn_store::ProviderPrices;
use serde_json::json;

/// `firn-cleaner mirror`: fails if something is lost that is not in the second store either (6), or waits (1).
pub async fn mirror(
    host: &Host,
    target: Target,
    prices: &ProviderPrices,
    config: &Config,
) -> Result<(), Failure> {
    verdict(&told(host, target, prices, config).await?)
}

/// Mirrors, and prints the report as one line of JSON.
async fn told(
    host: &Host,
    target: Target,
    prices: &ProviderPrices,
    config: &Config,
) -> Result<Mirrored, Failure> {
    let Some(second) = config.second() else {
        return Err(usage(
            "there is no second store: name one in the section [second] of the configuration",
        ));
    };
    let mirrored = host.mirror(target, &second).await.map_err(failure)?;
    println!(
        "{}",
        json!({
            "mirror": mirrored,
            "prices": prices.name,
            "cost": Dollars(Money::of_nanos(mirrored.cost_nanodollars)).to_string(),
        })
    );
    Ok(mirrored)
}

fn verdict(mirrored: &Mirrored) -> Result<(), Failure> {
    if mirrored.is_whole() {
        return match mirrored.waiting {
            0 => Ok(()),
            waiting => Err(failed(format!(
                "{waiting} segments that the first store lost are in the second and were not written anew yet: after the next commit, or with \
                 second.repair; readers of an edge with this second store have them"
            ))),
        };
    }
    let mut lost = mirrored.beyond.clone();
    lost.extend(mirrored.named.clone());
    Err(Failure {
        message: format!(
            "lost or damaged: {}. Bring it back from the versions that a store keeps, and run again; `firn-edge repair` names the files",
            lost.join("; ")
        ),
        code: 6,
    })
}

/// The mirror of runs that follow each other.
pub struct Due {
    next: Option<Monotonic>,
}

impl Due {
    /// Due at once, if there is a second store.
    pub fn new(host: &Host, config: &Config) -> Self {
        Self {
            next: config.second.as_ref().map(|_| host.env().now()),
        }
    }

    /// Mirrors if it is time; what failed is tried again after the next run.
    pub async fn mirror(
        &mut self,
        host: &Host,
        target: Target,
        prices: &ProviderPrices,
        config: &Config,
        figures: &Figures,
    ) {
        let (Some(next), Some(second)) = (self.next, config.second()) else {
            return;
        };
        if host.env().now() < next {
            return;
        }
        let outcome = told(host, target, prices, config).await;
        figures.count_mirror(outcome.as_ref().ok(), host.env().wall().as_millis());
        if outcome.is_ok() {
            self.next = Some(host.env().now().after(second.options.compare_every));
        }
        if let Err(failure) = outcome.and_then(|mirrored| verdict(&mirrored)) {
            eprintln!("firn-cleaner: {}", failure.message);
        }
    }
}
