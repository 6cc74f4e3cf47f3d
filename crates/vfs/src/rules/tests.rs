//! The rules, one sentence each.

use super::*;
use crate::{AclEntry, AclTag, SetAttributes, SetTime, Timestamp};

const OWNER: u32 = 1000;
const GROUP: u32 = 100;

fn user(uid: u32, groups: &[u32]) -> Credentials {
    Credentials {
        uid,
        gid: groups[0],
        groups: groups[1..].to_vec(),
    }
}

fn file(kind: FileKind, mode: u32) -> Attributes {
    Attributes {
        inode: 7,
        kind,
        mode,
        links: if kind == FileKind::Directory { 2 } else { 1 },
        uid: OWNER,
        gid: GROUP,
        size_bytes: 0,
        used_bytes: 0,
        accessed: Timestamp::default(),
        modified: Timestamp::default(),
        changed: at(5),
        born: Timestamp::default(),
        change: 1,
        file_system: 1,
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds: 0,
    }
}

fn change(
    attributes: &Attributes,
    caller: &Credentials,
    change: SetAttributes,
) -> Result<Attributes, VfsError> {
    set_attributes(Subject::new(attributes, None), caller, &change, None, at(9))
        .map(|plan| plan.expect("something was asked for").attributes)
}

fn acl(entries: &[(AclTag, u8)]) -> Acl {
    Acl {
        entries: entries
            .iter()
            .map(|&(tag, permissions)| AclEntry { tag, permissions })
            .collect(),
    }
}

const NAMED: &[(AclTag, u8)] = &[
    (AclTag::UserObject, 7),
    (AclTag::User(2000), 6),
    (AclTag::GroupObject, 5),
    (AclTag::Group(300), 2),
    (AclTag::Mask, 6),
    (AclTag::Other, 0),
];

#[test]
fn in_a_sticky_directory_only_owners_remove() {
    let sticky = file(FileKind::Directory, 0o1777);
    let mut victim = file(FileKind::Regular, 0o644);
    victim.uid = 2000;
    let remove = |caller: &Credentials| may_delete(Subject::new(&sticky, None), &victim, caller);
    assert_eq!(remove(&user(2000, &[1])), Ok(()), "the file's owner");
    assert_eq!(remove(&user(OWNER, &[1])), Ok(()), "the directory's owner");
    assert_eq!(remove(&Credentials::root()), Ok(()));
    assert_eq!(remove(&user(3000, &[GROUP])), Err(VfsError::NotPermitted));
    let plain = file(FileKind::Directory, 0o777);
    assert_eq!(
        may_delete(Subject::new(&plain, None), &victim, &user(3000, &[1])),
        Ok(())
    );
}

#[test]
fn moving_a_directory_elsewhere_needs_write_permission_on_itself() {
    let from = file(FileKind::Directory, 0o777);
    let mut to = from.clone();
    to.inode = 8;
    let moved = file(FileKind::Directory, 0o755);
    let rename = |to: &Attributes, caller: &Credentials| {
        may_rename(
            Rename {
                from: Subject::new(&from, None),
                moved: Subject::new(&moved, None),
                to: Subject::new(to, None),
                replaced: None,
            },
            caller,
            32000,
        )
    };
    assert_eq!(rename(&to, &user(OWNER, &[1])), Ok(()));
    assert_eq!(rename(&to, &user(3000, &[1])), Err(VfsError::AccessDenied));
    assert_eq!(rename(&from, &user(3000, &[1])), Ok(()), "its parent stays");
}

#[test]
fn chown_clears_privileges_and_is_for_root_but_chgrp_is_for_members() {
    let program = file(FileKind::Regular, 0o6755);
    let to_uid = SetAttributes {
        uid: Some(2000),
        ..Default::default()
    };
    let to_gid = |gid| SetAttributes {
        gid: Some(gid),
        ..Default::default()
    };
    let owner = user(OWNER, &[GROUP, 300]);
    assert_eq!(
        change(&program, &owner, to_uid.clone()),
        Err(VfsError::NotPermitted)
    );
    assert_eq!(change(&program, &owner, to_gid(400)), Err(VfsError::NotPermitted));
    let changed = change(&program, &owner, to_gid(300)).expect("a member");
    assert_eq!((changed.gid, changed.mode), (300, 0o755));
    let changed = change(&program, &Credentials::root(), to_uid.clone()).expect("root");
    assert_eq!((changed.uid, changed.mode), (2000, 0o755));
    let directory = file(FileKind::Directory, 0o2755);
    let changed = change(&directory, &Credentials::root(), to_uid).expect("root");
    assert_eq!(changed.mode, 0o2755, "a directory's bit is no privilege");
    let locked = file(FileKind::Regular, 0o2644);
    let changed = change(&locked, &owner, to_gid(300)).expect("a member");
    assert_eq!(changed.mode, 0o2644, "set-gid without execution is a lock mark");
}

