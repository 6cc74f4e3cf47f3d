//! A file system in which nothing can be locked, beside one in which all can.

use super::*;

#[test]
fn in_a_file_system_whose_locks_are_refused_nothing_is_locked_and_in_others_everything() {
    let table = table();
    table.refuse(file(1).file_system);
    let refused = || Err(LockError::Unsupported);
    assert_eq!(table.test(&read("a", 0, 9)), refused());
    assert_eq!(table.lock(&read("a", 0, 9)), refused());
    assert!(matches!(
        table.lock_or_wait(&write("a", 0, 9)),
        Err(LockError::Unsupported)
    ));
    assert_eq!(table.share(file(1), &owner("a"), ShareMode::default()), refused());
    table.start_grace();
    assert_eq!(table.reclaim(&write("a", 0, 9)), refused());
    table.end_grace();
    // What nobody has can be unlocked.
    table.unlock(file(1), &owner("a"), ByteRange::ALL);
    assert_eq!(table.counts(), LockCounts::default());
    let other = LockRequest {
        file: FileHandle {
            file_system: file(1).file_system + 1,
            inode: 1,
        },
        ..write("a", 0, 9)
    };
    assert_eq!(table.lock(&other), Ok(()));
}
