//! Settings, by variables of the function's environment.

use firn_anchor_service::Grants;
use firn_table::TableUrl;

const TABLE: &str = "FIRN_ANCHOR_TABLE";
const GRANTS: &str = "FIRN_ANCHOR_GRANTS";

/// All of it, checked.
#[derive(Debug)]
pub struct Settings {
    /// `FIRN_ANCHOR_TABLE`: where the roots are.
    pub table: TableUrl,
    /// `FIRN_ANCHOR_GRANTS`: who may reach what, as a list of JSON. Lambda takes 4 KiB of settings: some 25 grants.
    pub grants: Grants,
}

/// Why there are no usable settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// One is not there.
    #[error("{0} is not set")]
    Missing(&'static str),
    /// One cannot be what it is.
    #[error("{name}: {why}")]
    Value {
        /// The variable.
        name: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// One that is not known.
    #[error("{0} is no setting of the anchor; known are {TABLE}, {GRANTS}")]
    Unknown(String),
}

impl Settings {
    /// Reads the settings out of all variables of an environment.
    ///
    /// # Errors
    /// [`SettingsError`], which names the variable.
    pub fn from_variables(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, SettingsError> {
        let (mut table, mut grants) = (None, None);
        for (name, value) in variables {
            let wrong = |name, why| SettingsError::Value { name, why };
            match &*name {
                TABLE => {
                    let read = value.parse::<TableUrl>();
                    table = Some(read.map_err(|error| wrong(TABLE, error.to_string()))?);
                }
                GRANTS => grants = Some(Grants::from_json(&value).map_err(|why| wrong(GRANTS, why))?),
                other if other.starts_with("FIRN_ANCHOR_") => return Err(SettingsError::Unknown(name)),
                _ => {}
            }
        }
        Ok(Self {
            table: table.ok_or(SettingsError::Missing(TABLE))?,
            grants: grants.ok_or(SettingsError::Missing(GRANTS))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_with_its_variable() {
        let table = (TABLE, "dynamodb://roots?region=eu-central-1");
        for (given, said) in [
            (vec![table, (GRANTS, "[]"), ("PATH", "/bin")], None),
            (vec![table], Some("FIRN_ANCHOR_GRANTS is not set")),
            (vec![(GRANTS, "[]")], Some("FIRN_ANCHOR_TABLE is not set")),
            (vec![table, (GRANTS, "{}")], Some("FIRN_ANCHOR_GRANTS: ")),
            (
                vec![(TABLE, "postgres://x"), (GRANTS, "[]")],
                Some("FIRN_ANCHOR_TABLE: "),
            ),
            (
                vec![table, (GRANTS, "[]"), ("FIRN_ANCHOR_GRANT", "")],
                Some("is no setting"),
            ),
        ] {
            let variables = given
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let read = Settings::from_variables(variables);
            match (read, said) {
                (Ok(_), None) => {}
                (Err(error), Some(said)) => assert!(error.to_string().contains(said), "{error}"),
                (read, said) => panic!("{read:?} instead of {said:?}"),
            }
        }
    }
}
