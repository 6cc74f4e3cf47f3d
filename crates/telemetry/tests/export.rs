//! Spans at a collector: those that arrive, and those that do not.

use firn_rig::Collector;
use firn_telemetry::Traces;
use tracing_subscriber::layer::SubscriberExt as _;

fn traced(collector: &Collector, sample_percent: f64, work: impl FnOnce()) {
    let traces = Traces::start("firn-test", "1.2.3", &collector.endpoint, sample_percent).unwrap();
    let subscriber = tracing_subscriber::registry().with(traces.layer());
    tracing::subscriber::with_default(subscriber, work);
    traces.end();
}

fn call(procedure: &str) {
    let call = tracing::debug_span!(target: "firn_nfs", "call", procedure, xid = "0000002a").entered();
    let store = tracing::debug_span!(target: "firn_store", "store", request = "get_range").entered();
    tracing::info!("nobody's");
    drop(store);
    drop(call);
}

#[test]
fn a_call_and_what_is_asked_for_it_arrive_as_one_trace() {
    let collector = Collector::start().unwrap();
    traced(&collector, 100.0, || {
        call("read");
        // What belongs to a library is not ours to export.
        drop(tracing::info_span!(target: "hyper::client", "connection").entered());
    });
    let spans = collector.spans();
    let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["store", "call"], "as they end: {spans:?}");
    let [store, call] = &spans[..] else {
        unreachable!("there are two")
    };
    assert_eq!((&store.parent, &store.trace), (&call.id, &call.trace));
    assert!(call.parent.is_empty());
    assert_eq!(call.attributes["xid"], "0000002a");
    assert_eq!(call.attributes["procedure"], "read");
    assert_eq!(store.attributes["request"], "get_range");
    assert!(spans.iter().all(|span| span.service == "firn-test"));
}

#[test]
fn a_part_of_traces_is_a_part_and_none_is_none() {
    let collector = Collector::start().unwrap();
    traced(&collector, 0.0, || call("write"));
    assert_eq!(collector.spans().len(), 0);
    traced(&collector, 50.0, || (0..1000).for_each(|_| call("write")));
    let spans = collector.spans();
    // Whole ones: a call without what is inside it would be no trace.
    let calls = spans.iter().filter(|span| span.name == "call").count();
    assert_eq!(spans.len(), 2 * calls);
    // Sixteen deviations from the middle.
    assert!((250..750).contains(&calls), "{calls} of 1000");
}

#[test]
fn a_collector_that_is_away_or_refuses_costs_the_traces_and_nothing_else() {
    let collector = Collector::start().unwrap();
    collector.answer(400);
    traced(&collector, 100.0, || call("lost"));
    assert_eq!(collector.spans().len(), 0);
    collector.answer(200);
    traced(&collector, 100.0, || call("kept"));
    assert_eq!(collector.spans().len(), 2);
    let traces = Traces::start("firn-test", "1.2.3", "http://127.0.0.1:1/v1/traces", 100.0).unwrap();
    let subscriber = tracing_subscriber::registry().with(traces.layer());
    tracing::subscriber::with_default(subscriber, || call("nowhere"));
    traces.end();
}