#[test]
fn chmod_by_a_non_member_of_the_group_drops_set_gid() {
    let mode = SetAttributes {
        mode: Some(0o2755),
        ..Default::default()
    };
    let plain = file(FileKind::Regular, 0o644);
    let non_member = change(&plain, &user(OWNER, &[1]), mode.clone()).expect("the owner");
    assert_eq!(non_member.mode, 0o755);
    let member = change(&plain, &user(OWNER, &[GROUP]), mode.clone()).expect("the owner");
    assert_eq!(member.mode, 0o2755);
    assert_eq!(
        change(&plain, &user(3000, &[GROUP]), mode),
        Err(VfsError::NotPermitted)
    );
}

#[test]
fn times_to_a_value_are_for_the_owner_and_to_now_for_writers() {
    let open = file(FileKind::Regular, 0o666);
    let closed = file(FileKind::Regular, 0o644);
    let other = user(3000, &[1]);
    let value = SetAttributes {
        modified: SetTime::To(at(1)),
        ..Default::default()
    };
    let now = SetAttributes {
        accessed: SetTime::Now,
        modified: SetTime::Now,
        ..Default::default()
    };
    assert_eq!(change(&open, &other, value.clone()), Err(VfsError::NotPermitted));
    assert_eq!(
        change(&open, &other, now.clone()).map(|new| new.modified),
        Ok(at(9))
    );
    assert_eq!(change(&closed, &other, now.clone()), Err(VfsError::AccessDenied));
    let read_only = file(FileKind::Regular, 0o444);
    assert!(
        change(&read_only, &user(OWNER, &[1]), now).is_ok(),
        "the owner, whatever the mode"
    );
    let set = change(&read_only, &user(OWNER, &[1]), value).expect("the owner");
    assert_eq!((set.modified, set.changed), (at(1), at(9)));
}

#[test]
fn a_guard_that_is_not_the_change_time_refuses() {
    let plain = file(FileKind::Regular, 0o644);
    let mode = SetAttributes {
        mode: Some(0o600),
        ..Default::default()
    };
    let owner = user(OWNER, &[1]);
    let with = |guard| set_attributes(Subject::new(&plain, None), &owner, &mode, Some(guard), at(9));
    assert_eq!(with(at(4)), Err(VfsError::NotSynchronised));
    assert!(with(at(5)).is_ok());
}

#[test]
fn the_change_time_rises_even_when_the_clock_went_back() {
    let mut attributes = file(FileKind::Regular, 0o644);
    attributes.changed = Timestamp {
        seconds: 5,
        nanoseconds: 999_999_999,
    };
    stamp(&mut attributes, at(2));
    assert_eq!(attributes.changed, at(6));
    assert_eq!(attributes.change, 2);
    stamp(&mut attributes, at(7));
    assert_eq!(attributes.changed, at(7));
}

#[test]
fn a_write_clears_privileges_unless_root_writes() {
    assert_eq!(mode_after_write(0o6755, &user(OWNER, &[1])), 0o755);
    assert_eq!(mode_after_write(0o6745, &user(OWNER, &[1])), 0o2745);
    assert_eq!(mode_after_write(0o6755, &Credentials::root()), 0o6755);
}

#[test]
fn the_owner_reads_and_writes_whatever_the_mode_but_access_says_the_truth() {
    let none = file(FileKind::Regular, 0o000);
    let owner = user(OWNER, &[1]);
    assert_eq!(may_read(Subject::new(&none, None), &owner), Ok(()));
    assert_eq!(may_write(Subject::new(&none, None), &owner), Ok(()));
    let asked = AccessMask {
        read: true,
        modify: true,
        ..Default::default()
    };
    assert_eq!(
        granted(Subject::new(&none, None), &owner, asked),
        AccessMask::default()
    );
    let program = file(FileKind::Regular, 0o711);
    let other = user(3000, &[1]);
    assert_eq!(
        may_read(Subject::new(&program, None), &other),
        Ok(()),
        "to execute it"
    );
    assert_eq!(
        may_write(Subject::new(&program, None), &other),
        Err(VfsError::AccessDenied)
    );
}

