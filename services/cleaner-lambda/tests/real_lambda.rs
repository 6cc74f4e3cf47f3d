//! The zip as Lambda runs it: called by a queue and by a rule of EventBridge, with every edge switched off.
//!
//! ```text
//! tests/lab/cloud/with localstack dynamodb -- cargo test -p firn-edge -p firn-cleaner-lambda -- --ignored real_
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "it looks from outside: real time, real processes"
)]

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use firn_integration::Office;
use firn_rig::{cloud::Aws, servers::Server};
use http::Method;
use serde_json::{Value, json};
use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// What this machine runs.
const MACHINE: &str = std::env::consts::ARCH;
/// LocalStack's account.
const ACCOUNT: &str = "000000000000";
/// A rule fires once a minute at most, and segments go in the run after the one that retired them.
const TIMEOUT: Duration = Duration::from_secs(420);

/// The zip, packed from the program that was built with this test.
fn zip(place: &Path) -> Result<Vec<u8>> {
    let script = "../../scripts/package-lambda";
    let output = place.join("cleaner.zip");
    let packed = Command::new(script)
        .args(["--target", &format!("{MACHINE}-unknown-linux-gnu")])
        .args(["--binary", env!("CARGO_BIN_EXE_bootstrap")])
        .arg(&output)
        .status()?;
    ensure!(packed.success(), "package-lambda: {packed}");
    Ok(std::fs::read(output)?)
}

/// The product's policy with every placeholder filled.
fn filled(policy: &str, name: &str, settings: &firn_rig::Settings) -> Result<String> {
    let part = |url: &str, prefix: &str| {
        let path = url.strip_prefix(prefix).and_then(|rest| rest.split('?').next());
        path.map(str::to_owned)
            .with_context(|| format!("{url} begins with {prefix}"))
    };
    let place = part(&settings.store, "s3://")?;
    let (bucket, prefix) = place.split_once('/').context("a store with a prefix")?;
    let table = part(&settings.table, "dynamodb://")?;
    let mut policy = policy.to_owned();
    for (placeholder, value) in [
        ("${BUCKET}", bucket),
        ("${PREFIX}", prefix),
        ("${REGION}", "us-east-1"),
        ("${ACCOUNT}", ACCOUNT),
        ("${TABLE}", &table),
        ("${NAME}", name),
    ] {
        ensure!(policy.contains(placeholder), "the policy names no {placeholder}");
        policy = policy.replace(placeholder, value);
    }
    ensure!(!policy.contains("${"), "a placeholder is left: {policy}");
    Ok(policy)
}

struct Cloud {
    aws: Aws,
    name: String,
    queue: String,
    dead: String,
}

fn arn(service: &str, rest: &str) -> String {
    format!("arn:aws:{service}:us-east-1:{ACCOUNT}:{rest}")
}

