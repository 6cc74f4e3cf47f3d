//! A tree of made-up files that knows what it must hold.

use anyhow::{Result, ensure};
use firn_rig::{Client, FileHandle};
use std::collections::BTreeMap;

/// Directories with files, by name; what was acknowledged, by checksum.
#[derive(Debug, Default)]
pub struct Tree {
    directories: BTreeMap<String, BTreeMap<String, (blake3::Hash, u64)>>,
}

/// Name and bytes of a file: they follow from the arguments, and cannot be compressed.
fn file(directory: &str, number: usize, bytes_max: usize, salt: &str) -> (String, Vec<u8>) {
    let name = format!("file-{number:04}");
    let mut data = vec![0; number.wrapping_mul(2_654_435_761) % (bytes_max + 1)];
    let seed = format!("{salt}/{directory}/{name}");
    blake3::Hasher::new()
        .update(seed.as_bytes())
        .finalize_xof()
        .fill(&mut data);
    (name, data)
}

impl Tree {
    /// Writes a directory with `files` files of many lengths, none of them longer than `bytes_max`; each counts as soon as
    /// it is acknowledged. Files that are there are written anew, with other bytes for another `salt`.
    pub async fn write(
        &mut self,
        client: &mut Client,
        directory: &str,
        files: usize,
        bytes_max: usize,
        salt: &str,
    ) -> Result<()> {
        let handle = client
            .make_directory(&client.root.clone(), directory.as_bytes())
            .await?;
        let written = self.directories.entry(directory.to_owned()).or_default();
        for number in 0..files {
            let (name, data) = file(directory, number, bytes_max, salt);
            client.write_file(&handle, name.as_bytes(), 0o644, &data).await?;
            written.insert(name, (blake3::hash(&data), data.len() as u64));
        }
        Ok(())
    }

    /// What somebody else wrote in the same way.
    pub fn expect_written(&mut self, directory: &str, files: usize, bytes_max: usize, salt: &str) {
        let written = self.directories.entry(directory.to_owned()).or_default();
        for number in 0..files {
            let (name, data) = file(directory, number, bytes_max, salt);
            written.insert(name, (blake3::hash(&data), data.len() as u64));
        }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        let files = self.directories.values().flat_map(BTreeMap::values);
        files.map(|(_, bytes)| bytes).sum()
    }

    /// How many files it holds.
    pub fn files(&self) -> usize {
        self.directories.values().map(BTreeMap::len).sum()
    }

    /// Reads everything below the root: it is this tree, byte for byte, with nothing missing and nothing else.
    pub async fn is_what_is_there(&self, client: &mut Client) -> Result<()> {
        let mut there: BTreeMap<String, FileHandle> = BTreeMap::new();
        for entry in client.list(&client.root.clone()).await? {
            there.insert(String::from_utf8(entry.name)?, entry.handle);
        }
        ensure!(
            there.keys().eq(self.directories.keys()),
            "there are {:?}, not {:?}",
            there.keys(),
            self.directories.keys()
        );
        for (directory, handle) in there {
            let expected = &self.directories[&directory];
            let listed = client.list(&handle).await?;
            ensure!(
                listed.len() == expected.len(),
                "{directory} lists {} names, not {}",
                listed.len(),
                expected.len()
            );
            for entry in listed {
                let name = String::from_utf8(entry.name)?;
                let Some((checksum, _)) = expected.get(&name) else {
                    anyhow::bail!("{directory}/{name} is there, but nobody wrote it");
                };
                let found = client.checksum(&entry.handle).await?.0;
                ensure!(
                    found == *checksum,
                    "{directory}/{name} was acknowledged and differs"
                );
            }
        }
        Ok(())
    }
}
