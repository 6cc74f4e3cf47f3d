//! `[[export.junction]]`: a directory of an export at which another export is shown.

use serde::Deserialize;

/// See the module.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JunctionSection {
    /// The directory, from the root of the export that the section is below.
    pub path: String,
    /// The path of the export that is shown there.
    pub export: String,
}
