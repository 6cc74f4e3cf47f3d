//! The model does what POSIX and RFC 1813 say.

use super::*;
use crate::{AclEntry, AclTag, Credentials, RequestId, SetTime};
use futures::executor::block_on;

struct Tree {
    vfs: MemoryVfs,
    _directory: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        Self::with(MemoryOptions {
            root_mode: 0o777,
            ..MemoryOptions::default()
        })
    }

    fn with(options: MemoryOptions) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let env = firn_env::real(directory.path()).expect("a real environment");
        let vfs = MemoryVfs::new(&env, options);
        vfs.set_now(Some(at(100)));
        Self {
            vfs,
            _directory: directory,
        }
    }

    fn file(&self, caller: &Caller, directory: FileHandle, name: &str) -> Result<FileHandle, VfsError> {
        let mode = CreateMode::Guarded(with_mode(0o644));
        block_on(self.vfs.create(caller, directory, &n(name), mode)).map(|made| made.handle)
    }

    fn directory(&self, caller: &Caller, directory: FileHandle, name: &str) -> Result<FileHandle, VfsError> {
        block_on(
            self.vfs
                .make_directory(caller, directory, &n(name), with_mode(0o755)),
        )
        .map(|made| made.handle)
    }

    fn write(&self, file: FileHandle, offset: u64, data: &str, stability: Stability) {
        let data = vec![Bytes::copy_from_slice(data.as_bytes())];
        block_on(self.vfs.write(&root(), file, offset, data, stability)).expect("root writes");
    }

    fn text(&self, file: FileHandle) -> String {
        let reply = block_on(self.vfs.read(&root(), file, 0, 1 << 20)).expect("root reads");
        String::from_utf8(reply.data.concat()).expect("text")
    }

    fn stat(&self, file: FileHandle) -> Result<Attributes, VfsError> {
        block_on(self.vfs.attributes(file))
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (FileHandle, &str),
        to: (FileHandle, &str),
    ) -> Result<Renamed, VfsError> {
        block_on(self.vfs.rename(caller, from.0, &n(from.1), to.0, &n(to.1)))
    }

    fn remove(&self, caller: &Caller, directory: FileHandle, name: &str) -> Result<Removed, VfsError> {
        block_on(self.vfs.remove(caller, directory, &n(name)))
    }

    fn names(&self, directory: FileHandle, page: u32) -> Vec<String> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let page =
                block_on(self.vfs.read_directory(&root(), directory, cookie, page, true)).expect("listed");
            for entry in page.entries {
                cookie = entry.cookie;
                names.push(String::from_utf8_lossy(&entry.name).into_owned());
            }
            if page.end {
                return names;
            }
        }
    }
}

fn n(name: &str) -> Name {
    Name::new(name.to_owned()).expect("a good name")
}

fn at(seconds: i64) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds: 0,
    }
}

fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

fn user(uid: u32) -> Caller {
    Caller::new(Credentials {
        uid,
        gid: uid,
        groups: vec![],
    })
}

fn root() -> Caller {
    user(0)
}

#[test]
fn a_file_holds_what_was_written_and_holes_read_as_zeros() {
    let tree = Tree::new();
    let file = tree.file(&user(5), tree.vfs.root(), "f").expect("created");
    tree.write(file, 100_000, "end", Stability::FileSync);
    let stat = tree.stat(file).expect("there");
    assert_eq!((stat.size_bytes, stat.used_bytes), (100_003, 4096));
    let reply = block_on(tree.vfs.read(&root(), file, 99_999, 10)).expect("read");
    assert_eq!(
        (reply.data.concat(), reply.end_of_file),
        (b"\0end".to_vec(), true)
    );
    let reply = block_on(tree.vfs.read(&root(), file, 0, 10)).expect("read");
    assert_eq!((reply.data.concat(), reply.end_of_file), (vec![0; 10], false));
}

#[test]
fn the_last_byte_of_the_largest_file_can_be_written_but_none_after() {
    let tree = Tree::new();
    let file = tree.file(&root(), tree.vfs.root(), "f").expect("created");
    let write = |offset| {
        let data = vec![Bytes::from_static(b"x")];
        block_on(tree.vfs.write(&root(), file, offset, data, Stability::FileSync)).map(|_| ())
    };
    assert_eq!(write(rules::FILE_BYTES_MAX - 1), Ok(()));
    assert_eq!(write(rules::FILE_BYTES_MAX), Err(VfsError::FileTooLarge));
    assert_eq!(write(u64::MAX), Err(VfsError::FileTooLarge));
}

