//! The program's commands about a table as a whole: backup, roster, restore.

use crate::{env, open_table, private_file};
use anyhow::Context as _;
use firn_api::{Roster, Since};
use firn_table::TableUrl;
use std::{
    fs::File,
    io::{BufReader, BufWriter},
    path::{Path, PathBuf},
};

/// What is known beside a backup.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub struct SinceWhat {
    /// A roster that was taken after the backup: what it does not name is ended.
    #[arg(long, value_name = "FILE")]
    roster: Option<PathBuf>,
    /// The table that this one replaces, if it can still be read: as a roster that is taken now.
    #[arg(long, value_name = "TABLE")]
    replaces: Option<TableUrl>,
    /// There is nothing newer: what was revoked since the backup lives again, and is listed.
    #[arg(long)]
    revive: bool,
}

/// `firn-api backup`.
pub async fn backup(table: &TableUrl, file: &Path) -> anyhow::Result<()> {
    let env = env(Path::new("/"))?;
    let table = open_table(&env, table).await?;
    let mut out = BufWriter::new(private_file(file)?);
    let items = firn_api::backup(&env, &table, &mut out).await?;
    out.into_inner()
        .context("the backup cannot be written")?
        .sync_all()?;
    firn_env::println!("{items} items");
    Ok(())
}

/// `firn-api roster`.
pub async fn roster(table: &TableUrl, file: &Path) -> anyhow::Result<()> {
    let env = env(Path::new("/"))?;
    let roster = Roster::of_table(&env, &open_table(&env, table).await?).await?;
    let mut out = BufWriter::new(private_file(file)?);
    roster.write(&mut out)?;
    out.into_inner()
        .context("the roster cannot be written")?
        .sync_all()?;
    Ok(())
}

/// `firn-api restore`.
pub async fn restore(table: &TableUrl, since: &SinceWhat, file: &Path) -> anyhow::Result<()> {
    let env = env(Path::new("/"))?;
    let open = |path: &Path| {
        File::open(path)
            .map(BufReader::new)
            .with_context(|| path.display().to_string())
    };
    let since = match (&since.roster, &since.replaces) {
        (Some(path), _) => Since::Roster(Roster::read(&mut open(path)?)?),
        (None, Some(old)) => Since::Roster(Roster::of_table(&env, &open_table(&env, old).await?).await?),
        (None, None) => Since::Nothing,
    };
    let table = open_table(&env, table).await?;
    // Tokens of this second end with those before it: nobody who logs in afterwards is to be taken for one of them.
    let restored = firn_api::restore(&env, &table, &mut open(file)?, &since).await?;
    env.sleep(std::time::Duration::from_secs(1)).await;
    for line in restored.told {
        firn_env::println!("{line}");
    }
    firn_env::println!("{} items", restored.items);
    Ok(())
}