#[test]
fn one_group_entry_must_grant_everything_at_once() {
    let acl = acl(&[
        (AclTag::UserObject, 7),
        (AclTag::GroupObject, 4),
        (AclTag::Group(300), 2),
        (AclTag::Mask, 7),
        (AclTag::Other, 7),
    ]);
    let attributes = file(FileKind::Regular, 0o777);
    let subject = Subject::new(&attributes, Some(&acl));
    let both = user(3000, &[GROUP, 300]);
    assert!(permits(subject, &both, READ));
    assert!(permits(subject, &both, WRITE));
    assert!(!permits(subject, &both, READ | WRITE));
    assert!(!permits(subject, &both, EXECUTE), "others' bits are for others");
    assert!(permits(subject, &user(3000, &[1]), READ | WRITE | EXECUTE));
}

#[test]
fn the_verdict_names_the_line_that_decides() {
    let attributes = file(FileKind::Regular, 0o640);
    let says = |acl: Option<&Acl>, caller: &Credentials, wanted| {
        let verdict = verdict(Subject::new(&attributes, acl), caller, wanted);
        (verdict.is_allowed(), verdict.to_string())
    };
    let of_mode = |caller: &Credentials, wanted| says(None, caller, wanted);
    let expect = |allowed: bool, text: &str| (allowed, text.to_owned());
    assert_eq!(
        of_mode(&user(OWNER, &[1]), WRITE),
        expect(true, "the owner's bits rw- of the mode")
    );
    assert_eq!(
        of_mode(&user(3000, &[1, GROUP]), WRITE),
        expect(false, "the group's bits r-- of the mode")
    );
    assert_eq!(
        of_mode(&user(3000, &[1]), READ),
        expect(false, "others' bits --- of the mode")
    );
    assert_eq!(
        of_mode(&Credentials::root(), EXECUTE),
        expect(false, "root, whom permissions do not bind (rw-)")
    );
    let acl = acl(&[
        (AclTag::UserObject, 6),
        (AclTag::User(2000), 6),
        (AclTag::User(2001), 0),
        (AclTag::GroupObject, 4),
        (AclTag::Group(300), 2),
        (AclTag::Mask, 4),
        (AclTag::Other, 1),
    ]);
    let of_acl = |caller: &Credentials, wanted| says(Some(&acl), caller, wanted);
    assert_eq!(
        of_acl(&user(2000, &[300]), WRITE),
        expect(false, "the ACL entry user:2000:rw- within mask::r--")
    );
    assert_eq!(
        of_acl(&user(2001, &[GROUP]), READ),
        expect(false, "the ACL entry user:2001:---"),
        "a named user is no member of a group"
    );
    assert_eq!(
        of_acl(&user(3000, &[300, GROUP]), READ),
        expect(true, "the ACL entry group::r--"),
        "the one that grants it"
    );
    assert_eq!(
        of_acl(&user(3000, &[300]), WRITE),
        expect(false, "the ACL entry group:300:-w- within mask::r--")
    );
    assert_eq!(
        of_acl(&user(3000, &[1]), EXECUTE),
        expect(true, "the ACL entry other::--x")
    );
    assert_eq!(
        of_acl(&user(OWNER, &[300]), EXECUTE),
        expect(false, "the owner's bits rw- of the mode")
    );
}

#[test]
fn named_entries_are_bounded_by_the_mask_and_chmod_moves_it() {
    let named = acl(NAMED);
    assert_eq!(check_acl(&named), Ok(()));
    let attributes = file(FileKind::Regular, 0o760);
    let named_user = user(2000, &[1]);
    assert!(permits(
        Subject::new(&attributes, Some(&named)),
        &named_user,
        READ | WRITE
    ));
    let plan = set_attributes(
        Subject::new(&attributes, Some(&named)),
        &user(OWNER, &[1]),
        &SetAttributes {
            mode: Some(0o740),
            ..Default::default()
        },
        None,
        at(9),
    )
    .expect("the owner")
    .expect("a change");
    let narrowed = plan.access_acl.expect("the ACL follows");
    assert!(permits(
        Subject::new(&plan.attributes, Some(&narrowed)),
        &named_user,
        READ
    ));
    assert!(!permits(
        Subject::new(&plan.attributes, Some(&narrowed)),
        &named_user,
        WRITE
    ));
}