#[test]
fn a_full_volume_refuses_new_data_but_takes_overwrites() {
    let tree = Tree::with(MemoryOptions {
        quota_bytes: 8192,
        ..MemoryOptions::default()
    });
    let file = tree.file(&root(), tree.vfs.root(), "f").expect("created");
    tree.write(file, 0, &"x".repeat(8192), Stability::FileSync);
    let more = block_on(tree.vfs.write(
        &root(),
        file,
        8192,
        vec![Bytes::from_static(b"y")],
        Stability::FileSync,
    ));
    assert_eq!(more.map(|_| ()), Err(VfsError::NoSpace));
    tree.write(file, 10, "y", Stability::FileSync);
    assert_eq!(
        block_on(tree.vfs.file_system_status()).map(|status| status.free_bytes),
        Ok(0)
    );
    tree.remove(&root(), tree.vfs.root(), "f").expect("removed");
    assert_eq!(
        block_on(tree.vfs.file_system_status()).map(|status| status.free_bytes),
        Ok(8192)
    );
}

#[test]
fn renaming_onto_another_name_of_the_same_file_changes_nothing() {
    let tree = Tree::new();
    let top = tree.vfs.root();
    let file = tree.file(&root(), top, "a").expect("created");
    block_on(tree.vfs.link(&root(), file, top, &n("b"))).expect("linked");
    let before = tree.stat(top).expect("there");
    tree.rename(&root(), (top, "a"), (top, "b")).expect("a no-op");
    assert_eq!(tree.stat(top), Ok(before));
    assert_eq!(tree.names(top, 10).len(), 4);
    assert_eq!(tree.stat(file).map(|stat| stat.links), Ok(2));
}

#[test]
fn a_directory_cannot_move_below_itself_nor_replace_what_is_above_it() {
    let tree = Tree::new();
    let top = tree.vfs.root();
    let a = tree.directory(&root(), top, "a").expect("made");
    let b = tree.directory(&root(), a, "b").expect("made");
    let err = |from, to| tree.rename(&root(), from, to).map(|_| ()).expect_err("refused");
    assert_eq!(err((top, "a"), (a, "c")), VfsError::InvalidArgument);
    assert_eq!(err((top, "a"), (b, "c")), VfsError::InvalidArgument);
    tree.directory(&root(), b, "x").expect("made");
    assert_eq!(err((b, "x"), (top, "a")), VfsError::NotEmpty);
}

