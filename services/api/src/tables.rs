//! The program's tables, and its commands about them as a whole: backup, roster, restore, moving the roots.

use crate::{env, private_file};
use anyhow::Context as _;
use firn_api::{Roster, Since};
use firn_env::Env;
use firn_table::{Table, TableUrl};
use std::{
    fs::File,
    io::{BufReader, BufWriter},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where everything lies.
#[derive(clap::Args)]
pub struct Tables {
    /// The table, such as redb:/var/lib/firn/api.redb.
    #[arg(long)]
    table: TableUrl,
    /// In DynamoDB: the table of the volumes' roots, which cleaners open as well, in the same region.
    #[arg(long, value_name = "TABLE")]
    anchor_table: Option<TableUrl>,
}

impl Tables {
    /// Opens them as one, in which transactions span both.
    pub async fn open(&self, env: &Env) -> anyhow::Result<Arc<dyn Table>> {
        match &self.anchor_table {
            None => open_table(env, &self.table).await,
            Some(anchor) => open_pair(env, &self.table, anchor).await,
        }
    }

    /// The name of the table of roots, if it is one of its own.
    fn anchor_name(&self) -> Option<&str> {
        match &self.anchor_table {
            Some(TableUrl::DynamoDb(url)) => Some(&url.table),
            // Azure's is refused when it is opened.
            Some(TableUrl::Redb { .. } | TableUrl::AzureTable(_)) | None => None,
        }
    }

    /// Refuses a table of roots that is not the installation's.
    pub async fn require_known(&self, table: &Arc<dyn Table>) -> anyhow::Result<()> {
        let is_embedded = matches!(self.table, TableUrl::Redb { .. });
        Ok(firn_api::require_anchor_table(table, self.anchor_name(), is_embedded).await?)
    }

    /// Refuses `own` as the table of a cluster if it is one of these: nodes would read and change it.
    pub fn require_other_than(&self, own: &TableUrl, cluster: &str) -> anyhow::Result<()> {
        for table in [Some(&self.table), self.anchor_table.as_ref()]
            .into_iter()
            .flatten()
        {
            firn_api::require_own_table(table, own, cluster)?;
        }
        Ok(())
    }
}

#[cfg(feature = "dynamodb")]
pub async fn open_table(env: &Env, url: &TableUrl) -> anyhow::Result<Arc<dyn Table>> {
    let (table, _) = firn_table_dynamodb::open(env, url).await?;
    Ok(table)
}

#[cfg(not(feature = "dynamodb"))]
pub async fn open_table(env: &Env, url: &TableUrl) -> anyhow::Result<Arc<dyn Table>> {
    match url {
        TableUrl::Redb { path } => Ok(Arc::new(firn_table::RedbTable::open(env, path).await?)),
        TableUrl::DynamoDb(_) | TableUrl::AzureTable(_) => {
            anyhow::bail!("this build has the embedded table only: use redb:PATH")
        }
    }
}

#[cfg(feature = "dynamodb")]
async fn open_pair(env: &Env, table: &TableUrl, anchor: &TableUrl) -> anyhow::Result<Arc<dyn Table>> {
    let prefix = firn_api::ANCHOR_PARTITIONS;
    let (table, _) = firn_table_dynamodb::open_with_partitions_apart(env, table, prefix, anchor).await?;
    Ok(table)
}

#[cfg(not(feature = "dynamodb"))]
async fn open_pair(_env: &Env, _table: &TableUrl, _anchor: &TableUrl) -> anyhow::Result<Arc<dyn Table>> {
    anyhow::bail!(
        "this build has the embedded table only, in which nothing is apart: leave --anchor-table out"
    )
}

/// `firn-api move-roots`.
pub async fn move_roots(tables: &Tables) -> anyhow::Result<()> {
    let env = env(Path::new("/"))?;
    // Opened once as the pair, which refuses what could not serve afterwards.
    let pair = tables.open(&env).await?;
    let (Some(anchor), Some(name)) = (&tables.anchor_table, tables.anchor_name()) else {
        anyhow::bail!("--anchor-table names the table into which the roots are moved; nothing was changed");
    };
    firn_api::require_settled(&pair).await?;
    let (control, anchor) = (
        open_table(&env, &tables.table).await?,
        open_table(&env, anchor).await?,
    );
    let items = firn_api::move_roots(&control, &anchor, name).await?;
    firn_env::println!(
        "{items} items are in {name}; serve with --anchor-table, and give cleaners that table"
    );
    Ok(())
}

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
pub async fn backup(tables: &Tables, file: &Path) -> anyhow::Result<()> {
    let env = env(Path::new("/"))?;
    let table = tables.open(&env).await?;
    // Without its table of roots there would be none in the file.
    tables.require_known(&table).await?;
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
pub async fn restore(tables: &Tables, since: &SinceWhat, file: &Path) -> anyhow::Result<()> {
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
    let table = tables.open(&env).await?;
    // Tokens of this second end with those before it: nobody who logs in afterwards is to be taken for one of them.
    let restored = firn_api::restore(&env, &table, &mut open(file)?, &since, tables.anchor_name()).await?;
    env.sleep(std::time::Duration::from_secs(1)).await;
    for line in restored.told {
        firn_env::println!("{line}");
    }
    firn_env::println!("{} items", restored.items);
    Ok(())
}
