//! POSIX ACLs by the NFSACL side protocol: what a client shows by `getfacl` and sets by `setfacl`.

use crate::served::{Served, Simple, guarded, handle, memory, open_rule, root, simple, status, user};
use firn_nfs::{
    ClientRule, Export, WireHandle,
    v3::{
        Status,
        types::{
            ACCESS_READ, ACL_ACCESS, ACL_ACCESS_COUNT, ACL_DEFAULT, ACL_DEFAULT_COUNT, SetAclCall, WireAcl,
            WireAclEntry,
        },
    },
    xdr::Array,
};
use firn_vfs::{AclEntry, AclTag, Caller, Credentials, FileHandle, Vfs};

const USER_OBJECT: u32 = 1;
const USER: u32 = 2;
const GROUP_OBJECT: u32 = 4;
const MASK: u32 = 0x10;
const OTHER: u32 = 0x20;
const IN_DEFAULT: u32 = 0x1000;

const EVERYTHING: u32 = ACL_ACCESS | ACL_ACCESS_COUNT | ACL_DEFAULT | ACL_DEFAULT_COUNT;

fn list(entries: &[(u32, u32, u32)]) -> WireAcl {
    let entry = |&(tag, id, permissions)| WireAclEntry { tag, id, permissions };
    WireAcl {
        count: entries.len() as u32,
        entries: Array(entries.iter().map(entry).collect()),
    }
}

fn access(file: &WireHandle, access: WireAcl) -> SetAclCall {
    SetAclCall {
        file: file.clone(),
        mask: ACL_ACCESS,
        access,
        default: WireAcl::default(),
    }
}

/// Owner 6, user 7 may read, nobody else anything.
fn for_seven() -> WireAcl {
    list(&[
        (USER_OBJECT, 0, 6),
        (USER, 7, 4),
        (GROUP_OBJECT, 0, 0),
        (MASK, 0, 4),
        (OTHER, 0, 0),
    ])
}

async fn only_file(simple: &Simple, name: &str) -> FileHandle {
    let caller = Caller::new(Credentials::root());
    let name = firn_vfs::Name::new(name.as_bytes().to_vec()).unwrap();
    simple
        .vfs
        .lookup(&caller, simple.vfs.root(), &name)
        .await
        .unwrap()
        .0
}

#[tokio::test]
async fn a_file_without_an_acl_shows_the_one_that_its_mode_means_with_a_mask_for_solaris() {
    let simple = simple().await;
    let file = simple.file("f").await;
    let shown = simple.client.get_acl(&file, EVERYTHING).await.unwrap().unwrap();
    assert_eq!(shown.mask, EVERYTHING);
    let of_mode = list(&[
        (USER_OBJECT, 0, 6),
        (GROUP_OBJECT, 0, 4),
        (MASK, 0, 4),
        (OTHER, 0, 4),
    ]);
    assert_eq!(shown.access, of_mode);
    assert_eq!(shown.default, WireAcl::default());
    assert_eq!(shown.attributes.unwrap().mode, 0o644);
    let counted = simple
        .client
        .get_acl(&file, ACL_ACCESS_COUNT)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((counted.access.count, counted.access.entries.0.len()), (4, 0));
    // What was shown can be set again, and is no ACL then.
    simple
        .client
        .set_acl(&access(&file, shown.access))
        .await
        .unwrap()
        .unwrap();
    let caller = Caller::new(Credentials::root());
    let kept = simple
        .vfs
        .get_acl(&caller, only_file(&simple, "f").await)
        .await
        .unwrap();
    assert!(kept.0.entries.is_empty(), "{kept:?}");
}

#[tokio::test]
async fn what_is_set_is_enforced_shown_and_taken_away() {
    let simple = simple().await;
    let made = simple
        .client
        .create(&simple.root, "f", guarded(0o600))
        .await
        .unwrap()
        .unwrap();
    let file = handle(made);
    let (seven, eight) = (
        simple.served.client(user(7)).await,
        simple.served.client(user(8)).await,
    );
    assert_eq!(
        status(seven.read(&file, 0, 10).await.unwrap()),
        Status::AccessDenied
    );

    let after = simple
        .client
        .set_acl(&access(&file, for_seven()))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(after.unwrap().mode, 0o640, "the mask is the mode's group");
    assert!(seven.read(&file, 0, 10).await.unwrap().is_ok());
    assert_eq!(
        seven.access(&file, ACCESS_READ).await.unwrap().unwrap().mask,
        ACCESS_READ
    );
    assert_eq!(
        status(eight.read(&file, 0, 10).await.unwrap()),
        Status::AccessDenied
    );
    let shown = simple.client.get_acl(&file, EVERYTHING).await.unwrap().unwrap();
    assert_eq!(shown.access, for_seven());
    assert_eq!(
        status(seven.set_acl(&access(&file, for_seven())).await.unwrap()),
        Status::NotPermitted,
        "only the owner and root set it"
    );

    simple
        .client
        .set_acl(&access(&file, WireAcl::default()))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        status(seven.read(&file, 0, 10).await.unwrap()),
        Status::AccessDenied
    );
}

