//! The transmission phase: each command and each way to get it wrong.

use crate::{
    raw::{Chunk, Raw, be32, be64, go_data, meta_data},
    world::{DISK_BYTES, LARGE_BYTES, World, on_network},
};
use firn_blockd_nbd::wire::{chunk, cmd, cmd_flag, opt, rep, state};

async fn open(world: &World, export: &str) -> Raw {
    let mut client = Raw::connect(&world.env, &world.address).await;
    assert_eq!(client.option(opt::GO, &go_data(export, &[])).await.0, rep::ACK);
    client
}

async fn open_chunks(world: &World, export: &str, extended: bool) -> Raw {
    let mut client = Raw::connect(&world.env, &world.address).await;
    let option = if extended {
        opt::EXTENDED_HEADERS
    } else {
        opt::STRUCTURED_REPLY
    };
    assert_eq!(client.option(option, b"").await.0, rep::ACK);
    let contexts = meta_data(export, &["base:allocation"]);
    assert_eq!(client.option(opt::SET_META_CONTEXT, &contexts).await.0, rep::ACK);
    assert_eq!(client.option(opt::GO, &go_data(export, &[])).await.0, rep::ACK);
    client.extended = extended;
    client
}

#[test]
fn what_is_written_is_read_and_zeroed_and_trimmed() {
    on_network(|world| async move {
        let mut client = open(&world, "disk").await;
        client.request(0, cmd::WRITE, 1, 1024, 1024, &[7; 1024]).await;
        assert_eq!(client.simple(0).await, (0, 1, vec![]));
        client.request(0, cmd::READ, 2, 512, 1024, b"").await;
        let (error, _, data) = client.simple(1024).await;
        assert_eq!(
            (error, &data[..512], &data[512..]),
            (0, &[0; 512][..], &[7; 512][..])
        );
        client
            .request(cmd_flag::NO_HOLE, cmd::WRITE_ZEROES, 3, 1024, 512, b"")
            .await;
        assert_eq!(client.simple(0).await.0, 0);
        client.request(0, cmd::TRIM, 4, 1536, 512, b"").await;
        assert_eq!(client.simple(0).await.0, 0);
        client.request(0, cmd::CACHE, 5, 0, DISK_BYTES, b"").await;
        assert_eq!(client.simple(0).await.0, 0);
        client.request(0, cmd::READ, 6, 1024, 1024, b"").await;
        assert_eq!(client.simple(1024).await, (0, 6, vec![0; 1024]));
        let flushes = world.disk.flushes();
        client.request(0, cmd::FLUSH, 7, 0, 0, b"").await;
        assert_eq!(client.simple(0).await.0, 0);
        for command in [cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
            let payload = if command == cmd::WRITE { &[1; 512][..] } else { &[] };
            client.request(cmd_flag::FUA, command, 8, 0, 512, payload).await;
            assert_eq!(client.simple(0).await.0, 0);
        }
        assert_eq!(world.disk.flushes(), flushes + 4);
        client.request(0, cmd::DISC, 9, 0, 0, b"").await;
        assert!(client.is_closed().await);
    });
}

