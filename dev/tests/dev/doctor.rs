//! `firn doctor --metrics`: the figures of an edge that is a process of its own, in order, without the cloud, and gone.

use crate::{
    branch::Branch,
    machine::{TIMEOUT, program},
};
use std::{
    net::TcpListener,
    process::Command,
    time::{Duration, Instant},
};

/// What it shows somebody who never logged in anywhere, and how it ends.
fn doctor(url: &str) -> (Option<i32>, String) {
    let mut command = Command::new(program("firn"));
    command.args([
        "--output",
        "table",
        "--profile",
        "/nonexistent/profile.json",
        "doctor",
        "--metrics",
        url,
    ]);
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_says_what_is_wrong_with_an_edge_by_its_figures() {
    let Branch {
        _place,
        mut machine,
        mut edge,
        ..
    } = Branch::joined().await;
    edge.stop().await.unwrap();
    // Free now, and nobody else's until it is taken, as far as one can know.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    edge.reconfigure(|settings| settings.nfs = format!("[metrics]\nlisten = \"{address}\""))
        .unwrap();
    edge.start().await.unwrap();
    let url = format!("http://{address}/metrics");
    let (code, shown) = doctor(&url);
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        shown.contains("edge at http://") && shown.contains("none of which"),
        "{shown}"
    );
    // Beside what it examines anyway.
    let shown = machine.shows(&["doctor", "--metrics", &url]);
    assert!(
        shown.contains("key rings") && shown.contains("edge at http://"),
        "{shown}"
    );

    machine.stop();
    edge.kill().await.unwrap();
    edge.start().await.unwrap();
    let began = Instant::now();
    loop {
        let (code, shown) = doctor(&url);
        if code == Some(1) && shown.contains("without the cloud") {
            assert!(shown.contains("firn_detached"), "{shown}");
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "{code:?}: {shown}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    edge.kill().await.unwrap();
    let (code, shown) = doctor(&url);
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("is the program up"), "{shown}");
}
