//! The option phase.

use crate::{
    raw::{Raw, be32, be64, go_data, meta_data},
    world::{DISK_BYTES, on_network, on_network_with},
};
use firn_blockd_nbd::{
    Limits,
    wire::{IHAVEOPT, info, opt, rep, transmission},
};
use std::time::Duration;
use tokio::io::AsyncReadExt;

#[test]
fn export_name_is_answered_with_size_flags_and_zeroes_unless_declined() {
    on_network(|world| async move {
        for (flags, zeroes) in [(1, 124), (3, 0), (0, 124)] {
            let mut client = Raw::connect_with(&world.env, &world.address, flags).await;
            client.send_option(opt::EXPORT_NAME, 4, b"disk").await;
            assert_eq!(client.stream.read_u64().await.unwrap(), DISK_BYTES);
            let flags = client.stream.read_u16().await.unwrap();
            assert_eq!(flags & transmission::HAS_FLAGS, 1);
            assert_eq!(flags & transmission::SEND_DF, 0, "no chunks were negotiated");
            let mut padding = vec![1; zeroes];
            client.stream.read_exact(&mut padding).await.unwrap();
            assert!(padding.iter().all(|byte| *byte == 0));
            client.request(0, 0, 5, 0, 512, b"").await;
            assert_eq!(client.simple(512).await, (0, 5, vec![0; 512]));
        }
    });
}

#[test]
fn an_unknown_export_ends_export_name_but_not_go() {
    on_network(|world| async move {
        let mut client = Raw::connect(&world.env, &world.address).await;
        client.send_option(opt::EXPORT_NAME, 4, b"none").await;
        assert!(client.is_closed().await);
        let mut client = Raw::connect(&world.env, &world.address).await;
        assert_eq!(
            client.option(opt::GO, &go_data("none", &[])).await.0,
            rep::ERR_UNKNOWN
        );
        // Four exports: none is the default.
        assert_eq!(
            client.option(opt::GO, &go_data("", &[])).await.0,
            rep::ERR_UNKNOWN
        );
        assert_eq!(client.option(opt::GO, &go_data("disk", &[])).await.0, rep::ACK);
    });
}

#[test]
fn info_tells_size_flags_blocks_name_and_description() {
    on_network(|world| async move {
        let mut client = Raw::connect(&world.env, &world.address).await;
        let data = go_data("disk", &[info::NAME, info::DESCRIPTION, 999]);
        let (verdict, items) = client.option(opt::INFO, &data).await;
        assert_eq!(verdict, rep::ACK);
        let find = |kind: u16| {
            let item = items.iter().find(|(_, data)| data[..2] == kind.to_be_bytes());
            item.unwrap().1[2..].to_vec()
        };
        assert_eq!(be64(&find(info::EXPORT)), DISK_BYTES);
        assert_eq!(find(info::NAME), b"disk");
        assert_eq!(find(info::DESCRIPTION), b"the disk one");
        let sizes = find(info::BLOCK_SIZE);
        assert_eq!(
            [be32(&sizes), be32(&sizes[4..]), be32(&sizes[8..])],
            [512, 4096, 32 << 20]
        );
        assert_eq!(client.option(opt::GO, &data).await, (verdict, items));
    });
}

#[test]
fn list_names_every_export_in_order() {
    on_network(|world| async move {
        let mut client = Raw::connect(&world.env, &world.address).await;
        let (verdict, entries) = client.option(opt::LIST, b"").await;
        assert_eq!(verdict, rep::ACK);
        assert_eq!(entries.len(), 4);
        assert_eq!(entries[0], (rep::SERVER, b"\0\0\0\x04diskthe disk one".to_vec()));
        assert_eq!(client.option(opt::LIST, b"x").await.0, rep::ERR_INVALID);
    });
}

#[test]
fn options_that_are_malformed_or_unknown_are_refused_and_the_haggling_goes_on() {
    on_network(|world| async move {
        let mut client = Raw::connect(&world.env, &world.address).await;
        let mut long_name = 9_u32.to_be_bytes().to_vec();
        long_name.extend(b"disk\0\0");
        for (option, data, expected) in [
            (opt::GO, &b""[..], rep::ERR_INVALID),
            (opt::GO, b"\xff\xff\xff\xff\0\0", rep::ERR_INVALID),
            (opt::GO, &long_name, rep::ERR_INVALID),
            (opt::INFO, b"\0\0\0\x01\0\0\0", rep::ERR_INVALID),
            (opt::INFO, b"\0\0\0\x01\xff\0\0", rep::ERR_INVALID),
            (opt::STRUCTURED_REPLY, b"x", rep::ERR_INVALID),
            (opt::EXTENDED_HEADERS, b"x", rep::ERR_INVALID),
            (opt::STARTTLS, b"x", rep::ERR_INVALID),
            (opt::STARTTLS, b"", rep::ERR_POLICY),
            (4, b"", rep::ERR_UNSUP),
            (12, b"whatever", rep::ERR_UNSUP),
            (u32::MAX, b"", rep::ERR_UNSUP),
        ] {
            assert_eq!(
                client.option(option, data).await.0,
                expected,
                "option {option} {data:?}"
            );
        }
        assert_eq!(client.option(opt::GO, &go_data("disk", &[])).await.0, rep::ACK);
    });
}

#[test]
fn abort_is_acknowledged_and_ends_the_session() {
    on_network(|world| async move {
        let mut client = Raw::connect(&world.env, &world.address).await;
        assert_eq!(client.option(opt::ABORT, b"ignored").await.0, rep::ACK);
        assert!(client.is_closed().await);
    });
}

