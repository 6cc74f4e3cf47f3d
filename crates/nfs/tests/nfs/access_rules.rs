//! Access rules: networks, read-only exports, squashing, handles that do not belong.

use crate::served::{KEY, Served, guarded, handle, memory, mode, open_rule, root, status, user};
use bytes::Bytes;
use firn_nfs::{
    ClientRule, Export, ExportError, Exports, HandleKey, NfsService, PortMapping, ServiceConfig,
    SignedHandle, Squash, WireHandle,
    client::entry,
    mount::MountStatus,
    rpc::{Credential, ServerLimits},
    v3::{
        Status,
        types::{ACCESS_MODIFY, ACCESS_READ, NewAttributes, NewNode, StableHow},
    },
};
use firn_vfs::{FileHandle, Vfs};
use std::sync::Arc;

fn export(path: &str, file_system: u64, rule: ClientRule) -> Export {
    Export::new(path, memory(file_system), vec![rule]).unwrap()
}

async fn root_of(served: &Served, credential: Credential, path: &str) -> WireHandle {
    served
        .client(credential)
        .await
        .mount(path)
        .await
        .unwrap()
        .unwrap()
        .handle
}

#[tokio::test]
async fn a_read_only_export_refuses_every_change_and_allows_the_rest() {
    let vfs = memory(1);
    let writable = Export::new("/rw", vfs.clone(), vec![open_rule()]).unwrap();
    let rule = ClientRule {
        read_only: true,
        ..open_rule()
    };
    let served = Served::start([writable, Export::new("/ro", vfs, vec![rule]).unwrap()]).await;
    let client = served.client(root()).await;
    let rw = client.mount("/rw").await.unwrap().unwrap().handle;
    handle(client.create(&rw, "f", guarded(0o666)).await.unwrap().unwrap());
    let ro = client.mount("/ro").await.unwrap().unwrap().handle;
    let file = client.lookup(&ro, "f").await.unwrap().unwrap().file;
    let read_only = Status::ReadOnly;
    let none = NewAttributes::default();
    assert_eq!(
        status(client.set_attributes(&file, mode(0o600), None).await.unwrap()),
        read_only
    );
    let data = Bytes::from_static(b"x");
    assert_eq!(
        status(client.write(&file, 0, data, StableHow::FileSync).await.unwrap()),
        read_only
    );
    assert_eq!(
        status(client.create(&ro, "g", guarded(0o600)).await.unwrap()),
        read_only
    );
    assert_eq!(
        status(client.make_directory(&ro, "g", none.clone()).await.unwrap()),
        read_only
    );
    assert_eq!(
        status(client.make_symlink(&ro, "g", "x", none.clone()).await.unwrap()),
        read_only
    );
    assert_eq!(
        status(client.make_node(&ro, "g", NewNode::Fifo(none)).await.unwrap()),
        read_only
    );
    assert_eq!(status(client.remove(&ro, "f").await.unwrap()), read_only);
    assert_eq!(
        status(client.remove_directory(&ro, "f").await.unwrap()),
        read_only
    );
    assert_eq!(
        status(client.rename(entry(&ro, "f"), entry(&ro, "g")).await.unwrap()),
        read_only
    );
    assert_eq!(
        status(client.link(&file, entry(&ro, "g")).await.unwrap()),
        read_only
    );
    assert_eq!(status(client.commit(&file, 0, 0).await.unwrap()), read_only);
    let granted = client
        .access(&file, ACCESS_READ | ACCESS_MODIFY)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(granted.mask, ACCESS_READ);
    assert!(client.read(&file, 0, 10).await.unwrap().is_ok());
    assert!(client.read_directory(&ro, 0, [0; 8], 4096).await.unwrap().is_ok());
}

#[tokio::test]
async fn names_do_not_lead_from_one_export_to_another() {
    let served = Served::start([export("/a", 1, open_rule()), export("/b", 2, open_rule())]).await;
    let client = served.client(root()).await;
    let (a, b) = (
        root_of(&served, root(), "/a").await,
        root_of(&served, root(), "/b").await,
    );
    let file = handle(client.create(&a, "f", guarded(0o600)).await.unwrap().unwrap());
    assert_eq!(
        status(client.rename(entry(&a, "f"), entry(&b, "f")).await.unwrap()),
        Status::CrossDevice
    );
    assert_eq!(
        status(client.link(&file, entry(&b, "f")).await.unwrap()),
        Status::CrossDevice
    );
    assert_eq!(client.lookup(&a, "..").await.unwrap().unwrap().file, a);
}

