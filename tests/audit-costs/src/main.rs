//! Costs of trust in the cloud, from counted requests: the body of `docs/costs-of-audits.md`, in Markdown (`make bench-audit-costs`).
//!
//! The engine, the cleaner's audit and the mirror run as they ship, over stores and a table in memory that count, in virtual time and at small
//! sizes; what archives of 1, 10 and 100 TiB would ask follows by straight lines, and money by the one book of prices. A promise that is not
//! kept fails the run, and so does a figure that a straight line does not give.

mod archive;
mod asked;
mod audit_plan;
mod audits;
mod confirmation;
mod manifest;
mod mirroring;
mod parities;
mod second;
mod table;
mod world;

use anyhow::Result;
use archive::{ARCHIVES, BUDGET, ROUTES, prices};
use clap::Parser;
use firn_mirror::Copies;
use firn_store::Route;
use std::process::ExitCode;
use table::{Table, dollars, percent};

/// Measures what trust in the cloud costs and prints it in Markdown.
#[derive(Parser)]
struct Arguments {
    /// At the sizes of a test.
    #[arg(long)]
    small: bool,
}

/// All that is measured.
struct Measured {
    manifest: manifest::Manifest,
    confirmation: confirmation::Confirmation,
    audits: audits::Audits,
    mirroring: mirroring::Mirroring,
    parities: parities::Parities,
}

impl Measured {
    fn new(of_test: bool) -> Result<Self> {
        Ok(Self {
            manifest: manifest::measure(of_test)?,
            confirmation: confirmation::measure(of_test)?,
            audits: audits::measure(of_test)?,
            mirroring: mirroring::measure(of_test)?,
            parities: parities::measure(of_test)?,
        })
    }

    fn series(&self) -> Vec<&asked::Series> {
        let (manifest, confirmation) = (self.manifest.series(), self.confirmation.series());
        let (audits, mirroring) = (self.audits.series(), self.mirroring.series());
        let all = manifest
            .into_iter()
            .chain(confirmation)
            .chain(audits)
            .chain(mirroring);
        all.chain(self.parities.series()).collect()
    }

    /// Promises that are not kept.
    fn broken(&self) -> Vec<String> {
        let mut broken = self.confirmation.broken();
        broken.extend(self.parities.broken());
        broken
    }

    /// Figures that cannot be extrapolated.
    fn bent(&self) -> Vec<String> {
        self.series().into_iter().flat_map(asked::Series::bent).collect()
    }

    /// A month by what is bought, with what is paid once.
    fn summary(&self) -> String {
        let mut table = Table::new(&["a month of", "1 TiB", "10 TiB", "100 TiB"]);
        let mut row = |what: &str, cell: &dyn Fn(archive::Archive) -> String| {
            table.row([what.to_owned()].into_iter().chain(ARCHIVES.map(cell)));
        };
        row("manifest: upkeep, bulk and a trickle", &|archive| {
            dollars(self.manifest.upkeep_money(archive, self.audits.leaf_bytes()))
        });
        row("confirmation of bulk and a trickle", &|archive| {
            dollars(self.confirmation.of_puts(archive.segments_a_month()).1)
        });
        for (route, from) in ROUTES {
            row(
                &format!("audits for {} at most, {from}", dollars(BUDGET)),
                &|archive| {
                    let plan = audit_plan::best(&self.audits, archive, route);
                    match plan.is_complete() {
                        true => format!(
                            "{}: {} of {} challenges; 1 % damaged is noticed with {}",
                            dollars(plan.month),
                            plan.audits,
                            table::grouped(plan.challenges),
                            percent(plan.notices(0.01))
                        ),
                        false => format!("**not enough**: {} for one audit", dollars(plan.fixed)),
                    }
                },
            );
        }
        row("mirror: requests", &|archive| {
            dollars(
                self.mirroring
                    .month(archive)
                    .bill(prices(), (Route::Internet, Route::Internet))
                    .total(),
            )
        });
        row("mirror: storage of the copy", &|archive| {
            dollars(mirroring::Mirroring::storage(archive))
        });
        row("parities in place of copies: storage", &|archive| {
            dollars(self.parities.storage(archive))
        });
        row(
            "parities in place of copies: requests, beside the stores",
            &|archive| {
                let asked = self.parities.month(archive, Copies::Drop);
                dollars(
                    asked
                        .bill(prices(), (Route::SameRegion, Route::SameRegion))
                        .total(),
                )
            },
        );
        table.text().to_owned()
    }

    fn page(&self) -> String {
        let series = format!(
            "Of the confirmation (*bulk*, *a trickle*) what was read back stands with the second store, to tell it from what was put.\n\n{}",
            table::of_series(self.series())
        );
        [
            ("In short", self.summary()),
            ("What is assumed", archive::assumptions()),
            ("Manifest", self.manifest.page(self.audits.leaf_bytes())),
            ("Confirmation", self.confirmation.page()),
            ("Audits", audit_plan::page(&self.audits)),
            ("Mirror", self.mirroring.page()),
            ("Parities", self.parities.page()),
            ("Counted requests", series),
        ]
        .map(|(title, text)| format!("## {title}\n\n{}\n", text.trim_end()))
        .join("\n")
    }
}

fn main() -> ExitCode {
    match Measured::new(Arguments::parse().small) {
        Ok(measured) => {
            print!("{}", measured.page());
            let broken = measured.broken();
            broken.iter().for_each(|told| eprintln!("audit-costs: {told}"));
            match broken.is_empty() && measured.bent().is_empty() {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("audit-costs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything at small sizes: promises are held while it is measured, and each archive's row is there.
    #[test]
    fn everything_is_measured_and_told() {
        let measured = Measured::new(true).expect("it can be measured");
        assert_eq!(measured.broken(), Vec::<String>::new());
        let page = measured.page();
        for title in ["Manifest", "Confirmation", "Audits", "Mirror", "Parities"] {
            assert!(page.contains(&format!("## {title}\n")), "{title}");
        }
        for archive in ARCHIVES {
            let rows = page
                .lines()
                .filter(|line| line.starts_with(&format!("| {} TiB |", archive.tib)));
            assert!(rows.count() >= 12, "{} TiB", archive.tib);
        }
    }
}
