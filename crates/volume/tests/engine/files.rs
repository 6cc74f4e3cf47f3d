//! Files as these tests make, write and read them, on the engine or on whatever else is a file system.

use crate::world::root;
use bytes::Bytes;
use firn_vfs::{CreateMode, FileHandle, Name, SetAttributes, Stability, Vfs, VfsError};

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).expect("a name")
}

/// A new file.
pub async fn create(vfs: &dyn Vfs, directory: FileHandle, text: &str) -> FileHandle {
    let mode = CreateMode::Guarded(SetAttributes::default());
    let made = vfs.create(&root(), directory, &name(text), mode).await;
    made.expect("it is created").handle
}

/// A new directory.
pub async fn directory(vfs: &dyn Vfs, within: FileHandle, text: &str) -> FileHandle {
    let made = vfs
        .make_directory(&root(), within, &name(text), SetAttributes::default())
        .await;
    made.expect("it is made").handle
}

/// Writes durably (level 1).
pub async fn write(vfs: &dyn Vfs, file: FileHandle, offset: u64, data: Vec<u8>) {
    let data = vec![Bytes::from(data)];
    let written = vfs.write(&root(), file, offset, data, Stability::FileSync).await;
    written.expect("it is written");
}

/// What stands there now.
pub async fn read(vfs: &dyn Vfs, file: FileHandle, offset: u64, length: u64) -> Result<Vec<u8>, VfsError> {
    let length = u32::try_from(length).expect("a length of the test");
    Ok(vfs.read(&root(), file, offset, length).await?.data.concat())
}

/// Follows a path from the root.
pub async fn look(vfs: &dyn Vfs, path: &[&str]) -> Result<FileHandle, VfsError> {
    let mut here = vfs.root();
    for part in path {
        here = vfs.lookup(&root(), here, &name(part)).await?.0;
    }
    Ok(here)
}