#[tokio::test]
async fn a_client_outside_the_networks_gets_nothing_even_with_a_good_handle() {
    let rule = ClientRule {
        network: "127.0.0.2/32".parse().unwrap(),
        ..open_rule()
    };
    // Another export admits it, or it would not even be answered.
    let other = ClientRule {
        network: "127.0.0.3/32".parse().unwrap(),
        ..open_rule()
    };
    let served = Served::start([export("/e", 1, rule), export("/other", 2, other)]).await;
    let inside = served.client_from("127.0.0.2".parse().unwrap(), root()).await;
    let outside = served.client_from("127.0.0.3".parse().unwrap(), root()).await;
    let handle = inside.mount("/e").await.unwrap().unwrap().handle;
    assert_eq!(outside.mount("/e").await.unwrap(), Err(MountStatus::AccessDenied));
    assert!(inside.get_attributes(&handle).await.unwrap().is_ok());
    assert_eq!(
        status(outside.get_attributes(&handle).await.unwrap()),
        Status::AccessDenied
    );
    assert_eq!(
        status(outside.read_directory(&handle, 0, [0; 8], 4096).await.unwrap()),
        Status::AccessDenied
    );
}

#[tokio::test]
async fn the_narrowest_network_decides_whatever_the_order() {
    let wide = ClientRule {
        read_only: true,
        network: "127.0.0.0/8".parse().unwrap(),
        ..open_rule()
    };
    let narrow = ClientRule {
        network: "127.0.0.2/32".parse().unwrap(),
        ..open_rule()
    };
    for rules in [vec![wide.clone(), narrow.clone()], vec![narrow, wide]] {
        let served = Served::start([Export::new("/e", memory(1), rules).unwrap()]).await;
        for (source, writable) in [("127.0.0.2", true), ("127.0.0.3", false)] {
            let client = served.client_from(source.parse().unwrap(), root()).await;
            let root = client.mount("/e").await.unwrap().unwrap().handle;
            assert_eq!(
                client
                    .create(&root, source, guarded(0o600))
                    .await
                    .unwrap()
                    .is_ok(),
                writable
            );
        }
    }
}

#[tokio::test]
async fn a_port_that_any_user_can_have_is_refused_where_a_privileged_one_is_required() {
    let rule = ClientRule {
        require_privileged_port: true,
        ..open_rule()
    };
    let served = Served::start([export("/e", 1, rule)]).await;
    let client = served.client(root()).await;
    assert_eq!(client.mount("/e").await.unwrap(), Err(MountStatus::AccessDenied));
}

async fn owner_of_new_file(squash: Squash, credential: Credential) -> (u32, u32) {
    let rule = ClientRule {
        squash,
        anonymous_uid: 99,
        anonymous_gid: 98,
        ..open_rule()
    };
    let served = Served::start([export("/e", 1, rule)]).await;
    let client = served.client(credential).await;
    let root = client.mount("/e").await.unwrap().unwrap().handle;
    let made = client.create(&root, "f", guarded(0o600)).await.unwrap().unwrap();
    let attributes = made.attributes.unwrap();
    (attributes.uid, attributes.gid)
}

#[tokio::test]
async fn squashed_users_own_what_they_make_as_the_anonymous_user() {
    assert_eq!(owner_of_new_file(Squash::Root, root()).await, (99, 98));
    assert_eq!(owner_of_new_file(Squash::Root, user(5)).await, (5, 5));
    assert_eq!(owner_of_new_file(Squash::All, user(5)).await, (99, 98));
    assert_eq!(owner_of_new_file(Squash::None, root()).await, (0, 0));
    assert_eq!(owner_of_new_file(Squash::None, Credential::None).await, (99, 98));
}

#[tokio::test]
async fn a_squashed_root_has_no_powers() {
    let vfs = memory(1);
    let open = Export::new("/open", vfs.clone(), vec![open_rule()]).unwrap();
    let rule = ClientRule {
        squash: Squash::Root,
        ..open_rule()
    };
    let served = Served::start([open, Export::new("/squashed", vfs, vec![rule]).unwrap()]).await;
    let client = served.client(root()).await;
    let open = client.mount("/open").await.unwrap().unwrap().handle;
    handle(client.create(&open, "f", guarded(0o600)).await.unwrap().unwrap());
    let squashed = client.mount("/squashed").await.unwrap().unwrap().handle;
    let file = client.lookup(&squashed, "f").await.unwrap().unwrap().file;
    assert_eq!(
        status(client.read(&file, 0, 1).await.unwrap()),
        Status::AccessDenied
    );
    assert_eq!(
        status(client.set_attributes(&file, mode(0o777), None).await.unwrap()),
        Status::NotPermitted
    );
}