#[test]
fn metadata_contexts_need_structured_replies_and_the_right_export() {
    on_network(|world| async move {
        let (set, list) = (opt::SET_META_CONTEXT, opt::LIST_META_CONTEXT);
        let mut client = Raw::connect(&world.env, &world.address).await;
        let wanted = meta_data("disk", &["base:allocation"]);
        assert_eq!(client.option(set, &wanted).await.0, rep::ERR_INVALID);
        assert_eq!(client.option(opt::STRUCTURED_REPLY, b"").await.0, rep::ACK);
        for (option, queries, found) in [
            (list, &[][..], 1),
            (list, &["base:"], 1),
            (list, &["x-other:thing"], 0),
            (set, &[], 0),
            (set, &["base:"], 0),
            (set, &["base:nothing", "qemu:dirty-bitmap:b0"], 0),
            (set, &["x:y", "base:allocation", "base:allocation"], 1),
        ] {
            let (verdict, contexts) = client.option(option, &meta_data("disk", queries)).await;
            assert_eq!(
                (verdict, contexts.len()),
                (rep::ACK, found),
                "{option} {queries:?}"
            );
        }
        assert_eq!(
            client.option(set, &meta_data("none", &[])).await.0,
            rep::ERR_UNKNOWN
        );
        assert_eq!(
            client.option(set, &meta_data("disk", &["nocolon"])).await.0,
            rep::ERR_INVALID
        );
        let many = vec!["base:allocation"; 65];
        assert_eq!(
            client.option(set, &meta_data("disk", &many)).await.0,
            rep::ERR_TOO_BIG
        );
        // Chosen for another export than the one used: no block status.
        assert_eq!(client.option(set, &wanted).await.0, rep::ACK);
        assert_eq!(client.option(opt::GO, &go_data("large", &[])).await.0, rep::ACK);
        client.request(0, 7, 1, 0, 4096, b"").await;
        assert_eq!(client.chunk().await.error(), 22);
    });
}

#[test]
fn extended_headers_come_once_and_rule_out_older_options() {
    on_network(|world| async move {
        let mut client = Raw::connect(&world.env, &world.address).await;
        assert_eq!(client.option(opt::STRUCTURED_REPLY, b"").await.0, rep::ACK);
        assert_eq!(
            client.option(opt::STRUCTURED_REPLY, b"").await.0,
            rep::ERR_INVALID
        );
        assert_eq!(client.option(opt::EXTENDED_HEADERS, b"").await.0, rep::ACK);
        assert_eq!(
            client.option(opt::EXTENDED_HEADERS, b"").await.0,
            rep::ERR_INVALID
        );
        assert_eq!(
            client.option(opt::STRUCTURED_REPLY, b"").await.0,
            rep::ERR_EXT_HEADER_REQD
        );
        client.send_option(opt::EXPORT_NAME, 4, b"disk").await;
        assert!(client.is_closed().await);
    });
}

#[test]
fn what_is_not_the_protocol_is_cut_off() {
    on_network(|world| async move {
        for flags in [4, 1 << 31, u32::MAX] {
            let mut client = Raw::connect_with(&world.env, &world.address, flags).await;
            assert!(client.is_closed().await, "client flags {flags}");
        }
        let mut client = Raw::connect(&world.env, &world.address).await;
        let _ = client.send(&(IHAVEOPT + 1).to_be_bytes()).await;
        let _ = client.send(&[0; 8]).await;
        assert!(client.is_closed().await, "wrong magic");
        for (option, length) in [
            (opt::EXPORT_NAME, 65_537),
            (opt::EXPORT_NAME, 5000),
            (opt::GO, u32::MAX),
        ] {
            let mut client = Raw::connect(&world.env, &world.address).await;
            client.send_option(option, length, &vec![b'a'; 5000]).await;
            assert!(client.is_closed().await, "option {option} of {length}");
        }
        // Long but not absurd: refused, and the session goes on.
        let mut client = Raw::connect(&world.env, &world.address).await;
        assert_eq!(
            client.option(opt::GO, &vec![0; 100_000]).await.0,
            rep::ERR_TOO_BIG
        );
        assert_eq!(client.option(opt::GO, &go_data("disk", &[])).await.0, rep::ACK);
    });
}

#[test]
fn a_client_that_haggles_for_ever_is_cut_off() {
    on_network(|world| async move {
        let mut client = Raw::connect(&world.env, &world.address).await;
        for _ in 0..1000 {
            client.send_option(99, 0, b"").await;
            assert_eq!(client.option_reply(99).await.0, rep::ERR_UNSUP);
        }
        assert!(client.is_closed().await);
    });
    let limits = Limits {
        negotiation: Duration::from_secs(5),
        ..Limits::default()
    };
    on_network_with(limits, |world| async move {
        let mut client = Raw::connect(&world.env, &world.address).await;
        let before = world.env.now();
        assert!(client.is_closed().await);
        assert!(world.env.now().since(before) >= Duration::from_secs(4));
    });
}

#[test]
fn growth_shows_in_new_negotiations() {
    on_network(|world| async move {
        let mut old = Raw::connect(&world.env, &world.address).await;
        assert_eq!(old.option(opt::GO, &go_data("disk", &[])).await.0, rep::ACK);
        world.disk.grow(2 * DISK_BYTES);
        let mut new = Raw::connect(&world.env, &world.address).await;
        let (_, items) = new.option(opt::GO, &go_data("disk", &[])).await;
        assert_eq!(be64(&items[0].1[2..]), 2 * DISK_BYTES);
        new.request(0, 1, 1, DISK_BYTES, 512, &[7; 512]).await;
        assert_eq!(new.simple(0).await.0, 0);
        // The kernel can be told of the new size without a new negotiation, so old connections may use it too.
        old.request(0, 0, 2, DISK_BYTES, 512, b"").await;
        assert_eq!(old.simple(512).await, (0, 2, vec![7; 512]));
    });
}
