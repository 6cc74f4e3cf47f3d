//! An older build on the store of a newer one: refused in one line, whichever file is newer, and nothing is changed.

use crate::support::{
    store::{formatted, generation, place, put, read},
    tiny,
};
use bytes::Bytes;
use firn_blockd_node::*;
use firn_blockd_protocol::NodeId;
use firn_env::{Env, OpenMode, sim::Simulation};

/// Every file but the data.
const FILES: [&str; 6] = [
    "superblock",
    "state",
    "index/00000",
    "journal/0",
    "journal/1",
    "data/00000",
];
/// Where the fields of an index region's header end, and what of the region its checksum covers besides.
const REGION_CHECKSUM_AT: usize = 124;
const REGION_BYTES: usize = 128 + 2048 * 20;

async fn bytes_of(env: &Env, path: &str) -> Vec<u8> {
    let file = env.disk().open(path, OpenMode::Read).await.expect(path);
    let length = file.length().await.expect("a length");
    file.read_at(0, length as usize)
        .await
        .expect("its bytes")
        .to_vec()
}

async fn write(env: &Env, path: &str, bytes: &[u8]) {
    let file = env.disk().open(path, OpenMode::ReadWrite).await.expect(path);
    file.write_and_sync(0, vec![Bytes::copy_from_slice(bytes)])
        .await
        .expect("written");
}

/// The file as a build with the next layout would begin it, whole.
fn newer(path: &str, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match path {
        "superblock" | "state" => {
            bytes[8] = 2;
            let end = bytes.len() - 4;
            let checksum = crc32c::crc32c(&bytes[..end]);
            bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        }
        "index/00000" => {
            let region = bytes
                .iter()
                .position(|byte| *byte != 0)
                .expect("a region was written");
            let region = &mut bytes[region..region + REGION_BYTES];
            assert!(region.starts_with(b"FBIX"));
            region[4] = 2;
            let covered = crc32c::crc32c(&region[..REGION_CHECKSUM_AT]);
            let checksum = crc32c::crc32c_append(covered, &region[REGION_CHECKSUM_AT + 4..]);
            region[REGION_CHECKSUM_AT..REGION_CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        }
        _ => {
            // A batch of one record of a kind that nobody knows: magic, payload's length, file number, batch, checksum, payload.
            let number = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
            let mut batch = [
                &b"FBJB"[..],
                &1_u32.to_le_bytes(),
                &number.to_le_bytes(),
                &0_u32.to_le_bytes(),
            ]
            .concat();
            let checksum = crc32c::crc32c_append(crc32c::crc32c(&batch), &[0xfe]);
            batch.extend(checksum.to_le_bytes());
            batch.push(0xfe);
            batch.resize(512, 0);
            bytes[..512].copy_from_slice(&batch);
        }
    }
    bytes
}

#[test]
fn a_store_of_a_newer_build_is_neither_opened_nor_formatted_nor_changed() {
    let simulation = Simulation::new(7);
    let machine = simulation.machine("node");
    let env = machine.env();
    let run = async move {
        let store = formatted(&env).await;
        for sequence in 1..200 {
            store
                .put(place(0), &[put(0, 3, generation(sequence))])
                .await
                .expect("it is put");
            store.flush().await;
        }
        drop(store);
        // The file that is written now: the one with the higher number.
        let mut numbers = Vec::new();
        for path in ["journal/0", "journal/1"] {
            numbers.push(bytes_of(&env, path).await[8..16].to_vec());
        }
        let journal = if numbers[0] > numbers[1] {
            "journal/0"
        } else {
            "journal/1"
        };
        for path in ["superblock", "state", "index/00000", journal] {
            let whole = bytes_of(&env, path).await;
            write(&env, path, &newer(path, &whole)).await;
            let mut before = Vec::new();
            for path in FILES {
                before.push(bytes_of(&env, path).await);
            }
            let said = match Store::open(&env, StoreOptions::default()).await {
                Err(error @ OpenError::Newer { .. }) => error.to_string(),
                Err(error) => panic!("{path}: {error}"),
                Ok(_) => panic!("{path}: it was opened"),
            };
            for part in [
                "newer firn-blockd",
                "Nothing was changed",
                "install that version",
                "do not format",
            ] {
                assert!(said.contains(part) && said.lines().count() == 1, "{path}: {said}");
            }
            let formatted = Store::format_as(&env, tiny(), NodeId([9; 16])).await;
            assert!(
                matches!(formatted, Err(OpenError::Newer { .. } | OpenError::Exists(_))),
                "{path}: {formatted:?}"
            );
            for (file, before) in FILES.iter().zip(before) {
                assert!(bytes_of(&env, file).await == before, "{path}: {file} was changed");
            }
            write(&env, path, &whole).await;
        }
        let store = Store::open(&env, StoreOptions::default())
            .await
            .expect("as it was");
        assert_eq!(read(&store, 0, 3).await.0.generation, generation(199));
    };
    simulation.run(run).expect("the run ends");
}
