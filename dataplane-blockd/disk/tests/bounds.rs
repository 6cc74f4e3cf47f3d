//! Bounds of what is answered and not durable: in bytes and, where order is all that was asked for, in time.

use bytes::Bytes;
use firn_blockd_disk::{
    Effect, FlushPolicy, Incarnation, LogConfig, LogEngine, MemoryNodes, Regions, RequestId, Store,
    StripedConfig, StripedEngine, WritePolicy, log, striped,
};
use futures::FutureExt;

const ORDERED: FlushPolicy = FlushPolicy::Ordered { lag_ms_max: 100 };

fn striped(flush: FlushPolicy, dirty_bytes_max: u64) -> StripedEngine {
    let config = StripedConfig {
        blocks: 64,
        write: WritePolicy::Memory,
        flush,
        dirty_bytes_max,
        regions: Regions::default(),
    };
    let nodes = MemoryNodes::new(1).attach(Incarnation(1), [0; 32]);
    let attached = striped::attach(&nodes, Incarnation(1), config).now_or_never();
    attached.expect("memory is never waited for").unwrap().engine
}

fn a_log(flush: FlushPolicy, blocks: u64, slack: u64) -> LogEngine {
    let config = LogConfig {
        flush,
        dirty_bytes_max: 1 << 20,
        checkpoint_entries: 1000,
    };
    let nodes = MemoryNodes::new(1);
    let attach = |incarnation| nodes.attach(Incarnation(incarnation), [0; 32]);
    log::format(&attach(1), Incarnation(1), blocks, blocks + slack, 9)
        .now_or_never()
        .expect("memory is never waited for")
        .unwrap();
    log::recover(&attach(2), Incarnation(2), config)
        .now_or_never()
        .expect("memory is never waited for")
        .unwrap()
}

fn split(effects: Vec<Effect>) -> (Vec<RequestId>, Vec<Store>) {
    let (mut answers, mut stores) = (Vec::new(), Vec::new());
    for effect in effects {
        match effect {
            Effect::Answer(id) => answers.push(id),
            Effect::Store(store) => stores.push(store),
        }
    }
    (answers, stores)
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 512])
}

#[test]
fn writers_are_held_back_at_the_bound_and_let_go_in_order() {
    let mut disk = striped(FlushPolicy::Durable, 1024);
    let mut stores = Vec::new();
    for number in 1..=4 {
        let effects = disk.write(0, RequestId(number), number..number + 1, block(1), false);
        let (answers, more) = split(effects);
        stores.extend(more);
        let expected: &[RequestId] = if number <= 2 { &[RequestId(number)] } else { &[] };
        assert_eq!(answers, expected, "1024 bytes fit");
    }
    // The mark of their region first, then the writes.
    let mut answered = Vec::new();
    while let Some(store) = stores.pop() {
        let (answers, more) = split(disk.stored(0, store.ticket, store.replica));
        stores.extend(more);
        answered.extend(answers);
    }
    assert_eq!(answered, [RequestId(3), RequestId(4)]);
    assert_eq!(disk.dirty_bytes(), 0);
}

#[test]
fn an_ordered_flush_is_answered_at_once_until_the_oldest_write_is_too_old() {
    let mut disk = striped(ORDERED, 1 << 20);
    let (answers, stores) = split(disk.write(0, RequestId(1), 0..1, block(1), false));
    assert_eq!(answers, [RequestId(1)]);
    assert_eq!(split(disk.flush(50, RequestId(2))).0, [RequestId(2)]);
    assert_eq!(split(disk.flush(101, RequestId(3))).0, []);
    assert_eq!(split(disk.zero(102, RequestId(4), 1..2, false)).0, []);
    // Once the first write is durable, the oldest is the one of 102 ms.
    let (answers, writes) = split(disk.stored(103, stores[0].ticket, 0));
    assert_eq!(
        (answers, writes.len()),
        (vec![], 1),
        "the mark is durable, the write goes out"
    );
    let (answers, _) = split(disk.stored(104, writes[0].ticket, 0));
    assert_eq!(answers, [RequestId(3), RequestId(4)]);
}

#[test]
fn a_log_bounds_the_lag_as_well() {
    let mut disk = a_log(ORDERED, 8, 8);
    let (answers, stores) = split(disk.write(0, RequestId(1), 0..1, block(1), false));
    assert_eq!(answers, [RequestId(1)]);
    assert_eq!(split(disk.flush(101, RequestId(2))).0, []);
    assert_eq!(split(disk.stored(102, stores[0].ticket, 0)).0, [RequestId(2)]);
}

#[test]
fn a_full_disk_in_a_log_with_the_least_slack_can_be_overwritten_for_ever() {
    let mut disk = a_log(FlushPolicy::Durable, 8, log::SLACK_BLOCKS_MIN);
    let mut stores = Vec::new();
    for round in 0..500_u64 {
        let id = RequestId(round + 1);
        let at = round % 8;
        let (mut answers, more) = split(disk.write(0, id, at..at + 1, block(round as u8), true));
        stores.extend(more);
        while let Some(store) = stores.pop() {
            let (now, more) = split(disk.stored(0, store.ticket, store.replica));
            answers.extend(now);
            stores.extend(more);
        }
        assert_eq!(answers, [id], "round {round}");
    }
}