#[test]
fn a_rename_replaces_only_its_own_kind_and_only_an_empty_directory() {
    let tree = Tree::new();
    let top = tree.vfs.root();
    let target = tree.directory(&root(), top, "d").expect("made");
    tree.directory(&root(), top, "e").expect("made");
    let file = tree.file(&root(), top, "f").expect("made");
    let go = |from, to| {
        tree.rename(&root(), (top, from), (top, to))
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(go("f", "d"), Err(VfsError::IsDirectory.to_string()));
    assert_eq!(go("d", "f"), Err(VfsError::NotDirectory.to_string()));
    tree.file(&root(), target, "inside").expect("made");
    assert_eq!(go("e", "d"), Err(VfsError::NotEmpty.to_string()));
    assert_eq!(go("d", "e"), Ok(()));
    assert_eq!(
        tree.stat(top).map(|stat| stat.links),
        Ok(3),
        "one subdirectory left"
    );
    tree.file(&root(), top, "g").expect("made");
    assert_eq!(go("g", "f"), Ok(()));
    assert_eq!(tree.stat(file), Err(VfsError::Stale), "the replaced file is gone");
}

#[test]
fn moving_a_directory_moves_its_dotdot_and_its_parents_link_counts() {
    let tree = Tree::new();
    let top = tree.vfs.root();
    let a = tree.directory(&root(), top, "a").expect("made");
    let b = tree.directory(&root(), top, "b").expect("made");
    let x = tree.directory(&root(), a, "x").expect("made");
    tree.rename(&root(), (a, "x"), (b, "y")).expect("moved");
    assert_eq!(
        block_on(tree.vfs.parent(&root(), x)).map(|(parent, _)| parent),
        Ok(b)
    );
    assert_eq!(tree.stat(a).map(|stat| stat.links), Ok(2));
    assert_eq!(tree.stat(b).map(|stat| stat.links), Ok(3));
}

#[test]
fn an_unlinked_file_lives_while_it_is_retained() {
    let tree = Tree::new();
    let top = tree.vfs.root();
    let file = tree.file(&root(), top, "f").expect("made");
    tree.write(file, 0, "still here", Stability::FileSync);
    block_on(tree.vfs.retain(file)).expect("retained");
    tree.remove(&root(), top, "f").expect("removed");
    assert_eq!(tree.text(file), "still here");
    assert_eq!(tree.stat(file).map(|stat| stat.links), Ok(0));
    let revive = block_on(tree.vfs.link(&root(), file, top, &n("again"))).map(|_| ());
    assert_eq!(revive, Err(VfsError::NotFound));
    block_on(tree.vfs.release(file)).expect("released");
    assert_eq!(tree.stat(file), Err(VfsError::Stale));
}

#[test]
fn an_exclusive_create_is_repeated_only_with_its_verifier() {
    let tree = Tree::new();
    let top = tree.vfs.root();
    let create = |verifier| {
        block_on(
            tree.vfs
                .create(&user(5), top, &n("f"), CreateMode::Exclusive(verifier)),
        )
        .map(|made| made.handle)
    };
    let file = create([1; 8]).expect("created");
    assert_eq!(create([1; 8]), Ok(file));
    assert_eq!(create([2; 8]), Err(VfsError::Exists));
}

#[test]
fn an_unchecked_create_truncates_an_existing_file_only_if_asked_and_allowed() {
    let tree = Tree::new();
    let top = tree.vfs.root();
    let file = tree.file(&user(5), top, "f").expect("made");
    tree.write(file, 0, "text", Stability::FileSync);
    let open = |caller: &Caller, size_bytes| {
        let asked = SetAttributes {
            size_bytes,
            ..with_mode(0)
        };
        block_on(
            tree.vfs
                .create(caller, top, &n("f"), CreateMode::Unchecked(asked)),
        )
        .map(|made| made.handle)
    };
    assert_eq!(open(&user(6), None), Ok(file));
    assert_eq!(open(&user(6), Some(0)), Err(VfsError::AccessDenied));
    assert_eq!(tree.text(file), "text");
    assert_eq!(open(&user(5), Some(0)), Ok(file));
    assert_eq!(tree.text(file), "");
    assert_eq!(tree.stat(file).map(|stat| stat.mode), Ok(0o644));
}

#[test]
fn an_existing_name_is_reported_before_missing_permission() {
    let tree = Tree::new();
    let closed = tree.directory(&root(), tree.vfs.root(), "closed").expect("made");
    tree.directory(&root(), closed, "there").expect("made");
    assert_eq!(tree.directory(&user(5), closed, "there"), Err(VfsError::Exists));
    assert_eq!(
        tree.directory(&user(5), closed, "new"),
        Err(VfsError::AccessDenied)
    );
}

#[test]
fn a_write_by_another_clears_set_uid_and_the_change_time_rises_with_every_change() {
    let tree = Tree::new();
    let file = tree.file(&user(5), tree.vfs.root(), "f").expect("made");
    block_on(tree.vfs.set_attributes(&user(5), file, with_mode(0o6777), None)).expect("the owner");
    let mut changed = tree.stat(file).expect("there").changed;
    for _ in 0..3 {
        block_on(tree.vfs.write(
            &user(6),
            file,
            0,
            vec![Bytes::from_static(b"x")],
            Stability::Unstable,
        ))
        .expect("open to all");
        let now = tree.stat(file).expect("there").changed;
        assert!(now > changed, "though the clock stands");
        changed = now;
    }
    assert_eq!(tree.stat(file).map(|stat| stat.mode), Ok(0o777));
}

#[test]
fn every_scan_in_pages_sees_each_lasting_entry_once_while_others_come_and_go() {
    let tree = Tree::with(MemoryOptions {
        cookie_bits: 5,
        ..MemoryOptions::default()
    });
    let top = tree.vfs.root();
    for number in 0..60 {
        tree.file(&root(), top, &format!("stay{number}")).expect("made");
        tree.file(&root(), top, &format!("go{number}")).expect("made");
    }
    let mut seen = Vec::new();
    let (mut cookie, mut step) = (0, 0);
    loop {
        let page = block_on(tree.vfs.read_directory(&root(), top, cookie, 3, false)).expect("listed");
        for entry in &page.entries {
            cookie = entry.cookie;
            seen.push(String::from_utf8_lossy(&entry.name).into_owned());
        }
        if page.end {
            break;
        }
        if step < 60 {
            tree.remove(&root(), top, &format!("go{step}")).expect("removed");
            tree.file(&root(), top, &format!("new{step}")).expect("made");
            let (from, to) = (format!("new{step}"), format!("stay{step}"));
            tree.rename(&root(), (top, &from), (top, &to))
                .expect("renamed over");
        }
        step += 1;
    }
    for number in 0..60 {
        let name = format!("stay{number}");
        assert_eq!(seen.iter().filter(|seen| **seen == name).count(), 1, "{name}");
    }
}

#[test]
fn a_default_acl_is_inherited_and_decides() {
    let tree = Tree::new();
    let top = tree.vfs.root();
    let entry = |tag, permissions| AclEntry { tag, permissions };
    let default = Acl {
        entries: vec![
            entry(AclTag::UserObject, 7),
            entry(AclTag::User(7), 4),
            entry(AclTag::GroupObject, 0),
            entry(AclTag::Mask, 7),
            entry(AclTag::Other, 0),
        ],
    };
    block_on(tree.vfs.set_acl(&root(), top, None, Some(default))).expect("root");
    let file = tree.file(&user(5), top, "f").expect("made");
    let read = |uid| block_on(tree.vfs.read(&user(uid), file, 0, 1)).map(|_| ());
    assert_eq!(read(7), Ok(()));
    assert_eq!(read(8), Err(VfsError::AccessDenied));
    block_on(tree.vfs.set_attributes(&user(5), file, with_mode(0o600), None)).expect("the owner");
    assert_eq!(read(7), Err(VfsError::AccessDenied), "chmod moved the mask");
}

#[test]
fn a_crash_keeps_metadata_and_a_prefix_of_unstable_writes() {
    let tree = Tree::new();
    let top = tree.vfs.root();
    let file = tree.file(&root(), top, "f").expect("made");
    tree.write(file, 0, "aaaa", Stability::FileSync);
    tree.write(file, 0, "b", Stability::Unstable);
    tree.write(file, 2, "S", Stability::FileSync);
    tree.write(file, 1, "c", Stability::Unstable);
    tree.rename(&root(), (top, "f"), (top, "g")).expect("renamed");
    assert_eq!(tree.text(file), "bcSa");
    let verifier = tree.vfs.write_verifier();
    for (kept, expected) in [(0, "aaSa"), (1, "baSa"), (2, "bcSa")] {
        let crashed = Tree::new();
        crashed.vfs.restore(&tree.vfs.snapshot());
        crashed.vfs.crash(|_, writes| {
            assert_eq!(writes, 2);
            kept
        });
        assert_eq!(crashed.text(file), expected);
        assert_eq!(crashed.names(top, 1), [".", "..", "g"]);
        assert_ne!(crashed.vfs.write_verifier(), verifier);
    }
    block_on(tree.vfs.commit(&root(), file)).expect("committed");
    tree.vfs.crash(|_, _| panic!("nothing is unstable"));
    assert_eq!(tree.text(file), "bcSa");
}

#[test]
fn a_recovered_tree_is_adopted_if_a_crash_may_have_left_it_and_else_told_apart() {
    let tree = Tree::new();
    let top = tree.vfs.root();
    let one = tree.file(&root(), top, "one").expect("made");
    let two = tree.file(&root(), top, "two").expect("made");
    tree.write(one, 0, "1", Stability::Unstable);
    tree.write(two, 0, "2", Stability::Unstable);
    let recovered = |keep_one, keep_two| {
        let recovered = tree.vfs.fork();
        recovered.crash(|file, _| if file == one { keep_one } else { keep_two });
        recovered
    };
    let adopt = |recovered: &MemoryVfs, order| {
        block_on(tree.vfs.fork().adopt_crash(recovered, order, &Compare::default()))
    };
    for order in [LossOrder::PerFile, LossOrder::Global] {
        assert_eq!(adopt(&recovered(1, 0), order), Ok(()));
        assert_eq!(adopt(&recovered(0, 0), order), Ok(()));
        assert_eq!(adopt(&recovered(1, 1), order), Ok(()));
    }
    assert_eq!(adopt(&recovered(0, 1), LossOrder::PerFile), Ok(()));
    let reordered = adopt(&recovered(0, 1), LossOrder::Global).expect_err("out of order");
    assert_eq!(reordered.len(), 1, "{reordered:?}");
    assert_eq!(reordered[0].path, "/one");
    let broken = recovered(1, 1);
    block_on(broken.remove(&root(), top, &n("two"))).expect("removed");
    let lost = adopt(&broken, LossOrder::PerFile).expect_err("a lost name");
    assert_eq!(lost[0].to_string(), "/two: only on the left");
}

#[test]
fn a_comparison_sees_every_kind_of_difference() {
    type Change = fn(&MemoryVfs, FileHandle);
    let tree = Tree::new();
    let top = tree.vfs.root();
    let file = tree.file(&root(), top, "f").expect("made");
    tree.write(file, 0, "text", Stability::FileSync);
    block_on(tree.vfs.link(&root(), file, top, &n("g"))).expect("linked");
    let changes: [(&str, Change); 6] = [
        ("mode", |vfs, file| {
            block_on(vfs.set_attributes(&root(), file, with_mode(0o600), None)).expect("root");
        }),
        ("size", |vfs, file| {
            let size_bytes = Some(3);
            let shorter = SetAttributes {
                size_bytes,
                ..SetAttributes::default()
            };
            block_on(vfs.set_attributes(&root(), file, shorter, None)).expect("root");
        }),
        ("byte 1", |vfs, file| {
            let data = vec![Bytes::from_static(b"E")];
            block_on(vfs.write(&root(), file, 1, data, Stability::FileSync)).expect("root");
        }),
        ("extended attributes", |vfs, file| {
            let value = Bytes::from_static(b"v");
            block_on(vfs.set_xattr(&root(), file, b"user.a", value, XattrMode::Either)).expect("root");
        }),
        ("only on the right", |vfs, _| {
            block_on(vfs.make_symlink(
                &root(),
                vfs.root(),
                &n("new"),
                Bytes::from_static(b"t"),
                SetAttributes::default(),
            ))
            .expect("root");
        }),
        ("same file as another name", |vfs, _| {
            block_on(vfs.remove(&root(), vfs.root(), &n("g"))).expect("root");
            let mode = CreateMode::Guarded(with_mode(0o644));
            let made = block_on(vfs.create(&root(), vfs.root(), &n("g"), mode)).expect("root");
            let data = vec![Bytes::from_static(b"text")];
            block_on(vfs.write(&root(), made.handle, 0, data, Stability::FileSync)).expect("root");
        }),
    ];
    for (what, change) in changes {
        let other = tree.vfs.fork();
        assert_eq!(
            block_on(compare_trees(&tree.vfs, &other, &Compare::default())),
            []
        );
        change(&other, file);
        let differences = block_on(compare_trees(&tree.vfs, &other, &Compare::default()));
        assert!(
            differences
                .iter()
                .any(|difference| difference.what.contains(what)),
            "{what}: {differences:?}"
        );
    }
}

#[test]
fn requests_done_before_a_crash_are_remembered_after_it() {
    let tree = Tree::new();
    let request = RequestId {
        client: 1,
        transaction: 2,
        checksum: 3,
    };
    let caller = Caller {
        request: Some(request),
        ..root()
    };
    let file = tree.file(&caller, tree.vfs.root(), "f").expect("made");
    assert_eq!(tree.vfs.completed_requests(), []);
    assert!(tree.file(&caller, tree.vfs.root(), "f").is_err());
    tree.vfs.crash(|_, _| 0);
    let created = Some(file);
    assert_eq!(
        tree.vfs.completed_requests(),
        [CompletedRequest { request, created }]
    );
}

#[test]
fn times_are_set_to_values_and_a_truncation_marks_the_file_modified() {
    let tree = Tree::new();
    let file = tree.file(&user(5), tree.vfs.root(), "f").expect("made");
    let set = |change| block_on(tree.vfs.set_attributes(&user(5), file, change, None)).expect("the owner");
    set(SetAttributes {
        modified: SetTime::To(at(7)),
        accessed: SetTime::To(at(-8)),
        ..SetAttributes::default()
    });
    let stat = tree.stat(file).expect("there");
    assert_eq!((stat.modified, stat.accessed), (at(7), at(-8)));
    tree.vfs.set_now(Some(at(200)));
    let changed = set(SetAttributes {
        size_bytes: Some(0),
        ..SetAttributes::default()
    });
    assert_eq!(changed.before.map(|before| before.modified), Some(at(7)));
    assert_eq!(changed.after.modified, at(200));
}
