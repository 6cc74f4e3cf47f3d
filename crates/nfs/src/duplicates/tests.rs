use super::*;
use crate::{
    rpc::{Peer, Transport},
    xdr::Decoder,
};
use futures::FutureExt;

const LIMITS: DuplicateLimits = DuplicateLimits {
    count: 3,
    bytes: 10_000,
};

fn env() -> Env {
    firn_env::real(std::path::Path::new("/")).expect("the root directory opens")
}

fn id(transaction: u32) -> RequestId {
    RequestId {
        client: 1,
        transaction,
        checksum: 1,
    }
}

fn reply(text: &'static str) -> KeptReply {
    KeptReply {
        body: Bytes::from_static(text.as_bytes()),
        failed: false,
    }
}

fn execute(cache: &DuplicateCache, transaction: u32, text: &'static str) {
    let Begin::New(execution) = cache.begin(id(transaction)) else {
        panic!("{transaction} was not seen before");
    };
    execution.finish(&reply(text));
}

#[test]
fn a_retransmission_gets_the_first_reply() {
    let cache = DuplicateCache::new(&env(), LIMITS, []);
    execute(&cache, 1, "first");
    assert!(matches!(cache.begin(id(1)), Begin::Done(kept) if kept == reply("first")));
    assert!(
        matches!(cache.begin(id(2)), Begin::New(_)),
        "another call is another call"
    );
}

#[test]
fn retransmissions_of_a_running_call_wait_for_its_reply_and_are_bounded() {
    let cache = DuplicateCache::new(&env(), LIMITS, []);
    let Begin::New(execution) = cache.begin(id(1)) else {
        panic!("not seen before");
    };
    let mut waiting = Vec::new();
    for _ in 0..WAITING_MAX {
        let Begin::Running(receiver) = cache.begin(id(1)) else {
            panic!("running");
        };
        waiting.push(receiver);
    }
    assert!(matches!(cache.begin(id(1)), Begin::Crowded));
    execution.finish(&reply("late"));
    for receiver in waiting {
        assert_eq!(receiver.now_or_never().expect("finished"), Ok(reply("late")));
    }
}

#[test]
fn a_call_that_ended_without_a_reply_is_executed_when_sent_again() {
    let cache = DuplicateCache::new(&env(), LIMITS, []);
    let Begin::New(execution) = cache.begin(id(1)) else {
        panic!("not seen before");
    };
    let Begin::Running(waiting) = cache.begin(id(1)) else {
        panic!("running");
    };
    drop(execution);
    assert!(
        waiting.now_or_never().expect("ended").is_err(),
        "who waited learns that no reply comes"
    );
    assert!(matches!(cache.begin(id(1)), Begin::New(_)));
}

#[test]
fn the_oldest_replies_are_evicted_for_new_ones() {
    let cache = DuplicateCache::new(&env(), LIMITS, []);
    for transaction in 1..=4 {
        execute(&cache, transaction, "done");
    }
    assert_eq!(cache.size().0, LIMITS.count);
    assert!(matches!(cache.begin(id(1)), Begin::New(_)));
    assert!(matches!(cache.begin(id(4)), Begin::Done(_)));
    let small = DuplicateLimits {
        count: 100,
        bytes: 300,
    };
    let cache = DuplicateCache::new(&env(), small, []);
    for transaction in 1..=10 {
        execute(&cache, transaction, "done");
    }
    assert_eq!(cache.size(), (2, 2 * (ENTRY_BYTES + 4)));
}

#[test]
fn requests_completed_before_the_start_are_known() {
    let created = FileHandle {
        file_system: 1,
        inode: 2,
    };
    let completed = CompletedRequest {
        request: id(1),
        created: Some(created),
    };
    let cache = DuplicateCache::new(&env(), LIMITS, [completed]);
    assert!(matches!(cache.begin(id(1)), Begin::Recovered(Some(file)) if file == created));
    assert!(matches!(cache.begin(id(2)), Begin::New(_)));
}

#[test]
fn an_id_depends_on_address_flavour_transaction_and_content_but_not_on_the_port() {
    let request = |address: &str, credential: Credential, transaction, message: &'static [u8]| Request {
        peer: Peer::parse(address, Transport::Tcp),
        transaction,
        version: 3,
        procedure: 12,
        credential,
        arguments: Decoder::new(Bytes::new()),
        message: Bytes::from_static(message),
    };
    let sys = || Credential::sys("client", 1, 1, vec![]);
    let base = request_id(&request("10.0.0.1:700", sys(), 1, b"remove a"), true);
    assert_eq!(
        base,
        request_id(&request("10.0.0.1:701", sys(), 1, b"remove a"), true)
    );
    for other in [
        request("10.0.0.2:700", sys(), 1, b"remove a"),
        request("10.0.0.1:700", Credential::None, 1, b"remove a"),
        request("10.0.0.1:700", sys(), 2, b"remove a"),
        request("10.0.0.1:700", sys(), 1, b"remove b"),
    ] {
        assert_ne!(base, request_id(&other, true));
    }
}
