//! Figures, the bounds they are held against, and the page that shows them.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{fmt::Write, fs, path::Path};

/// One measurement against one bound.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub what: String,
    /// The figure with its unit.
    pub measured: String,
    /// What it may be at most, or must be at least; empty if nothing is promised.
    pub bound: String,
    /// Whether it is within the bound.
    pub held: bool,
}

/// What one subcommand found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The subcommand.
    pub name: String,
    /// What is promised, in a sentence.
    pub promise: String,
    /// How it was measured, in a sentence or two.
    pub how: String,
    /// The figures.
    pub figures: Vec<Figure>,
}

impl Report {
    /// An empty one.
    pub fn new(name: &str, promise: &str, how: String) -> Self {
        Self {
            name: name.into(),
            promise: promise.into(),
            how,
            figures: Vec::new(),
        }
    }

    /// Adds a figure that must be within a bound.
    pub fn bounded(&mut self, what: &str, measured: String, bound: &str, held: bool) {
        self.figures.push(Figure {
            what: what.into(),
            measured,
            bound: bound.into(),
            held,
        });
    }

    /// Adds a figure of which nothing is promised.
    pub fn told(&mut self, what: &str, measured: String) {
        self.bounded(what, measured, "", true);
    }

    /// Whether every bound held.
    pub fn held(&self) -> bool {
        self.figures.iter().all(|figure| figure.held)
    }

    /// Prints the figures, and the last line that scripts count.
    pub fn print(&self) {
        println!("\n{}: {}", self.name, self.promise);
        println!("  {}", self.how);
        for figure in &self.figures {
            let verdict = match (figure.bound.is_empty(), figure.held) {
                (true, _) => String::new(),
                (false, true) => format!("   (bound {}: held)", figure.bound),
                (false, false) => format!("   (bound {}: EXCEEDED)", figure.bound),
            };
            println!("  {:<52} {}{verdict}", figure.what, figure.measured);
        }
        let bounds = self.figures.iter().filter(|figure| !figure.bound.is_empty());
        let (held, exceeded): (Vec<_>, Vec<_>) = bounds.partition(|figure| figure.held);
        println!("{} passed, {} failed", held.len(), exceeded.len());
    }

    /// Keeps the report for the page.
    pub fn save(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)?;
        let path = directory.join(format!("{}.json", self.name));
        fs::write(&path, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("writing {}", path.display()))
    }
}

const HEAD: &str = "# Bounds\n\n\
What Firn promises never to exceed, as measured by `make bounds` (a program, `tests/bounds`; `make test` runs scaled-down\n\
versions of it). This page is written by that command: the figures are of its last run on one machine, as they came out.\n\
Bytes, requests and money do not depend on the machine's speed; seconds do.\n";

/// The page of all reports that were saved in `directory`, in the order of `names`.
pub fn page(directory: &Path, names: &[&str], machine: &str) -> Result<String> {
    let mut page = HEAD.to_owned();
    writeln!(page, "\nThe machine: {machine}.")?;
    for name in names {
        let path = directory.join(format!("{name}.json"));
        writeln!(page, "\n## {name}\n")?;
        let Ok(text) = fs::read_to_string(&path) else {
            writeln!(page, "Not measured yet: run `make bounds`.")?;
            continue;
        };
        let report: Report =
            serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
        writeln!(page, "{}\n\n{}\n", report.promise, report.how)?;
        writeln!(page, "| measured | figure | bound | held |\n|---|---|---|---|")?;
        for figure in &report.figures {
            let held = match (figure.bound.is_empty(), figure.held) {
                (true, _) => "",
                (false, true) => "yes",
                (false, false) => "**no**",
            };
            writeln!(
                page,
                "| {} | {} | {} | {held} |",
                figure.what, figure.measured, figure.bound
            )?;
        }
    }
    Ok(page)
}