#[test]
fn every_wrong_request_has_its_error_and_harms_nothing() {
    let end = DISK_BYTES;
    let table: [(&str, u16, u16, u64, u64, u32); 31] = [
        ("unknown command", 0, 8, 0, 0, 22),
        ("unknown command", 0, 0xffff, 0, 512, 22),
        ("unknown flag", 1 << 15, cmd::READ, 0, 512, 22),
        (
            "payload flag in a compact request",
            cmd_flag::PAYLOAD_LEN,
            cmd::WRITE,
            0,
            512,
            22,
        ),
        ("DF without chunks", cmd_flag::DF, cmd::READ, 0, 512, 22),
        ("DF on a write", cmd_flag::DF, cmd::WRITE, 0, 512, 22),
        ("NO_HOLE on a write", cmd_flag::NO_HOLE, cmd::WRITE, 0, 512, 22),
        ("NO_HOLE on a trim", cmd_flag::NO_HOLE, cmd::TRIM, 0, 512, 22),
        ("REQ_ONE on a read", cmd_flag::REQ_ONE, cmd::READ, 0, 512, 22),
        (
            "FAST_ZERO on a cache",
            cmd_flag::FAST_ZERO,
            cmd::CACHE,
            0,
            512,
            22,
        ),
        ("flush of a range", 0, cmd::FLUSH, 0, 512, 22),
        ("flush of an offset", 0, cmd::FLUSH, 512, 0, 22),
        ("read beyond the end", 0, cmd::READ, end, 512, 22),
        ("read over the end", 0, cmd::READ, end - 512, 1024, 22),
        (
            "read at the end of numbers",
            0,
            cmd::READ,
            u64::MAX - 511,
            512,
            22,
        ),
        ("write beyond the end", 0, cmd::WRITE, end, 512, 28),
        ("write at the end of numbers", 0, cmd::WRITE, u64::MAX, 512, 28),
        ("zeroes beyond the end", 0, cmd::WRITE_ZEROES, end, 512, 28),
        ("trim beyond the end", 0, cmd::TRIM, end, 512, 22),
        ("cache beyond the end", 0, cmd::CACHE, end, 512, 22),
        ("unaligned offset", 0, cmd::READ, 1, 512, 22),
        ("unaligned length", 0, cmd::WRITE, 0, 511, 22),
        ("unaligned zeroes", 0, cmd::WRITE_ZEROES, 256, 512, 22),
        ("status without a context", 0, cmd::BLOCK_STATUS, 0, 512, 22),
        (
            "slow fast zero",
            cmd_flag::FAST_ZERO | cmd_flag::NO_HOLE,
            cmd::WRITE_ZEROES,
            0,
            512,
            95,
        ),
        ("fast zero", cmd_flag::FAST_ZERO, cmd::WRITE_ZEROES, 0, 512, 0),
        ("FUA on a read", cmd_flag::FUA, cmd::READ, 0, 0, 0),
        ("FUA on a flush", cmd_flag::FUA, cmd::FLUSH, 0, 0, 0),
        ("nothing read", 0, cmd::READ, 0, 0, 0),
        ("nothing written", 0, cmd::WRITE, 0, 0, 0),
        ("nothing trimmed at the end", 0, cmd::TRIM, end, 0, 0),
    ];
    on_network(move |world| async move {
        let mut client = open(&world, "disk").await;
        for (cookie, (what, flags, command, offset, length, error)) in (100..).zip(table) {
            let payload = vec![9; if command == cmd::WRITE { length as usize } else { 0 }];
            client
                .request(flags, command, cookie, offset, length, &payload)
                .await;
            let reply = client.simple(0).await;
            assert_eq!((reply.0, reply.1), (error, cookie), "{what}");
        }
        client.request(0, cmd::READ, 1, 0, DISK_BYTES, b"").await;
        assert!(
            client
                .simple(DISK_BYTES as usize)
                .await
                .2
                .iter()
                .all(|byte| *byte == 0)
        );
    });
}

#[test]
fn a_read_only_export_refuses_writes_before_it_looks_at_them() {
    on_network(|world| async move {
        let mut client = open(&world, "sealed").await;
        for (command, offset) in [(cmd::WRITE, 0), (cmd::TRIM, 0), (cmd::WRITE_ZEROES, DISK_BYTES)] {
            let payload = vec![9; if command == cmd::WRITE { 512 } else { 0 }];
            client.request(0, command, 1, offset, 512, &payload).await;
            assert_eq!(client.simple(0).await.0, 1);
        }
        client.request(0, cmd::READ, 2, 0, 512, b"").await;
        assert_eq!(client.simple(512).await.0, 0);
    });
}

#[test]
fn errors_of_the_device_reach_the_client_with_their_words() {
    on_network(|world| async move {
        let mut client = open_chunks(&world, "gated", false).await;
        for (command, length, code, words) in [
            (cmd::FLUSH, 0, 108, "attached elsewhere"),
            (cmd::TRIM, 512, 5, "on fire"),
            (cmd::WRITE_ZEROES, 512, 28, "quota"),
        ] {
            client.request(0, command, 3, 0, length, b"").await;
            let reply = client.chunk().await;
            assert_eq!((reply.error(), reply.cookie, reply.done), (code, 3, true));
            assert!(
                String::from_utf8(reply.payload[6..].to_vec())
                    .unwrap()
                    .contains(words)
            );
        }
    });
}

