//! The paper's figures, from `bench/bluesky/scfs.json`: each with the table or figure where it stands.

use anyhow::Result;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
pub struct Paper {
    pub source: String,
    pub table3: Table3,
    pub figure8: Figure8,
    pub figure10: Figure10,
    pub figure11: Figure11,
    pub coordination_access_ms: Access,
}

#[derive(Deserialize)]
pub struct Table3 {
    pub columns: Vec<String>,
    pub seconds: BTreeMap<String, Vec<u32>>,
}

#[derive(Deserialize)]
pub struct Figure8 {
    pub save_non_blocking_seconds: f64,
    pub save_local_seconds: f64,
}

#[derive(Deserialize)]
pub struct Figure10 {
    /// Create and copy: all files shared to a quarter of them.
    pub quarter_shared_factors: [f64; 2],
}

#[derive(Deserialize)]
pub struct Figure11 {
    pub cached_read_micro_dollars: f64,
    pub read_dollars_a_gigabyte: f64,
    pub coordination_ec2_dollars_a_month: f64,
}

#[derive(Deserialize)]
pub struct Access {
    pub least: u32,
    pub most: u32,
}

impl Paper {
    pub fn read() -> Result<Self> {
        Ok(serde_json::from_str(include_str!("../../scfs.json"))?)
    }

    /// What the paper's Table 3 has for a program in a column.
    pub fn table3(&self, program: &str, column: &str) -> Option<u32> {
        let at = self.table3.columns.iter().position(|name| name == column)?;
        self.table3.seconds.get(program)?.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::Paper;
    use crate::sharing::{MODES, table3::PROGRAMS};

    #[test]
    fn the_papers_table_has_every_program_in_every_column() {
        let paper = Paper::read().expect("readable");
        for program in PROGRAMS {
            let row = &paper.table3.seconds[program];
            assert_eq!(row.len(), paper.table3.columns.len(), "{program}");
            for mode in &MODES {
                assert!(
                    paper.table3(program, mode.paper).is_some(),
                    "{program} {}",
                    mode.paper
                );
            }
        }
    }
}