impl Cloud {
    /// Role, queues and function, as docs/cleaner.md tells an operator to make them.
    async fn make(server: &Server, settings: &firn_rig::Settings, zip: &[u8]) -> Result<Self> {
        let aws = Aws {
            endpoint: server.store_endpoint.clone(),
        };
        let name = format!("firn-cleaner-{}", std::process::id());
        let dead = format!("{name}-dead");
        let mut urls = Vec::new();
        for (queue, attributes) in [
            (&dead, json!({})),
            (
                &name,
                json!({
                    "VisibilityTimeout": "60",
                    "RedrivePolicy": json!({"deadLetterTargetArn": arn("sqs", &dead), "maxReceiveCount": 1}).to_string(),
                }),
            ),
        ] {
            let body = json!({"QueueName": queue, "Attributes": attributes});
            let made = aws.action("sqs", "AmazonSQS.CreateQueue", &body).await?;
            urls.push(made["QueueUrl"].as_str().context("a queue's URL")?.to_owned());
        }
        let trust = include_str!("../iam-trust.json");
        let policy = filled(include_str!("../iam-policy.json"), &name, settings)?;
        let iam = [("Version", "2010-05-08"), ("RoleName", &*name)];
        let role = [
            iam.as_slice(),
            &[("Action", "CreateRole"), ("AssumeRolePolicyDocument", trust)],
        ]
        .concat();
        aws.form("iam", &role).await?;
        let put = [
            ("Action", "PutRolePolicy"),
            ("PolicyName", "cleaner"),
            ("PolicyDocument", &policy),
        ];
        aws.form("iam", &[iam.as_slice(), &put].concat()).await?;
        let function = json!({
            "FunctionName": name,
            "Runtime": "provided.al2023",
            "Architectures": [if MACHINE == "aarch64" { "arm64" } else { "x86_64" }],
            "Role": format!("arn:aws:iam::{ACCOUNT}:role/{name}"),
            "Handler": "bootstrap",
            "Code": {"ZipFile": STANDARD.encode(zip)},
            "Timeout": 60,
            "MemorySize": 256,
            "DeadLetterConfig": {"TargetArn": arn("sqs", &dead)},
            "Environment": {"Variables": {
                "FIRN_CLEANER_STORE": settings.store,
                "FIRN_CLEANER_TABLE": settings.table,
                "FIRN_CLEANER_GRACE_SECONDS": "1",
                "FIRN_CLEANER_RUN_SECONDS": "40",
                // As for segments that are an hour old: nothing is left for later.
                "FIRN_CLEANER_COLD_AFTER_SECONDS": "0",
                "FIRN_CLEANER_COLD_FREE_PER_MILLE": "20",
            }},
        });
        aws.path("lambda", Method::POST, "/2015-03-31/functions", Some(&function))
            .await?;
        let cloud = Self {
            aws,
            name,
            queue: urls.pop().context("two queues")?,
            dead: urls.pop().context("two queues")?,
        };
        cloud
            .until("the function is active", async || {
                let path = format!("/2015-03-31/functions/{}", cloud.name);
                let state = cloud.aws.path("lambda", Method::GET, &path, None).await?;
                Ok(state["Configuration"]["State"] == json!("Active"))
            })
            .await?;
        Ok(cloud)
    }

    async fn listen_to_the_queue(&self) -> Result<()> {
        let mapping = json!({
            "EventSourceArn": arn("sqs", &self.name),
            "FunctionName": self.name,
            "BatchSize": 1,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
        });
        let path = "/2015-03-31/event-source-mappings/";
        self.aws
            .path("lambda", Method::POST, path, Some(&mapping))
            .await
            .map(drop)
    }

    async fn send(&self, body: &str) -> Result<()> {
        let message = json!({"QueueUrl": self.queue, "MessageBody": body});
        self.aws
            .action("sqs", "AmazonSQS.SendMessage", &message)
            .await
            .map(drop)
    }

    async fn dead_letters(&self) -> Result<Vec<String>> {
        let ask = json!({"QueueUrl": self.dead, "MaxNumberOfMessages": 10});
        let answer = self.aws.action("sqs", "AmazonSQS.ReceiveMessage", &ask).await?;
        let messages = answer["Messages"].as_array().cloned().unwrap_or_default();
        Ok(messages
            .iter()
            .filter_map(|message| message["Body"].as_str().map(str::to_owned))
            .collect())
    }

    async fn call(&self, event: &Value) -> Result<Value> {
        let path = format!("/2015-03-31/functions/{}/invocations", self.name);
        self.aws.path("lambda", Method::POST, &path, Some(event)).await
    }