#[test]
fn an_acl_sets_the_mode_and_a_minimal_one_is_not_kept() {
    let attributes = file(FileKind::Regular, 0o2600);
    let owner = user(OWNER, &[GROUP]);
    let plan = set_acl(&attributes, &owner, Some(acl(NAMED)), None).expect("the owner");
    assert_eq!(
        (plan.mode, plan.access),
        (0o2760, Some(acl(NAMED))),
        "the mask shows as the group's bits"
    );
    let minimal = acl(&[
        (AclTag::UserObject, 6),
        (AclTag::GroupObject, 4),
        (AclTag::Other, 4),
    ]);
    let plan = set_acl(&attributes, &owner, Some(minimal), None).expect("the owner");
    assert_eq!((plan.mode, plan.access), (0o2644, Some(Acl::default())));
    assert_eq!(
        set_acl(&attributes, &user(3000, &[GROUP]), Some(acl(NAMED)), None),
        Err(VfsError::NotPermitted)
    );
    assert_eq!(
        set_acl(&attributes, &owner, None, Some(acl(NAMED))),
        Err(VfsError::AccessDenied),
        "a default ACL on a file"
    );
}

#[test]
fn an_incomplete_or_disordered_acl_is_refused() {
    let reject = |entries: &[(AclTag, u8)]| {
        assert_eq!(
            check_acl(&acl(entries)),
            Err(VfsError::InvalidArgument),
            "{entries:?}"
        );
    };
    reject(&NAMED[1..]);
    reject(&[NAMED[0], NAMED[2], NAMED[1], NAMED[4], NAMED[5]]);
    reject(&[NAMED[0], NAMED[1], NAMED[1], NAMED[2], NAMED[4], NAMED[5]]);
    reject(&[NAMED[0], NAMED[1], NAMED[2], NAMED[5]]);
    reject(&[(AclTag::UserObject, 8), NAMED[2], NAMED[5]]);
}

#[test]
fn a_new_file_takes_the_group_of_a_set_gid_directory_and_its_default_acl() {
    let mut directory = file(FileKind::Directory, 0o2777);
    directory.gid = 300;
    let caller = user(3000, &[1]);
    let asked = SetAttributes {
        mode: Some(0o2666),
        uid: Some(0),
        ..Default::default()
    };
    let new = |kind, asked: &SetAttributes, default: &Acl| {
        inherit(&directory, default, kind, asked, &caller, at(9)).expect("small")
    };
    let made = new(FileKind::Regular, &asked, &Acl::default());
    assert_eq!((made.uid, made.gid, made.mode), (3000, 300, 0o2666));
    let executable = SetAttributes {
        mode: Some(0o2775),
        ..Default::default()
    };
    let made = new(FileKind::Regular, &executable, &Acl::default());
    assert_eq!(made.mode, 0o775, "would run as a group the caller is not in");
    let made = new(FileKind::Directory, &executable, &Acl::default());
    assert_eq!(made.mode, 0o2775);
    let made = new(FileKind::Directory, &executable, &acl(NAMED));
    assert_eq!(made.mode, 0o2760);
    assert_eq!(made.default_acl, acl(NAMED));
    let made = new(FileKind::Regular, &asked, &acl(NAMED));
    assert_eq!(made.mode, 0o2660);
    assert_eq!(made.access_acl, acl_after_chmod(&acl(NAMED), 0o2660));
    assert_eq!(made.default_acl, Acl::default());
}

#[test]
fn extended_attributes_obey_their_namespace() {
    let plain = file(FileKind::Regular, 0o644);
    let other = user(3000, &[1]);
    let check = |file: &Attributes, caller: &Credentials, name: &[u8], use_| {
        check_xattr(Subject::new(file, None), caller, name, use_)
    };
    assert_eq!(check(&plain, &other, b"user.a", XattrUse::Get), Ok(()));
    assert_eq!(
        check(&plain, &other, b"user.a", XattrUse::Change),
        Err(VfsError::AccessDenied)
    );
    assert_eq!(
        check(&plain, &other, b"trusted.a", XattrUse::Get),
        Err(VfsError::NoAttribute)
    );
    assert_eq!(
        check(&plain, &other, b"security.a", XattrUse::Change),
        Err(VfsError::NotPermitted)
    );
    assert_eq!(
        check(&plain, &other, b"system.a", XattrUse::Get),
        Err(VfsError::NotSupported)
    );
    assert_eq!(
        check(&plain, &other, b"user.", XattrUse::Get),
        Err(VfsError::InvalidArgument)
    );
    assert_eq!(
        check(&plain, &other, &[b'x'; 256], XattrUse::Get),
        Err(VfsError::TooLarge)
    );
    let link = file(FileKind::Symlink, 0o777);
    assert_eq!(
        check(&link, &user(OWNER, &[1]), b"user.a", XattrUse::Change),
        Err(VfsError::NotPermitted)
    );
    let sticky = file(FileKind::Directory, 0o1777);
    assert_eq!(
        check(&sticky, &other, b"user.a", XattrUse::Change),
        Err(VfsError::NotPermitted)
    );
}
