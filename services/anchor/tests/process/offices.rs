//! Two edges as processes over one bucket and one anchor: the first has made the volume, the second has joined.

use crate::{edge, place::Place, volume};
use firn_format::FamilyId;
use firn_identity::{PeerIdentity, TenantVolume};
use firn_rig::{Edge, Settings};
use std::{fs, path::Path};

/// Nothing is published but by what the test does.
const LIMITS: &str = "checkpoint_busy = \"1 h\"\ncheckpoint_trickle = \"1 h\"\nsegment = \"64 KiB\"";

fn configured(here: &Path, url: &str, name: &str, (lines, sections): (&str, &str)) -> Edge {
    let mut settings = Settings::local(here);
    settings.name = name.into();
    settings.table = url.into();
    settings.limits = LIMITS.into();
    let binary = Edge::binary().expect("the edge's program");
    let edge = Edge::configure(binary, &here.join(name), settings).unwrap();
    fs::create_dir_all(&edge.state).unwrap();
    let text = fs::read_to_string(&edge.config).unwrap();
    let section = text.replacen("[limits]", &format!("{lines}\n[limits]"), 1);
    fs::write(&edge.config, section + sections).unwrap();
    edge
}

/// Opens them with these grants, and with lines of their own in the sections `[volume]`.
pub async fn open(
    here: &Path,
    grants: &[(&PeerIdentity, TenantVolume, &str)],
    lines: [&str; 2],
) -> (Place, FamilyId, [Edge; 2]) {
    open_with(here, grants, lines.map(|lines| (lines, String::new()))).await
}

/// The same, each with more sections behind its export.
pub async fn open_with(
    here: &Path,
    grants: &[(&PeerIdentity, TenantVolume, &str)],
    lines: [(&str, String); 2],
) -> (Place, FamilyId, [Edge; 2]) {
    let (place, family, mut edges) = prepare(here, grants, lines, &[]).await;
    for edge in &mut edges {
        edge.start().await.unwrap();
    }
    (place, family, edges)
}

/// The same before they are started; `made_with` is what the making of the volume is told.
pub async fn prepare(
    here: &Path,
    grants: &[(&PeerIdentity, TenantVolume, &str)],
    lines: [(&str, String); 2],
    made_with: &[&str],
) -> (Place, FamilyId, [Edge; 2]) {
    let mut place = Place::new(here, 1);
    place.grant(grants);
    let identities = [place.issue(&edge(1), "one.pem"), place.issue(&edge(2), "two.pem")];
    place.start();
    fs::create_dir_all(here.join("store")).unwrap();
    let port = place.address.unwrap().port();
    let url = format!("https://localhost:{port}/{}", volume(1));
    let [one, two] = &lines;
    let edges = [("one", one), ("two", two)]
        .map(|(name, (lines, sections))| configured(here, &url, name, (lines, sections)));
    for (edge, identity) in edges.iter().zip(&identities) {
        fs::copy(identity, edge.state.join("anchor.pem")).unwrap();
        let authority = edge.state.join("anchor-authority.pem");
        fs::copy(place.root.join("authority.pem"), authority).unwrap();
    }
    let family = edges[0].format_as(made_with).await.unwrap();
    let family = family.parse::<FamilyId>().unwrap();
    let identity = edges[0].state.join("identity");
    edges[1]
        .command("join", &["--identity", &identity.to_string_lossy()])
        .await
        .unwrap();
    (place, family, edges)
}
