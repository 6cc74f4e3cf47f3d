//! Junctions of this edge's exports ([`firn_nfs::Junction`]): what of their configuration can be wrong, and how they stand.
//!
//! Exports of one volume show one tree, so a junction leads to another volume, and no volume is shown below itself: there is no end to such a
//! tree, and the kernels of clients, who know file systems by their numbers, take one for a loop.

use crate::{
    config::{Config, EdgeConfig, ExportSection, JunctionSection},
    nfs::{self, NfsServer},
};
use firn_env::Env;
use firn_nfs::{Export, Exports, HandleKey, Junction, JunctionState};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tracing::{debug, warn};

/// How long the directories of all junctions may be looked for; a volume may have to fetch them from the cloud.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// Each junction with its export and the volume of that.
fn written<'a>(
    edge: &'a EdgeConfig,
) -> impl Iterator<Item = (&'a Config, &'a ExportSection, &'a JunctionSection)> {
    let exports_of = |config: &'a Config| config.exports.iter().map(move |export| (config, export));
    edge.volumes
        .iter()
        .flat_map(exports_of)
        .flat_map(|(config, export)| {
            let junctions = export.junctions.iter();
            junctions.map(move |junction| (config, export, junction))
        })
}

/// The volume of the export with this path.
fn volume_of<'a>(edge: &'a EdgeConfig, path: &str) -> Option<&'a str> {
    let path = Export::checked_path(path).ok()?;
    let has = |config: &&Config| {
        let mut exports = config.exports.iter();
        exports.any(|export| Export::checked_path(&export.path) == Ok(path))
    };
    edge.volumes
        .iter()
        .find(has)
        .map(|config| config.volume.name.as_str())
}

/// Says what is wrong, in the file's own words.
pub fn check(edge: &EdgeConfig) -> Result<(), String> {
    if written(edge).next().is_none() {
        return Ok(());
    }
    for (_, export, junction) in written(edge) {
        if export.smb.is_some() {
            return Err(format!(
                "[[export.junction]] {} of {}: the export is a share, too ([export.smb]), and SMB serves one volume: there would be the directory that the \
                 junction hides. Make an [[export]] without junctions the share",
                junction.path, export.path
            ));
        }
    }
    let exports = nfs::exports(edge, None).map_err(|failure| failure.to_string())?;
    let exports = Exports::new(HandleKey::new(&[0; 32]), exports).map_err(|error| error.to_string())?;
    let exports = add(exports, edge)?;
    for junction in exports.junctions() {
        let shown = volume_of(edge, junction.target().path());
        let mut above = Some(junction);
        while let Some(at) = above {
            if volume_of(edge, at.export().path()) == shown {
                return Err(format!(
                    "[[export.junction]] {} of {}: {} is of the volume {}, which would be shown below itself",
                    junction.place(),
                    junction.export().path(),
                    junction.target().path(),
                    shown.unwrap_or_default()
                ));
            }
            above = exports.junction_above(at.export());
        }
    }
    Ok(())
}

/// Exports with the junctions of the configuration.
///
/// # Errors
/// In the file's own words.
pub fn add(exports: Exports, edge: &EdgeConfig) -> Result<Exports, String> {
    written(edge).try_fold(exports, |exports, (_, export, junction)| {
        exports
            .with_junction(&export.path, &junction.path, &junction.export)
            .map_err(|error| {
                format!(
                    "[[export.junction]] {} of {}: {error}",
                    junction.path, export.path
                )
            })
    })
}

/// A junction, as `status` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JunctionPart {
    /// The export that it is in.
    pub export: String,
    /// Where in that.
    pub path: String,
    /// The export that is shown there.
    pub shows: String,
    /// `shown`; `no-directory`: nothing is, since there is no directory at its path; `unknown`: its volume was not served yet.
    pub state: String,
}

impl JunctionPart {
    fn new(junction: &Junction) -> Self {
        Self {
            export: junction.export().path().to_owned(),
            path: junction.place().to_string(),
            shows: junction.target().path().to_owned(),
            state: match junction.state() {
                JunctionState::Shown => "shown",
                JunctionState::NoDirectory => "no-directory",
                JunctionState::Unknown => "unknown",
            }
            .to_owned(),
        }
    }

    /// For a line of `status`.
    pub fn line(&self) -> String {
        let path = firn_nfs::Place::below(&self.export, &self.path);
        match self.state.as_str() {
            "shown" => format!("{path} shows {}", self.shows),
            "no-directory" => format!(
                "{path} does not show {}: there is no directory {} in {}; make it, and it does",
                self.shows, self.path, self.export
            ),
            _ => format!(
                "{path} is to show {}; the volume of {} was not served yet",
                self.shows, self.export
            ),
        }
    }
}

/// The junctions in exports with these paths, or all, as they were last looked at.
pub fn parts(nfs: &NfsServer, exports: Option<&[String]>) -> Vec<JunctionPart> {
    let is_asked = |junction: &&Junction| {
        let same = |path: &String| Export::checked_path(path) == Ok(junction.export().path());
        exports.is_none_or(|exports| exports.iter().any(same))
    };
    let junctions = nfs.exports().junctions().iter();
    junctions.filter(is_asked).map(JunctionPart::new).collect()
}

/// Looks whether they have their directories, and warns of each that has none, when that is found first.
pub async fn look(env: &Env, nfs: &NfsServer) {
    let look = async {
        for junction in nfs.exports().junctions() {
            let before = junction.state();
            match junction.look().await {
                Ok(JunctionState::NoDirectory) if before != JunctionState::NoDirectory => warn!(
                    export = junction.export().path(),
                    path = %junction.place(),
                    shows = junction.target().path(),
                    "a junction shows nothing: there is no directory at its path; make it, and it does"
                ),
                Ok(_) => {}
                Err(error) => debug!(path = %junction.place(), %error, "a junction is not looked at now"),
            }
        }
    };
    // What was not reached stands as it did.
    if env.timeout(LOOK_WITHIN, look).await.is_err() {
        debug!("junctions were not all looked at in time");
    }
}
