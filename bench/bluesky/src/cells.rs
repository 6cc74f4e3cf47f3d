//! Results, one file for each cell: a long table is gone on with where it was stopped.
//!
//! A cell knows the build that measured it. Cells of another build are refused, so that no table is put together of two
//! programs; whoever wants them all the same says so, and the page then names every build.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The build of cells that were measured before cells knew theirs.
const UNKNOWN: &str = "unknown";

/// The directory of the cells.
pub struct Cells {
    directory: PathBuf,
    /// The commit of the program that measures now.
    build: String,
}

#[derive(Serialize, Deserialize)]
struct Cell<T> {
    build: String,
    result: T,
}

/// Only the build of a cell.
#[derive(Default, Deserialize)]
struct Stamp {
    #[serde(default)]
    build: Option<String>,
}

impl Cells {
    /// Opens (or makes) `directory` for the build of this commit; cells whose name begins with one of `redo` are forgotten.
    ///
    /// # Errors
    /// If there are cells of another build, unless these are wanted too (`mix`).
    pub fn open(directory: &Path, build: &str, redo: &[String], mix: bool) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        for path in paths(directory)? {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            if redo.iter().any(|prefix| name.starts_with(prefix.as_str())) {
                fs::remove_file(&path)?;
            }
        }
        let cells = Self {
            directory: directory.to_owned(),
            build: build.to_owned(),
        };
        let mut builds = cells.builds()?;
        builds.remove(build);
        if !mix && !builds.is_empty() {
            let found: Vec<String> = builds
                .iter()
                .map(|(build, cells)| format!("{cells} of {build}"))
                .collect();
            bail!(
                "{} holds cells of other builds ({}) and this is {build}; measure them again (--redo with the beginning of their \
                 names, '' for all), or keep them beside each other (--mix)",
                directory.display(),
                found.join(", ")
            );
        }
        Ok(cells)
    }

    /// How many cells each build measured.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn builds(&self) -> Result<BTreeMap<String, usize>> {
        let mut builds = BTreeMap::new();
        for path in paths(&self.directory)? {
            let text = fs::read_to_string(&path)?;
            let stamp: Stamp = serde_json::from_str(&text).unwrap_or_default();
            *builds
                .entry(stamp.build.unwrap_or_else(|| UNKNOWN.to_owned()))
                .or_default() += 1;
        }
        Ok(builds)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }

    /// A cell's result, if it was measured.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let text = fs::read_to_string(self.path(name)).ok()?;
        // One whose result is of another shape is measured again.
        let stamped: Option<Cell<T>> = serde_json::from_str(&text).ok();
        stamped.map(|cell| cell.result)
    }

    /// Keeps a result.
    pub fn put(&self, name: &str, result: &impl Serialize) -> Result<()> {
        let path = self.path(name);
        let partial = path.with_extension("partial");
        let cell = Cell {
            build: self.build.clone(),
            result,
        };
        fs::write(&partial, serde_json::to_string_pretty(&cell)? + "\n")
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

/// The files of the cells.
fn paths(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::Cells;

    #[test]
    fn cells_of_another_build_are_refused_unless_they_are_wanted_or_measured_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = |build, redo: &[String], mix| Cells::open(directory.path(), build, redo, mix);
        let cells = open("one", &[], false).expect("it is empty");
        cells.put("table", &7).expect("written");
        assert_eq!(open("one", &[], false).expect("the same").get("table"), Some(7));

        let refusal = open("two", &[], false).err().expect("another build").to_string();
        assert!(
            refusal.contains("1 of one") && refusal.contains("this is two"),
            "{refusal}"
        );
        let mixed = open("two", &[], true).expect("wanted");
        assert_eq!(mixed.get("table"), Some(7));
        mixed.put("figure", &8).expect("written");
        let builds: Vec<(String, usize)> = mixed.builds().expect("readable").into_iter().collect();
        assert_eq!(builds, [("one".to_owned(), 1), ("two".to_owned(), 1)]);

        let again = open("two", &["table".to_owned()], false).expect("measured again");
        assert_eq!((again.get::<u32>("table"), again.get("figure")), (None, Some(8)));
    }

    #[test]
    fn a_cell_that_does_not_know_its_build_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("table.json"), "7\n").expect("written");
        let refusal = Cells::open(directory.path(), "one", &[], false)
            .err()
            .expect("refused");
        assert!(refusal.to_string().contains("1 of unknown"), "{refusal}");
    }
}
