//! Malformed calls get their RPC error, or their connection closed; the server lives on.

use crate::served::{Served, Simple, TIMEOUT, simple, user};
use bytes::{BufMut, Bytes, BytesMut};
use firn_nfs::{
    Export, ServiceConfig,
    rpc::{CallError, CallRefused, Credential, ServerLimits, Target},
    v3,
    xdr::{Encode, Encoder},
};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

async fn connect(served: &Served) -> TcpStream {
    TcpStream::connect(served.service.address()).await.unwrap()
}

fn record(message: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u32(message.len() as u32 | 1 << 31);
    out.put_slice(message);
    out.freeze()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The reply to raw bytes, without its marker; `None` if the connection was closed.
async fn exchange(served: &Served, sent: &[u8]) -> Option<Vec<u32>> {
    let mut stream = connect(served).await;
    stream.write_all(sent).await.unwrap();
    let reply = async {
        let length = stream.read_u32().await.ok()? & !(1 << 31);
        let mut reply = vec![0; length as usize];
        stream.read_exact(&mut reply).await.ok()?;
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        Some(reply.chunks(4).map(word).collect())
    };
    tokio::time::timeout(TIMEOUT, reply)
        .await
        .expect("a reply or the end of the connection")
}

async fn alive(nfs: &Simple) {
    nfs.served.client(user(1)).await.null().await.unwrap();
}

const NULL_CALL: [u32; 10] = [77, 0, 2, v3::PROGRAM, 3, 0, 0, 0, 0, 0];

fn call_with(position: usize, value: u32) -> Bytes {
    let mut call = NULL_CALL;
    call[position] = value;
    record(&words(&call))
}

#[tokio::test]
async fn each_wrong_header_gets_the_reply_that_rfc_5531_gives_it() {
    let nfs = simple().await;
    for (call, expected, what) in [
        (call_with(0, 77), &[77, 1, 0, 0, 0, 0][..], "success"),
        (call_with(2, 3), &[77, 1, 1, 0, 2, 2], "RPC_MISMATCH 2 to 2"),
        (call_with(3, 5), &[77, 1, 0, 0, 0, 1], "PROG_UNAVAIL"),
        (
            call_with(4, 4),
            &[77, 1, 0, 0, 0, 2, 3, 3],
            "PROG_MISMATCH 3 to 3",
        ),
        (call_with(5, 22), &[77, 1, 0, 0, 0, 3], "PROC_UNAVAIL"),
        (call_with(6, 6), &[77, 1, 1, 1, 1], "AUTH_BADCRED for RPCSEC_GSS"),
        (
            call_with(6, 1),
            &[77, 1, 1, 1, 1],
            "AUTH_BADCRED for an empty AUTH_SYS",
        ),
        (
            call_with(7, 401),
            &[77, 1, 1, 1, 1],
            "AUTH_BADCRED for a long credential",
        ),
        (
            call_with(9, 401),
            &[77, 1, 1, 1, 3],
            "AUTH_BADVERF for a long verifier",
        ),
        (
            call_with(5, 1),
            &[77, 1, 0, 0, 0, 4],
            "GARBAGE_ARGS for a GETATTR without a handle",
        ),
    ] {
        assert_eq!(
            exchange(&nfs.served, &call).await.as_deref(),
            Some(expected),
            "{what}"
        );
    }
    alive(&nfs).await;
}

#[tokio::test]
async fn a_credential_with_more_than_sixteen_groups_or_a_long_machine_name_is_refused() {
    let nfs = simple().await;
    let call = |machine_bytes: usize, groups: u32| {
        let mut body = Encoder::new();
        body.u32(1);
        body.opaque(&vec![b'm'; machine_bytes]);
        for word in [0, 0, groups] {
            body.u32(word);
        }
        for group in 0..groups {
            body.u32(group);
        }
        let mut out = Encoder::new();
        for word in [77, 0, 2, v3::PROGRAM, 3, 0, 1] {
            out.u32(word);
        }
        out.opaque(&body.into_bytes());
        out.u32(0);
        out.u32(0);
        record(&out.into_bytes())
    };
    let refused: &[u32] = &[77, 1, 1, 1, 1];
    assert_eq!(
        exchange(&nfs.served, &call(255, 16)).await.as_deref(),
        Some(&[77, 1, 0, 0, 0, 0][..])
    );
    assert_eq!(
        exchange(&nfs.served, &call(0, 17)).await.as_deref(),
        Some(refused)
    );
    assert_eq!(
        exchange(&nfs.served, &call(256, 0)).await.as_deref(),
        Some(refused)
    );
    alive(&nfs).await;
}

#[tokio::test]
async fn what_is_no_call_ends_the_connection() {
    let nfs = simple().await;
    for (sent, what) in [
        (call_with(1, 1), "a reply"),
        (call_with(1, 9), "neither call nor reply"),
        (record(&[]), "an empty record"),
        (record(&[0; 3]), "three bytes"),
        (record(&words(&NULL_CALL[..5])), "half a header"),
        (Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n"), "another protocol"),
        (Bytes::from_static(&[0xff; 4]), "a record of 2 GiB"),
        (Bytes::from(words(&[(1 << 31) | (2 << 20)])), "a record of 2 MiB"),
        (Bytes::from(vec![0; 4 * 2000]), "fragments without end"),
    ] {
        assert_eq!(exchange(&nfs.served, &sent).await, None, "{what}");
    }
    alive(&nfs).await;
}

#[tokio::test]
async fn a_record_in_fragments_of_any_size_is_one_call() {
    let nfs = simple().await;
    let message = words(&NULL_CALL);
    for size in [1, 3, 4, 7, 39] {
        let mut sent = BytesMut::new();
        let chunks: Vec<_> = message.chunks(size).collect();
        for (number, chunk) in chunks.iter().enumerate() {
            let last = if number + 1 == chunks.len() { 1 << 31 } else { 0 };
            sent.put_u32(chunk.len() as u32 | last);
            sent.put_slice(chunk);
        }
        let reply = exchange(&nfs.served, &sent).await;
        assert_eq!(
            reply.as_deref(),
            Some(&[77, 1, 0, 0, 0, 0][..]),
            "fragments of {size}"
        );
    }
}

#[tokio::test]
async fn a_call_that_arrives_byte_by_byte_is_answered() {
    let nfs = simple().await;
    let mut stream = connect(&nfs.served).await;
    stream.set_nodelay(true).unwrap();
    for byte in record(&words(&NULL_CALL)) {
        stream.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(stream.read_u32().await.unwrap(), 24 | 1 << 31);
}

#[tokio::test]
async fn arguments_that_end_early_or_lie_about_lengths_are_garbage() {
    let nfs = simple().await;
    let client = nfs.served.client(user(1)).await;
    let garbage = CallError::Refused(CallRefused::GarbageArguments).to_string();
    struct Raw(Vec<u32>);
    impl Encode for Raw {
        fn encode(&self, out: &mut Encoder) {
            self.0.iter().for_each(|word| out.u32(*word));
        }
    }
    for procedure in 1..22 {
        for arguments in [
            vec![],
            vec![4],
            vec![65],
            vec![u32::MAX],
            vec![u32::MAX, 0, 0, 0],
            vec![0x1000_0000; 8],
        ] {
            let call = client
                .rpc()
                .call(client.nfs_target(), procedure, &Raw(arguments.clone()))
                .await;
            assert_eq!(
                call.unwrap_err().to_string(),
                garbage,
                "procedure {procedure} {arguments:x?}"
            );
        }
    }
    // WRITE whose count is not the length of its data.
    let mut write = vec![44];
    write.extend([0; 11]);
    write.extend([0, 0, 5, 0, 4, 0]);
    let call = client.rpc().call(client.nfs_target(), 7, &Raw(write)).await;
    assert_eq!(call.unwrap_err().to_string(), garbage);
    alive(&nfs).await;
}

#[tokio::test]
async fn unknown_programs_versions_and_procedures_are_told_apart() {
    let nfs = simple().await;
    let refusal = async |program, version, procedure| {
        let target = Target {
            program,
            version,
            credential: Credential::None,
        };
        match nfs.client.rpc().call(&target, procedure, &()).await {
            Err(CallError::Refused(refused)) => refused,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refusal(42, 1, 0).await, CallRefused::ProgramUnavailable);
    assert_eq!(
        refusal(v3::PROGRAM, 2, 0).await,
        CallRefused::ProgramMismatch(3..=3)
    );
    assert_eq!(
        refusal(v3::PROGRAM, 3, 22).await,
        CallRefused::ProcedureUnavailable
    );
    assert_eq!(
        refusal(firn_nfs::mount::PROGRAM, 3, 6).await,
        CallRefused::ProcedureUnavailable
    );
    assert_eq!(
        refusal(firn_nfs::mount::PROGRAM, 1, 0).await,
        CallRefused::ProgramMismatch(3..=3)
    );
}

#[tokio::test]
async fn rubbish_of_every_length_neither_kills_nor_blocks_the_server() {
    let nfs = simple().await;
    let mut state = 1u64;
    for length in 0..200usize {
        let rubbish: Vec<u8> = (0..length * 7)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u8
            })
            .collect();
        let mut stream = connect(&nfs.served).await;
        stream.write_all(&record(&rubbish)).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut reply = Vec::new();
        let read = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut reply)).await;
        // A connection that is reset is ended too.
        let _ = read.expect("the connection ends");
    }
    alive(&nfs).await;
}

#[tokio::test]
async fn a_connection_that_stops_inside_a_record_is_closed() {
    let config = ServiceConfig {
        limits: ServerLimits {
            stall: Duration::from_millis(200),
            ..ServerLimits::default()
        },
        ..ServiceConfig::default()
    };
    let export = Export::new("/", crate::served::memory(1), vec![crate::served::open_rule()]).unwrap();
    let served = Served::with(config, [export]).await;
    let call = record(&words(&NULL_CALL));
    let patient = served.client(user(1)).await;
    for length in [1, 4, 10] {
        assert_eq!(
            exchange(&served, &call[..length]).await,
            None,
            "{length} bytes and no more"
        );
    }
    patient.null().await.unwrap();
}