#[test]
fn chunks_show_holes_unless_the_read_must_not_be_split() {
    on_network(|world| async move {
        for extended in [false, true] {
            let mut client = open_chunks(&world, "disk", extended).await;
            let write = if extended { cmd_flag::PAYLOAD_LEN } else { 0 };
            client.request(write, cmd::WRITE, 1, 65_536, 512, &[7; 512]).await;
            let done = Chunk {
                done: true,
                kind: chunk::NONE,
                cookie: 1,
                payload: vec![],
            };
            assert_eq!(client.chunk().await, done);
            client.request(0, cmd::READ, 2, 0, 131_072, b"").await;
            let (hole, data) = (client.chunk().await, client.chunk().await);
            assert_eq!(
                (hole.kind, be64(&hole.payload), be32(&hole.payload[8..])),
                (chunk::OFFSET_HOLE, 0, 65_536)
            );
            assert_eq!(
                (data.kind, be64(&data.payload), data.payload.len()),
                (chunk::OFFSET_DATA, 65_536, 65_544)
            );
            assert!(!hole.done && data.done);
            client.request(cmd_flag::DF, cmd::READ, 3, 0, 131_072, b"").await;
            let whole = client.chunk().await;
            assert_eq!(
                (whole.kind, whole.done, whole.payload.len()),
                (chunk::OFFSET_DATA, true, 131_080)
            );
            client.request(0, cmd::READ, 4, 1, 512, b"").await;
            assert_eq!(client.chunk().await.error(), 22);
        }
    });
}

#[test]
fn block_status_describes_the_range_and_one_extent_if_asked() {
    on_network(|world| async move {
        for extended in [false, true] {
            let mut client = open_chunks(&world, "disk", extended).await;
            let write = if extended { cmd_flag::PAYLOAD_LEN } else { 0 };
            client.request(write, cmd::WRITE, 1, 65_536, 512, &[7; 512]).await;
            assert_eq!(client.chunk().await.error(), 0);
            let empty = u64::from(state::HOLE | state::ZERO);
            let expected = [(65_536 - 512, empty), (65_536, 0), (131_072, empty)];
            for (flags, count) in [(0, 3), (cmd_flag::REQ_ONE, 1)] {
                client
                    .request(flags, cmd::BLOCK_STATUS, 2, 512, 262_144 - 512, b"")
                    .await;
                let reply = client.chunk().await;
                let extents: Vec<(u64, u64)> = if extended {
                    assert_eq!(
                        (reply.kind, be32(&reply.payload[4..])),
                        (chunk::BLOCK_STATUS_EXT, count)
                    );
                    reply.payload[8..]
                        .chunks(16)
                        .map(|e| (be64(e), be64(&e[8..])))
                        .collect()
                } else {
                    assert_eq!(reply.kind, chunk::BLOCK_STATUS);
                    let pairs = reply.payload[4..].chunks(8);
                    pairs.map(|e| (be32(e).into(), be32(&e[4..]).into())).collect()
                };
                assert_eq!(extents, expected[..count as usize]);
            }
            for (offset, length) in [(0, 0), (DISK_BYTES, 512), (0, DISK_BYTES + 512)] {
                client.request(0, cmd::BLOCK_STATUS, 3, offset, length, b"").await;
                assert_eq!(client.chunk().await.error(), 22);
            }
        }
    });
}

#[test]
fn extended_requests_carry_payloads_only_where_they_belong_and_lengths_of_64_bits() {
    on_network(|world| async move {
        let mut client = open_chunks(&world, "large", true).await;
        let payload = cmd_flag::PAYLOAD_LEN;
        for (flags, command, length, data, error) in [
            (0, cmd::WRITE, 512, &b""[..], 22),
            (payload, cmd::READ, 4, b"abcd", 22),
            (payload, cmd::FLUSH, 4, b"abcd", 22),
            (payload, cmd::WRITE_ZEROES, 4, b"abcd", 22),
            (payload, 77, 4, b"abcd", 22),
            (payload, cmd::BLOCK_STATUS, 4, b"abcd", 22),
            (
                payload,
                cmd::BLOCK_STATUS,
                12,
                b"\0\0\0\0\0\0\x10\0\0\0\0\x07",
                22,
            ),
            (
                payload,
                cmd::BLOCK_STATUS,
                12,
                b"\0\0\0\0\0\0\x10\0\0\0\x66\x69",
                0,
            ),
            (0, cmd::WRITE_ZEROES, LARGE_BYTES, b"", 0),
            (0, cmd::TRIM, LARGE_BYTES, b"", 0),
            (0, cmd::CACHE, LARGE_BYTES, b"", 0),
            (0, cmd::READ, LARGE_BYTES, b"", 75),
            (0, cmd::READ, u64::MAX, b"", 22),
            (0, cmd::FLUSH, 0, b"", 0),
        ] {
            client.request(flags, command, 9, 0, length, data).await;
            let reply = client.chunk().await;
            assert_eq!(
                (reply.error(), reply.cookie),
                (error, 9),
                "command {command} of {length}"
            );
        }
        client.request(0, cmd::BLOCK_STATUS, 1, 0, LARGE_BYTES, b"").await;
        assert_eq!(be64(&client.chunk().await.payload[8..]), LARGE_BYTES);
    });
}
