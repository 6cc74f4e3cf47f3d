//! Reads back over NFS what was acknowledged, and compares.

use crate::{CONNECTIONS, Copying, tree::Content, with_progress};
use anyhow::{Result, bail, ensure};
use firn_rig::{Client, EXPORT, FileHandle};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

/// Walks the mounted tree and compares each item with what was acknowledged. With `complete`, nothing may be missing and
/// nothing too much; without, only what was acknowledged must be there. Returns the items and bytes that were compared.
pub async fn verify(
    copying: &Arc<Copying>,
    address: std::net::SocketAddr,
    complete: bool,
) -> Result<(u64, u64)> {
    // Of each directory: its subdirectories and its items, by name.
    let tree = &copying.tree;
    let mut expected: Vec<BTreeMap<Vec<u8>, Expected>> = vec![BTreeMap::new(); tree.directories.len()];
    for (index, directory) in tree.directories.iter().enumerate().skip(1) {
        expected[directory.parent].insert(directory.name.clone(), Expected::Directory(index));
    }
    for (index, item) in tree.items.iter().enumerate() {
        expected[item.directory].insert(item.name.clone(), Expected::Item(index));
    }
    let mut client = Client::mount(address, EXPORT).await?;
    let mut handles: Vec<Option<FileHandle>> = vec![None; tree.items.len()];
    let mut directories = vec![(0, client.root.clone())];
    while let Some((directory, handle)) = directories.pop() {
        let names = &expected[directory];
        let listed = client.list(&handle).await?;
        ensure!(
            !complete || listed.len() == names.len(),
            "a directory lists {} names, not {}",
            listed.len(),
            names.len()
        );
        for entry in listed {
            let shown = String::from_utf8_lossy(&entry.name).into_owned();
            match names.get(&entry.name) {
                Some(Expected::Directory(index)) => {
                    ensure!(entry.is_directory(), "{shown} is no directory");
                    directories.push((*index, entry.handle));
                }
                Some(Expected::Item(index)) => {
                    let item = &tree.items[*index];
                    let is_link = matches!(item.content, Content::Link(_));
                    ensure!(entry.is_link() == is_link, "{shown} is of another type");
                    ensure!(
                        is_link || entry.attributes.mode & 0o777 == item.mode,
                        "{shown} has another mode"
                    );
                    handles[*index] = Some(entry.handle);
                }
                None => bail!("{shown} is there, but nobody wrote it"),
            }
        }
    }
    let (next, handles) = (Arc::new(AtomicUsize::new(0)), Arc::new(handles));
    let (files, bytes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks = (0..CONNECTIONS).map(|_| {
        let (copying, next, handles) = (copying.clone(), next.clone(), handles.clone());
        let (files, bytes) = (files.clone(), bytes.clone());
        tokio::spawn(async move {
            let mut client = Client::mount(address, EXPORT).await?;
            loop {
                let index = next.fetch_add(1, Relaxed);
                let Some(item) = copying.tree.items.get(index) else {
                    return Ok(());
                };
                let Some(checksum) = copying.checksum_of(index) else {
                    continue;
                };
                let path = copying.tree.path(item);
                let Some(handle) = &handles[index] else {
                    bail!("{path} was acknowledged and is not there");
                };
                let found = match item.content {
                    Content::Link(_) => blake3::hash(&client.read_link(handle).await?),
                    Content::File(_) | Content::MadeUp(_) => client.checksum(handle).await?.0,
                };
                ensure!(found == checksum, "{path} was acknowledged and differs");
                files.fetch_add(1, Relaxed);
                bytes.fetch_add(item.bytes, Relaxed);
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let done = || (files.load(Relaxed), bytes.load(Relaxed));
    with_progress("compared", copying, done, tasks).await?;
    Ok(done())
}

#[derive(Clone, Copy)]
enum Expected {
    Directory(usize),
    Item(usize),
}
