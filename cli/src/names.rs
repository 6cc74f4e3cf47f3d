//! Name lookup: display names for the ids of which the service's bills and lists speak.

use crate::{
    failure::{Exit, Failure},
    screen::{Screen, field},
    session::Session,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// Names by ids.
#[derive(Default)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    /// Of all things of these kinds, such as `volumes`; for programs, which read ids, nobody is asked. A kind that the role may not list
    /// stays without names.
    pub async fn of(session: &Session, screen: Screen, kinds: &[&str]) -> Result<Self, Failure> {
        let mut names = Self::default();
        if screen.is_json() {
            return Ok(names);
        }
        for kind in kinds {
            match session.list(kind).await {
                Ok(items) => names.0.extend(Self::among(&items).0),
                Err(failure) if failure.exit == Exit::NotAllowed => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(names)
    }

    /// Of things that were listed.
    pub fn among<'a>(items: impl IntoIterator<Item = &'a Value>) -> Self {
        // Members have addresses for names.
        let name = |item: &Value| {
            let name = Some(field(item, "name")).filter(|name| !name.is_empty());
            (field(item, "id"), name.unwrap_or_else(|| field(item, "email")))
        };
        Self(items.into_iter().map(name).collect())
    }

    /// Learns the names of more things that were listed.
    pub fn add<'a>(&mut self, items: impl IntoIterator<Item = &'a Value>) {
        self.0.extend(Self::among(items).0);
    }

    /// What a thing is called; its id, if that is all that is known. Bills say of what kind it is: `volume/vol_…` becomes `volume files`.
    /// What a grantee used of a volume, `volume/vol_…/by/TENANT/EDGE`, says so.
    pub fn get(&self, id: &str) -> String {
        if let Some((volume, grantee)) = id.split_once("/by/") {
            let (tenant, edge) = grantee.split_once('/').unwrap_or(("", grantee));
            return format!("{} by {} {}", self.get(volume), self.get(tenant), self.get(edge));
        }
        let (kind, bare) = id.split_once('/').unwrap_or(("", id));
        match self.0.get(bare) {
            Some(name) if !name.is_empty() => format!("{kind} {name}").trim_start().to_owned(),
            Some(_) | None => id.to_owned(),
        }
    }

    /// A sentence with names for ids.
    pub fn in_text(&self, text: &str) -> String {
        let words = text.split(' ').map(|word| {
            let id = word.trim_end_matches([',', '.', ':', ';', ')']);
            word.replacen(id, &self.get(id), 1)
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// What the things of a list are called.
    pub fn all(&self, ids: &Value) -> String {
        let ids = ids.as_array().into_iter().flatten().filter_map(Value::as_str);
        ids.map(|id| self.get(id)).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ids_become_names_wherever_they_stand() {
        let names = Names::among(&[
            json!({ "id": "vol_1", "name": "files" }),
            json!({ "id": "vol_2" }),
        ]);
        assert_eq!(names.get("vol_1"), "files");
        assert_eq!(names.get("vol_2"), "vol_2");
        assert_eq!(names.get("vol_3"), "vol_3");
        assert_eq!(names.get("volume/vol_1"), "volume files");
        assert_eq!(names.get("disk/others"), "disk/others");
        assert_eq!(
            names.get("volume/vol_1/by/ten_2/edge_3"),
            "volume files by ten_2 edge_3"
        );
        assert_eq!(names.all(&json!(["vol_1", "vol_3"])), "files, vol_3");
        assert_eq!(
            names.in_text("keep less of vol_1, or of vol_2."),
            "keep less of files, or of vol_2."
        );
        assert_eq!(names.in_text("a  b ,"), "a  b ,");
    }
}