#[tokio::test]
async fn a_default_acl_passes_to_what_is_made_in_a_directory() {
    let simple = simple().await;
    let directory = simple.directory("d").await;
    let sent = for_seven();
    let default = WireAcl {
        entries: Array(
            sent.entries
                .0
                .iter()
                .map(|entry| WireAclEntry {
                    tag: entry.tag | IN_DEFAULT,
                    ..*entry
                })
                .collect(),
        ),
        ..sent
    };
    let set = SetAclCall {
        file: directory.clone(),
        mask: ACL_DEFAULT,
        access: WireAcl::default(),
        default: default.clone(),
    };
    simple.client.set_acl(&set).await.unwrap().unwrap();
    let shown = simple
        .client
        .get_acl(&directory, ACL_DEFAULT)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(shown.default, default);
    assert_eq!(shown.access, WireAcl::default(), "not asked for");
    let file = handle(
        simple
            .client
            .create(&directory, "f", guarded(0o666))
            .await
            .unwrap()
            .unwrap(),
    );
    let seven = simple.served.client(user(7)).await;
    assert!(seven.read(&file, 0, 10).await.unwrap().is_ok());
    let caller = Caller::new(Credentials::root());
    let (_, of_directory) = simple
        .vfs
        .get_acl(&caller, only_file(&simple, "d").await)
        .await
        .unwrap();
    assert!(of_directory.entries.contains(&AclEntry {
        tag: AclTag::User(7),
        permissions: 4
    }));
    let on_a_file = SetAclCall { file, ..set };
    assert_eq!(
        status(simple.client.set_acl(&on_a_file).await.unwrap()),
        Status::AccessDenied
    );
}

#[tokio::test]
async fn nonsense_and_read_only_exports_change_nothing() {
    let vfs = memory(1);
    let rule = ClientRule {
        read_only: true,
        ..open_rule()
    };
    let writable = Export::new("/rw", vfs.clone(), vec![open_rule()]).unwrap();
    let served = Served::start([writable, Export::new("/ro", vfs, vec![rule]).unwrap()]).await;
    let client = served.client(root()).await;
    let rw = client.mount("/rw").await.unwrap().unwrap().handle;
    let file = handle(client.create(&rw, "f", guarded(0o600)).await.unwrap().unwrap());
    let ro = client.mount("/ro").await.unwrap().unwrap().handle;
    let same = client.lookup(&ro, "f").await.unwrap().unwrap().file;
    assert_eq!(
        status(client.set_acl(&access(&same, for_seven())).await.unwrap()),
        Status::ReadOnly
    );
    assert!(client.get_acl(&same, EVERYTHING).await.unwrap().is_ok());

    let twice = list(&[
        (USER_OBJECT, 0, 6),
        (USER_OBJECT, 0, 4),
        (GROUP_OBJECT, 0, 0),
        (OTHER, 0, 0),
    ]);
    let incomplete = list(&[(USER_OBJECT, 0, 6)]);
    let unknown = list(&[(64, 0, 6)]);
    for nonsense in [twice, incomplete, unknown] {
        assert_eq!(
            status(client.set_acl(&access(&file, nonsense)).await.unwrap()),
            Status::Invalid
        );
    }
    let both = SetAclCall {
        mask: 16,
        ..access(&file, for_seven())
    };
    assert_eq!(status(client.set_acl(&both).await.unwrap()), Status::Invalid);
    assert_eq!(status(client.get_acl(&file, 16).await.unwrap()), Status::Invalid);
    let shown = client.get_acl(&file, ACL_ACCESS).await.unwrap().unwrap();
    assert_eq!(shown.attributes.unwrap().mode, 0o600);
}