#[tokio::test]
async fn supplementary_groups_count() {
    let served = Served::start([export("/e", 1, open_rule())]).await;
    let client = served.client(root()).await;
    let e = client.mount("/e").await.unwrap().unwrap().handle;
    let file = handle(client.create(&e, "f", guarded(0o040)).await.unwrap().unwrap());
    let group = NewAttributes {
        gid: Some(77),
        ..NewAttributes::default()
    };
    client.set_attributes(&file, group, None).await.unwrap().unwrap();
    let groups = |groups| Credential::sys("test", 5, 5, groups);
    let member = served.client(groups((62..78).collect())).await;
    assert!(
        member.read(&file, 0, 1).await.unwrap().is_ok(),
        "the sixteenth group is read too"
    );
    let other = served.client(groups((61..77).collect())).await;
    assert_eq!(
        status(other.read(&file, 0, 1).await.unwrap()),
        Status::AccessDenied
    );
}

#[tokio::test]
async fn handles_that_were_not_given_out_are_bad_and_those_of_nothing_are_stale() {
    let vfs = memory(1);
    let e = Export::new("/e", vfs.clone() as Arc<dyn Vfs>, vec![open_rule()]).unwrap();
    let id = e.id();
    let served = Served::start([e]).await;
    let client = served.client(root()).await;
    let good = client.mount("/e").await.unwrap().unwrap().handle;
    let get = async |handle: &WireHandle| client.get_attributes(handle).await.unwrap();
    let mut flipped = good.0.to_vec();
    flipped[20] ^= 1;
    let other_key = HandleKey::new(&[9; 32]);
    let root = SignedHandle {
        export: id,
        file: vfs.root(),
    };
    for bad in [
        Bytes::from(flipped),
        Bytes::new(),
        Bytes::from(vec![0; 64]),
        good.0.slice(1..),
        other_key.sign(root).0,
    ] {
        assert_eq!(status(get(&WireHandle::from(bad)).await), Status::BadHandle);
    }
    let key = HandleKey::new(&KEY);
    let gone = FileHandle {
        inode: 12_345,
        ..vfs.root()
    };
    let of_nothing = key.sign(SignedHandle {
        export: id,
        file: gone,
    });
    assert_eq!(status(get(&of_nothing).await), Status::Stale);
    let other_export = Export::new("/gone", vfs, vec![open_rule()]).unwrap().id();
    let of_gone_export = key.sign(SignedHandle {
        export: other_export,
        ..root
    });
    assert_eq!(status(get(&of_gone_export).await), Status::Stale);
}

#[tokio::test]
async fn handles_outlive_a_restart_of_the_server() {
    let vfs = memory(1);
    let before = crate::served::simple_on(vfs.clone()).await;
    let file = before.file("f").await;
    before.served.service.shutdown().await;
    let after = crate::served::simple_on(vfs).await;
    assert_eq!(after.root, before.root);
    assert!(after.client.get_attributes(&file).await.unwrap().is_ok());
}

#[tokio::test]
async fn volumes_that_come_and_go_keep_their_handles_and_sign_with_their_own_keys() {
    let env = crate::served::env();
    let away = |path: &str| Export::away(path, vec![open_rule()]).unwrap();
    let exports = Arc::new(Exports::new(HandleKey::new(&KEY), [away("/a"), away("/b")]).unwrap());
    let of = |path: &str| {
        exports
            .iter()
            .find(|export| export.path() == path)
            .unwrap()
            .clone()
    };
    let config = ServiceConfig {
        address: "127.0.0.1:0".into(),
        port_mapping: PortMapping::None,
        ..ServiceConfig::default()
    };
    let service = NfsService::start(&env, config, exports.clone(), vec![])
        .await
        .unwrap();
    let served = Served { env, service };
    let client = served.client(root()).await;
    let get = async |handle: &WireHandle| client.get_attributes(handle).await.unwrap();
    let (a, b) = (memory(1), memory(2));
    let key = |byte| HandleKey::new(&[byte; 32]);
    let handle = |key: HandleKey, export: &Export, vfs: &Arc<dyn Vfs>| {
        key.sign(SignedHandle {
            export: export.id(),
            file: vfs.root(),
        })
    };
    let (a, b): (Arc<dyn Vfs>, Arc<dyn Vfs>) = (a, b);
    let of_a = handle(key(1), &of("/a"), &a);
    // Before its volume came nothing is known of its handles, and they may be good.
    assert_eq!(status(get(&of_a).await), Status::Jukebox);
    of("/a").serve(a.clone(), key(1));
    assert!(get(&of_a).await.is_ok());
    assert_eq!(client.mount("/a").await.unwrap().unwrap().handle, of_a);
    of("/b").serve(b.clone(), key(2));
    // Each key opens its own export, and no other.
    for (wrong, export, vfs) in [
        (key(2), "/a", &a),
        (key(1), "/b", &b),
        (HandleKey::new(&KEY), "/a", &a),
    ] {
        let forged = handle(wrong, &of(export), vfs);
        assert_eq!(status(get(&forged).await), Status::BadHandle, "{export}");
    }
    of("/a").withdraw();
    assert_eq!(status(get(&of_a).await), Status::Jukebox);
    assert_eq!(
        status(get(&handle(key(2), &of("/a"), &a)).await),
        Status::BadHandle
    );
    assert!(get(&handle(key(2), &of("/b"), &b)).await.is_ok());
    of("/a").serve(a, key(1));
    assert!(get(&of_a).await.is_ok());
    // Of an earlier configuration, signed by a volume that is still served.
    let gone = Export::away("/gone", vec![open_rule()]).unwrap();
    assert_eq!(status(get(&handle(key(1), &gone, &b)).await), Status::Stale);
    assert_eq!(status(get(&handle(key(9), &gone, &b)).await), Status::BadHandle);
}