    /// A rule that fires every minute.
    async fn schedule(&self) -> Result<()> {
        let rule = json!({"Name": self.name, "ScheduleExpression": "rate(1 minute)"});
        self.aws.action("events", "AWSEvents.PutRule", &rule).await?;
        let permission = json!({
            "StatementId": "rule",
            "Action": "lambda:InvokeFunction",
            "Principal": "events.amazonaws.com",
            "SourceArn": arn("events", &format!("rule/{}", self.name)),
        });
        let path = format!("/2015-03-31/functions/{}/policy", self.name);
        self.aws
            .path("lambda", Method::POST, &path, Some(&permission))
            .await?;
        let target = json!({"Id": "cleaner", "Arn": arn("lambda", &format!("function:{}", self.name))});
        let targets = json!({"Rule": self.name, "Targets": [target]});
        self.aws
            .action("events", "AWSEvents.PutTargets", &targets)
            .await
            .map(drop)
    }

    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        while !is_so().await? {
            ensure!(
                began.elapsed() < TIMEOUT,
                "waited {} s in vain until {what}",
                TIMEOUT.as_secs()
            );
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        println!("{what}: {:.1} s", began.elapsed().as_secs_f64());
        Ok(())
    }
}

async fn shrinks(
    server: &Server,
    cloud: &Cloud,
    who: &str,
    mut ask: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    let before = server.log_bytes().await?;
    cloud
        .until(&format!("{who} shrinks the log by a third"), async || {
            ask().await?;
            Ok(server.log_bytes().await? < before * 2 / 3)
        })
        .await?;
    println!("{who}: {before} bytes became {}", server.log_bytes().await?);
    Ok(())
}

async fn story() -> Result<()> {
    let began = Instant::now();
    let server = Server::localstack().await?;
    let place = tempfile::tempdir()?;
    let zip = zip(place.path())?;
    let settings = server.settings(place.path());
    let mut office = Office::open(place.path(), settings.clone()).await?;
    let work = json!({"family": office.family}).to_string();

    let cloud = Cloud::make(&server, &settings, &zip).await?;
    office.garbage("first").await?;
    cloud.listen_to_the_queue().await?;
    let mut last: Option<Instant> = None;
    shrinks(&server, &cloud, "the queue", async || {
        // A message a run; they are few, so that none is left when the next part begins.
        if last.is_none_or(|last| last.elapsed() > Duration::from_secs(10)) {
            cloud.send(&work).await?;
            last = Some(Instant::now());
        }
        Ok(())
    })
    .await?;

    // What asks for nothing ends where somebody looks, not in an endless loop.
    let malformed = "{\"volume\": \"main\"}";
    cloud.send(malformed).await?;
    cloud
        .until("a malformed message is a dead letter", async || {
            Ok(cloud.dead_letters().await?.iter().any(|body| body == malformed))
        })
        .await?;
    let refused = cloud.call(&json!({"volume": "main"})).await?;
    ensure!(refused["errorType"] == json!("Firn.Event"), "{refused}");

    office.read_back().await?;
    // Made now, so that its first minute passes while the edge still works.
    cloud.schedule().await?;
    office.garbage("second").await?;
    let records = server.objects("/forward/").await?.len();
    cloud
        .until("the rule has moved what is live", async || {
            Ok(server.objects("/forward/").await?.len() > records)
        })
        .await?;

    // What it retired is deleted by whatever call comes next, and then nothing is left to do.
    let work: Value = serde_json::from_str(&work)?;
    let (mut cleaned, mut idle) = (json!(null), 0);
    while idle < 2 {
        cleaned = cloud.call(&work).await?;
        ensure!(cleaned["report"]["damaged"] == json!([]), "{cleaned}");
        let count = |name: &str| cleaned["report"][name].as_u64();
        let is_idle = count("retired_segments") == Some(0) && count("waiting_segments") == Some(0);
        idle = if is_idle { idle + 1 } else { 0 };
        ensure!(
            began.elapsed() < 2 * TIMEOUT,
            "it never comes to an end: {cleaned}"
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let (stored, live) = (server.log_bytes().await?, office.bytes());
    println!("{stored} bytes are left of which {live} are the files'");
    ensure!(
        stored * 10 < live * 11,
        "{stored} bytes are left for {live} of files: {cleaned}"
    );
    office.read_back().await?;
    println!("{} files, every one as written", office.files());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs LocalStack and DynamoDB Local"]
async fn real_the_zip_cleans_by_queue_and_by_rule_while_every_edge_is_off() {
    story().await.expect("it cleans, and everything is there");
}
