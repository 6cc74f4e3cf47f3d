//! The access log of what comes over SMB: by whom and from where, though it reaches the edge through the kernel.

use super::{ALICE, shared};
use crate::machine::Cloud;
use serde_json::Value;
use std::fs;

#[test]
fn the_access_log_knows_smb_users_by_name_and_their_address() {
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    edge.edge
        .edit("squash = \"none\"", "squash = \"none\"\naccess_log = true");
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    fs::write(cloud.path().join("upload"), b"text").expect("written");
    edge.run(
        ALICE,
        "files",
        "mkdir team; put upload team\\plan; get team\\plan back; rename team\\plan team\\old; del team\\old",
    );
    edge.edge.stop();
    let text = fs::read_to_string(edge.edge.state.join("access-log/access.log")).expect("the log");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let of_alice = |event: &str, path: &str| {
        lines.iter().any(|line| {
            line["event"] == event
                && line["path"] == path
                && line["result"] == "ok"
                && line["protocol"] == "smb"
                && line["user"] == "alice"
                && line["uid"] == 1001
                && line["client"] == "127.0.0.1"
                && line["export"] == "/export"
        })
    };
    for (event, path) in [
        ("mkdir", "/team"),
        ("create", "/team/plan"),
        ("write", "/team/plan"),
        ("open", "/team/plan"),
        ("rename", "/team/plan"),
        ("remove", "/team/old"),
    ] {
        assert!(of_alice(event, path), "{event} {path}: {text}");
    }
}