#[test]
fn exports_that_make_no_sense_are_refused() {
    for path in ["", "relative", "/a//b", "/a/./b", "/a/../b", "//"] {
        let refused = Export::new(path, memory(1), vec![open_rule()]);
        assert!(matches!(refused, Err(ExportError::Path(_))), "{path}");
    }
    assert!(matches!(
        Export::new("/a", memory(1), vec![]),
        Err(ExportError::NoClients(_))
    ));
    let twice = [export("/a", 1, open_rule()), export("/a/", 2, open_rule())];
    assert!(
        matches!(Exports::new(HandleKey::new(&KEY), twice), Err(ExportError::Twice(path)) if path == "/a")
    );
}

#[tokio::test]
async fn a_peer_that_no_export_admits_is_not_served_at_all() {
    let rule = ClientRule {
        network: "127.0.0.1/32".parse().unwrap(),
        ..open_rule()
    };
    let served = Served::start([export("/e", 1, rule)]).await;
    let admitted = served.client(user(1)).await;
    admitted.null().await.expect("admitted");
    let stranger = served.client_from([127, 0, 0, 2].into(), user(1)).await;
    assert!(stranger.null().await.is_err(), "by stream");
    assert_eq!(served.service.connections(), 1);
    for (source, answered) in [("127.0.0.1:0", true), ("127.0.0.2:0", false)] {
        let socket = tokio::net::UdpSocket::bind(source).await.unwrap();
        let words = [7, 0, 2, firn_nfs::mount::PROGRAM, 3, 0, 0, 0, 0, 0];
        let call: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        socket.send_to(&call, served.service.address()).await.unwrap();
        let mut reply = [0; 100];
        let received =
            tokio::time::timeout(std::time::Duration::from_millis(500), socket.recv(&mut reply)).await;
        assert_eq!(received.is_ok(), answered, "by datagram from {source}");
    }
}

/// Connections from `source` that are answered, of one more than `expected` that stay open side by side.
async fn answered(served: &Served, source: &str, expected: usize) -> usize {
    let mut open = Vec::new();
    let mut answered = 0;
    for _ in 0..=expected {
        let client = served.client_from(source.parse().unwrap(), root()).await;
        answered += usize::from(client.null().await.is_ok());
        open.push(client);
    }
    answered
}

#[tokio::test]
async fn an_exports_own_bound_of_connections_counts_for_its_clients_and_the_largest_of_several() {
    let rule = |network: &str| ClientRule {
        network: network.parse().unwrap(),
        ..open_rule()
    };
    let many = export("/many", 1, rule("127.0.0.2/32")).with_connections_per_client(5);
    let few = export("/few", 2, rule("127.0.0.3/32")).with_connections_per_client(1);
    let usual = export("/usual", 3, rule("127.0.0.4/32"));
    let both = Export::new(
        "/both",
        memory(4),
        vec![rule("127.0.0.2/32"), rule("127.0.0.3/32"), rule("127.0.0.5/32")],
    );
    let config = ServiceConfig {
        limits: ServerLimits {
            connections_per_client: 3,
            ..ServerLimits::default()
        },
        ..ServiceConfig::default()
    };
    let served = Served::with(config.clone(), [many, few, usual]).await;
    for (source, bound) in [("127.0.0.2", 5), ("127.0.0.3", 1), ("127.0.0.4", 3)] {
        assert_eq!(answered(&served, source, bound).await, bound, "{source}");
    }

    let many = export("/many", 1, rule("127.0.0.2/32")).with_connections_per_client(5);
    let few = export("/few", 2, rule("127.0.0.3/32")).with_connections_per_client(1);
    let both = both.unwrap().with_connections_per_client(2);
    let served = Served::with(config, [many, few, both]).await;
    for (source, bound) in [("127.0.0.2", 5), ("127.0.0.3", 2), ("127.0.0.5", 2)] {
        assert_eq!(
            answered(&served, source, bound).await,
            bound,
            "{source} of several"
        );
    }
}
