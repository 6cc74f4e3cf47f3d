//! The zip as Lambda runs it, and a whole session of edges through it: a volume is made, written over NFS, committed, served again after a
//! restart, taken over by another office and cleaned, and none of them has credentials of the table.
//!
//! ```text
//! tests/lab/cloud/with localstack dynamodb -- cargo test -p firn-edge -p firn-cleaner -p firn-anchor-lambda -- --ignored real_
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "it looks from outside: real time, real processes"
)]

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use firn_integration::Tree;
use firn_rig::{Client, EXPORT, Edge, cloud::Aws, program, servers::Server};
use http::Method;
use serde_json::{Value, json};
use std::{
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

/// What this machine runs.
const MACHINE: &str = std::env::consts::ARCH;
/// LocalStack's account.
const ACCOUNT: &str = "000000000000";
const VOLUME: &str = "ten_01010101010101010101010101010101/vol_02020202020202020202020202020202";
/// Of the cleaner: some runs of some seconds each, on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// The zip, packed from the program that was built with this test.
fn zip(place: &Path) -> Result<Vec<u8>> {
    let script = "../../scripts/package-lambda";
    let output = place.join("anchor.zip");
    let packed = Command::new(script)
        .args(["--anchor", "--target", &format!("{MACHINE}-unknown-linux-gnu")])
        .args(["--binary", env!("CARGO_BIN_EXE_firn-anchor-lambda")])
        .arg(&output)
        .status()?;
    ensure!(packed.success(), "package-lambda: {packed}");
    Ok(std::fs::read(output)?)
}

/// A user of AWS with an access key.
struct User {
    arn: String,
    environment: Vec<(String, String)>,
}

impl User {
    async fn make(aws: &Aws, name: &str) -> Result<Self> {
        let iam = [("Version", "2010-05-08"), ("UserName", name)];
        aws.form("iam", &[&iam[..], &[("Action", "CreateUser")]].concat())
            .await?;
        let key = aws
            .form("iam", &[&iam[..], &[("Action", "CreateAccessKey")]].concat())
            .await?;
        let part = |tag: &str| {
            let rest = key.split_once(&format!("<{tag}>")).map(|(_, rest)| rest);
            let value = rest.and_then(|rest| rest.split('<').next());
            value
                .map(str::to_owned)
                .with_context(|| format!("{tag} in {key}"))
        };
        Ok(Self {
            arn: format!("arn:aws:iam::{ACCOUNT}:user/{name}"),
            environment: vec![
                ("AWS_ACCESS_KEY_ID".into(), part("AccessKeyId")?),
                ("AWS_SECRET_ACCESS_KEY".into(), part("SecretAccessKey")?),
                ("AWS_REGION".into(), "us-east-1".into()),
            ],
        })
    }
}

/// The function with its URL, as docs/anchor.md tells an operator to make them; gives what the URL begins with.
async fn make_function(aws: &Aws, name: &str, zip: &[u8], table: &str, grants: &Value) -> Result<String> {
    let function = json!({
        "FunctionName": name,
        "Runtime": "provided.al2023",
        "Architectures": [if MACHINE == "aarch64" { "arm64" } else { "x86_64" }],
        "Role": format!("arn:aws:iam::{ACCOUNT}:role/{name}"),
        "Handler": "bootstrap",
        "Code": {"ZipFile": STANDARD.encode(zip)},
        "Timeout": 20,
        "MemorySize": 256,
        "Environment": {"Variables": {"FIRN_ANCHOR_TABLE": table, "FIRN_ANCHOR_GRANTS": grants.to_string()}},
    });
    aws.path("lambda", Method::POST, "/2015-03-31/functions", Some(&function))
        .await?;
    let began = Instant::now();
    loop {
        let made = aws
            .path(
                "lambda",
                Method::GET,
                &format!("/2015-03-31/functions/{name}"),
                None,
            )
            .await?;
        if made["Configuration"]["State"] == json!("Active") {
            break;
        }
        ensure!(began.elapsed() < TIMEOUT, "it is never active: {made}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let path = format!("/2021-10-31/functions/{name}/url");
    let made = aws
        .path(
            "lambda",
            Method::POST,
            &path,
            Some(&json!({"AuthType": "AWS_IAM"})),
        )
        .await?;
    let url = made["FunctionUrl"].as_str().context("a URL")?;
    let host = url.split_once("://").map(|(_, host)| host);
    let id = host.and_then(|host| host.split('.').next()).context("a host")?;
    Ok(id.to_owned())
}

/// A run of `firn-cleaner`, with the function as its anchor.
fn clean(config: &Path, user: &User) -> Result<Output> {
    let program = program("firn-cleaner", "cargo build -p firn-cleaner-standalone")?;
    let mut command = Command::new(program);
    command.arg("--config").arg(config).arg("run");
    command.envs(user.environment.iter().map(|(name, value)| (name, value)));
    Ok(command.output()?)
}

async fn story() -> Result<()> {
    let server = Server::localstack().await?;
    let place = tempfile::tempdir()?;
    let settings = server.settings(place.path());
    let aws = Aws {
        endpoint: server.store_endpoint.clone(),
    };
    let name = format!("firn-anchor-{}", std::process::id());
    let office = User::make(&aws, &format!("{name}-office")).await?;
    let cleaner = User::make(&aws, &format!("{name}-cleaner")).await?;
    let stranger = User::make(&aws, &format!("{name}-stranger")).await?;
    let grants = json!([
        {"name": office.arn, "volume": VOLUME, "role": "edge"},
        {"name": cleaner.arn, "volume": VOLUME, "role": "cleaner"},
    ]);
    let zip = zip(place.path())?;
    let id = make_function(&aws, &name, &zip, &settings.table, &grants).await?;
    let anchor = format!(
        "lambda://{id}/{VOLUME}?region=us-east-1&endpoint={}",
        aws.endpoint
    );
    let edge_of = |name: &str, user: &User| -> Result<Edge> {
        let mut of_user = settings.clone();
        of_user.table = anchor.clone();
        of_user.name = name.to_owned();
        of_user.environment = user.environment.clone();
        Edge::configure(Edge::binary()?, &place.path().join(name), of_user)
    };

    // Whom the function does not know, and who signs with a wrong secret, is told so, and nothing is made.
    let mut forged = User {
        arn: office.arn.clone(),
        environment: office.environment.clone(),
    };
    forged.environment[1].1 = "another secret".into();
    for (name, user, why) in [
        ("stranger", &stranger, "was granted nothing of"),
        ("forged", &forged, "Forbidden"),
    ] {
        let edge = edge_of(name, user)?;
        let phrase = edge.config.with_file_name("recovery-phrase");
        let arguments = ["--phrase-file", phrase.to_str().context("a path")?];
        let said = edge.refused(1, "format", &arguments).await?;
        ensure!(said.contains(why), "{said}");
    }

    let mut a = edge_of("a", &office)?;
    let family = a.format().await?;
    a.start().await?;
    let mut tree = Tree::default();
    let mut client = Client::mount(a.address, EXPORT).await?;
    for generation in 0..3 {
        let content = format!("generation {generation}");
        tree.write(&mut client, "changed", 20, 300_000, &content).await?;
        tree.write(&mut client, "kept", 3 * (generation + 1), 200_000, "once")
            .await?;
        a.sync().await?;
    }
    drop(client);
    a.stop().await?;
    a.wipe_cache()?;
    a.start().await?;
    tree.is_what_is_there(&mut Client::mount(a.address, EXPORT).await?)
        .await?;
    println!("made, written, committed, served after a restart");

    // A second edge takes the volume; the first is fenced by the function.
    let mut b = edge_of("b", &office)?;
    let identity = a.state.join("identity");
    b.command("join", &["--identity", identity.to_str().context("a path")?])
        .await?;
    let said = b.refused(3, "run", &[]).await?;
    ensure!(said.contains('a'), "{said}");
    b.command("takeover", &["--force"]).await?;
    b.start().await?;
    let mut client_of_a = Client::mount(a.address, EXPORT).await?;
    Tree::default()
        .write(&mut client_of_a, "fenced", 1, 1000, "")
        .await?;
    let (code, said) = a.ended(TIMEOUT).await?;
    ensure!(code == Some(4), "{code:?}: {said}");
    let mut client = Client::mount(b.address, EXPORT).await?;
    tree.is_what_is_there(&mut client).await?;
    tree.write(&mut client, "changed", 20, 300_000, "by b").await?;
    drop(client);
    b.sync().await?;
    b.stop().await?;
    println!("taken over");

    let config = place.path().join("firn-cleaner.toml");
    let text = format!(
        "family = \"{family}\"\nstore = \"{}\"\nanchor = \"{anchor}\"\n[limits]\ngrace_seconds = 0\ncold_after_seconds = 0\n",
        settings.store
    );
    std::fs::write(&config, text)?;
    let refused = clean(&config, &office)?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        !refused.status.success() && said.contains("its role is Edge"),
        "an edge's user cleaned: {said}"
    );
    let (before, began) = (server.log_bytes().await?, Instant::now());
    while server.log_bytes().await? > before * 2 / 3 {
        let run = clean(&config, &cleaner)?;
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        ensure!(run.status.success(), "{said}");
        ensure!(
            began.elapsed() < TIMEOUT,
            "{before} bytes do not become fewer: {said}"
        );
    }
    println!("{before} bytes became {}", server.log_bytes().await?);
    b.wipe_cache()?;
    b.start().await?;
    tree.is_what_is_there(&mut Client::mount(b.address, EXPORT).await?)
        .await?;
    let said = b.command("verify", &[]).await?;
    ensure!(said.starts_with("whole"), "{said}");
    b.stop().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs LocalStack and DynamoDB Local"]
async fn real_a_function_serves_a_whole_session_of_edges() {
    story().await.expect("a session");
}
