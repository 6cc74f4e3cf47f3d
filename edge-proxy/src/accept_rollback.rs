//! `firn-edge accept-rollback`: going on from a table that was restored from a backup, said by an administrator.
//!
//! It shows what is in the table, what speaks against it and what would be given up, and changes something only with `--yes`. What was
//! accepted stands in the bucket, sealed under the family's key, for every edge that comes.

use crate::{config::Config, failure::Failure, identity::Identity, parts::Outside, snapshots::utc};
use firn_env::println;
use firn_volume::Volume;

/// See the module.
pub async fn accept_rollback(config: &Config, yes: bool) -> Result<(), Failure> {
    let identity = Identity::load(&config.volume.state_directory)?;
    let outside = Outside::open(config).await?;
    let (parts, _) = outside.own_parts(config, identity).await?;
    let volume_config = config.volume_config()?;
    let name = &config.volume.name;
    let Some(found) = Volume::rollback(&parts, &volume_config).await? else {
        println!(
            "The table shows the newest root of volume {name} that the bucket and this machine know of. Nothing was changed."
        );
        return Ok(());
    };
    println!("{found}.\n");
    if !yes {
        println!(
            "With --yes, volume {name} goes on from what the table shows. Everything committed after it is given up: no edge will serve \
             it again, and the cleaner removes it from the bucket in time. No other edge of this volume may be running. Nothing was \
             changed."
        );
        return Ok(());
    }
    let Some(report) = Volume::accept_rollback(&parts, &volume_config).await? else {
        println!("Somebody accepted it meanwhile. Nothing was changed.");
        return Ok(());
    };
    let accepted = report.accepted;
    println!(
        "Accepted by {}: volume {name} goes on from version {} of {}.",
        config.volume.edge_name,
        accepted.version,
        utc(accepted.committed_at_ms)
    );
    if let Some(version) = report
        .stale
        .as_ref()
        .and_then(firn_volume::StaleTable::newest_version)
    {
        println!("Given up: everything after it, up to version {version} at least.");
    }
    if let Some(journal) = report.journal {
        println!(
            "The journal of this machine was written on what is given up. It is not replayed, and stays in {}.",
            config.volume.state_directory.join(journal).display()
        );
    }
    println!(
        "Other edges that saw newer roots refuse to start until the same is typed there. Serve it with: firn-edge run"
    );
    Ok(())
}
