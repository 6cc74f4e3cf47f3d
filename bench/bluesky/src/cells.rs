//! Results, one file for each cell: a long table is gone on with where it was stopped.

use anyhow::{Context, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The directory of the cells.
pub struct Cells {
    directory: PathBuf,
    /// Beginnings of names of cells that are measured again.
    redo: Vec<String>,
}

impl Cells {
    /// Opens (or makes) `directory`; cells whose name begins with one of `redo` are forgotten.
    pub fn open(directory: &Path, redo: Vec<String>) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let cells = Self {
            directory: directory.to_owned(),
            redo,
        };
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            if cells.redo.iter().any(|prefix| name.starts_with(prefix.as_str())) {
                fs::remove_file(&path)?;
            }
        }
        Ok(cells)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }

    /// A cell's result, if it was measured.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let text = fs::read_to_string(self.path(name)).ok()?;
        // One that an older version wrote is measured again.
        serde_json::from_str(&text).ok()
    }

    /// Keeps a result.
    pub fn put(&self, name: &str, result: &impl Serialize) -> Result<()> {
        let path = self.path(name);
        let partial = path.with_extension("partial");
        fs::write(&partial, serde_json::to_string_pretty(result)? + "\n")
            .and_then(|()| fs::rename(&partial, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The cell's result: the one that is there, or measured now.
    pub fn measured<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        measure: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if let Some(result) = self.get(name) {
            return Ok(result);
        }
        eprintln!("bluesky: {name}");
        let result = measure().with_context(|| format!("cell {name}"))?;
        self.put(name, &result)?;
        Ok(result)
    }
}
