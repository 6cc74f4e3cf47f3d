//! `firn-edge check` against real servers: what is fit is said with figures, what is not in one line that says what to do.
//!
//! ```text
//! tests/lab/cloud/with versitygw dynamodb -- cargo test -p firn-edge -p firn-integration --test real_check -- --ignored real_
//! ```

use firn_rig::{Edge, Settings, WrongClock, buckets::create_foreign_table, servers::Server};
use std::path::Path;

/// An edge that was never set up, and what its servers are called.
struct Office {
    _place: tempfile::TempDir,
    edge: Edge,
    server: Server,
}

impl Office {
    async fn new() -> Self {
        // It checks signatures, which LocalStack does not.
        let server = Server::versitygw().await.expect("versitygw");
        let place = tempfile::tempdir().expect("a temporary directory");
        let binary = Edge::binary().expect("the edge's program");
        let edge = Edge::configure(binary, &place.path().join("a"), server.settings(place.path()))
            .expect("a configuration");
        Self {
            _place: place,
            edge,
            server,
        }
    }

    fn settings(&self) -> Settings {
        self.server.settings(Path::new("/nowhere"))
    }

    /// What a check says after `change`, which it must call unfit.
    async fn unfit(&mut self, change: impl FnOnce(&mut Settings)) -> String {
        let before = self.settings();
        self.edge.reconfigure(change).expect("a configuration");
        let said = self.edge.refused(1, "check", &[]).await.expect("a verdict");
        self.edge
            .reconfigure(|settings| *settings = before)
            .expect("a configuration");
        said
    }
}

/// That one line begins with the verdict and the subject, and holds all of this.
fn says(said: &str, verdict: &str, subject: &str, parts: &[&str]) {
    let holds = |line: &&str| {
        let rest = line.strip_prefix(verdict).map(str::trim_start);
        rest.is_some_and(|rest| rest.starts_with(subject)) && parts.iter().all(|part| line.contains(part))
    };
    assert!(
        said.lines().any(|line| holds(&line)),
        "{verdict} {subject} {parts:?}: {said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs versitygw and DynamoDB Local"]
async fn real_a_cloud_is_judged_before_the_first_client() {
    let mut office = Office::new().await;
    let settings = office.settings();

    // Whatever the machine is like, the cloud is fit.
    let json = office.edge.command("check", &["--json"]).await;
    let said = match json {
        Ok(said) => said,
        Err(_) => office
            .edge
            .refused(7, "check", &["--json"])
            .await
            .expect("a machine that may hurt, and a cloud that is fit"),
    };
    for part in [
        "\"up_bytes_per_s\"",
        "\"get_us\"",
        "\"connect_us\"",
        "\"ahead_ms\"",
        "makes the table (create=true)",
    ] {
        assert!(said.contains(part), "no {part}: {said}");
    }

    let said = office.unfit(|settings| secret(settings, "wrong")).await;
    says(
        &said,
        "cannot work",
        "bucket",
        &["SignatureDoesNotMatch", "check the secret key"],
    );

    let said = office.unfit(|settings| key(settings, "AKIDUNKNOWN")).await;
    says(&said, "cannot work", "bucket", &["does not know this access key"]);

    let missing = settings.store.replace("s3://firn-", "s3://none-");
    let said = office.unfit(|settings| settings.store = missing).await;
    says(
        &said,
        "cannot work",
        "bucket",
        &["NoSuchBucket", "create the bucket"],
    );

    let elsewhere = settings.store.replace("region=us-east-1", "region=eu-west-1");
    let said = office.unfit(|settings| settings.store = elsewhere).await;
    says(&said, "cannot work", "bucket", &["region"]);

    let without = settings.table.replace("&create=true", "");
    let said = office.unfit(|settings| settings.table = without).await;
    says(&said, "cannot work", "anchor", &["has no table", "create it"]);

    let foreign = format!("foreign-{}", std::process::id());
    create_foreign_table(&office.server.table_endpoint, &foreign)
        .await
        .expect("a table of somebody else's");
    let (_, place) = settings.table.split_once('?').expect("parameters");
    let theirs = format!("dynamodb://{foreign}?{place}");
    let said = office.unfit(|settings| settings.table = theirs).await;
    says(
        &said,
        "cannot work",
        "anchor",
        &["has the key", "it belongs to something else"],
    );

    // Nobody listens there any more.
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("its address")
    };
    let away = settings
        .store
        .replace(&office.server.store_endpoint, &format!("http://{closed}"));
    let said = office.unfit(|settings| settings.store = away).await;
    says(&said, "cannot work", "network", &["refused", "check route"]);
    says(&said, "cannot work", "bucket", &["check its address"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs versitygw and DynamoDB Local"]
async fn real_a_clock_that_is_an_hour_off_is_told() {
    let mut office = Office::new().await;
    let (_, address) = office
        .server
        .store_endpoint
        .split_once("://")
        .expect("an address");
    let proxy = WrongClock::to(address).await.expect("a proxy");
    let off = office.settings().store.replace(
        &office.server.store_endpoint,
        &format!("http://{}", proxy.address()),
    );
    let said = office.unfit(|settings| settings.store = off).await;
    says(
        &said,
        "cannot work",
        "clock",
        &[
            "this machine is",
            "clouds refuse requests",
            "To do: set this machine's clock",
        ],
    );
}

fn secret(settings: &mut Settings, value: &str) {
    variable(settings, "AWS_SECRET_ACCESS_KEY", value);
}

fn key(settings: &mut Settings, value: &str) {
    variable(settings, "AWS_ACCESS_KEY_ID", value);
}

fn variable(settings: &mut Settings, name: &str, value: &str) {
    for (known, held) in &mut settings.environment {
        if known == name {
            value.clone_into(held);
        }
    }
}
