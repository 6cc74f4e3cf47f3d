//! Locks of NFS clients (NLM) of two offices that write one volume at the same moment: they exclude each other, wait for each other, see what was written under them, and fall with their office.

use super::{AFTER_A_BREAK, BY_INODE, Offices, SHARED, SOON, part, prepared, signal};
use bytes::Bytes;
use firn_env::Env;
use firn_nfs::{
    nlm::{self, LockCall, LockStatus, StatusReply, UnlockCall, WireLock},
    rpc::{Client as RpcClient, Credential, Target},
    xdr::Decode as _,
};
use firn_rig::{Client, EXPORT, Edge, FileHandle};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

const LOCK: u32 = 2;
const UNLOCK: u32 = 4;
/// What a restarted edge gives its clients to ask for their locks again.
const GRACE: Duration = Duration::from_secs(10);
/// Rounds of each of two programs that raise a counter.
const ROUNDS: u64 = 8;

/// A program on a client machine of one office, that locks one file, all of it, for writing.
struct Program {
    env: Env,
    edge: String,
    name: &'static str,
    handle: Bytes,
    client: Option<RpcClient>,
}

impl Program {
    fn new(env: &Env, edge: &Edge, name: &'static str, file: &FileHandle) -> Self {
        Self {
            env: env.clone(),
            edge: edge.address.to_string(),
            name,
            handle: Bytes::copy_from_slice(&file.data.0),
            client: None,
        }
    }

    fn lock(&self) -> WireLock {
        WireLock {
            caller: self.name.into(),
            handle: self.handle.clone().into(),
            owner: self.name.into(),
            process: 1,
            offset: 0,
            length_bytes: 0,
        }
    }

    async fn call(&mut self, procedure: u32, call: &impl firn_nfs::xdr::Encode) -> Option<LockStatus> {
        if self.client.is_none() {
            self.client = RpcClient::connect(&self.env, &self.edge, SOON).await.ok();
        }
        let target = Target {
            program: nlm::PROGRAM,
            version: nlm::VERSION,
            credential: Credential::sys(self.name, 0, 0, Vec::new()),
        };
        let answered = self.client.as_ref()?.call(&target, procedure, call).await;
        match answered {
            Ok(mut results) => Some(StatusReply::decode(&mut results).unwrap().status),
            Err(_) => {
                self.client = None;
                None
            }
        }
    }

    /// One request; `None` if the edge does not answer.
    async fn asks(&mut self, block: bool, reclaim: bool) -> Option<LockStatus> {
        let call = LockCall {
            cookie: "lock".into(),
            block,
            exclusive: true,
            lock: self.lock(),
            reclaim,
            state: 3,
        };
        self.call(LOCK, &call).await
    }

    /// As a kernel's client asks that does not wait: again as long as it is told to come later.
    async fn tries(&mut self) -> LockStatus {
        let began = Instant::now();
        loop {
            match self.asks(false, false).await {
                Some(LockStatus::GracePeriod) | None => {}
                Some(decided) => return decided,
            }
            assert!(began.elapsed() < AFTER_A_BREAK, "{} is never answered", self.name);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// As one that waits: until it is granted, by asking again instead of by being called.
    async fn waits(&mut self, limit: Duration) -> Duration {
        let began = Instant::now();
        while self.asks(true, false).await != Some(LockStatus::Granted) {
            assert!(began.elapsed() < limit, "{} is never granted", self.name);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        began.elapsed()
    }

    /// After a restart of its edge: until that is answered otherwise than "come later".
    async fn reclaims(&mut self) -> LockStatus {
        let began = Instant::now();
        loop {
            match self.asks(false, true).await {
                Some(LockStatus::GracePeriod) | None => {}
                Some(decided) => return decided,
            }
            assert!(began.elapsed() < SOON, "{} is never answered", self.name);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn unlocks(&mut self) {
        let call = UnlockCall {
            cookie: "unlock".into(),
            lock: self.lock(),
        };
        assert_eq!(self.call(UNLOCK, &call).await, Some(LockStatus::Granted));
    }
}

/// Two offices whose edges look at the root every ten seconds only, a file, and a program of each that locks it.
async fn with_programs(here: &Path, name: &str) -> (Offices, [Client; 2], FileHandle, [Program; 2]) {
    let lines = SHARED.replace("0 s", "10 s");
    let (place, _, mut edges) = prepared(here, [&lines; 2], &BY_INODE).await;
    for edge in &mut edges {
        let text = fs::read_to_string(&edge.config).unwrap();
        let grace = format!("grace_seconds = {}", GRACE.as_secs());
        fs::write(&edge.config, text.replace("grace_seconds = 1", &grace)).unwrap();
        edge.start().await.unwrap();
    }
    let [one, two] = edges;
    let offices = Offices { place, one, two };
    let mut first = Client::mount(offices.one.address, EXPORT).await.unwrap();
    let mut second = Client::mount(offices.two.address, EXPORT).await.unwrap();
    let root = first.root.clone();
    first
        .write_file(&root, name.as_bytes(), 0o644, b"")
        .await
        .unwrap();
    offices.one.sync().await.unwrap();
    super::appears(&mut second, &root, name).await;
    let file = first.lookup(&root, name.as_bytes()).await.unwrap();
    let env = &offices.place.env;
    let programs = [
        Program::new(env, &offices.one, "machine of one", &file),
        Program::new(env, &offices.two, "machine of two", &file),
    ];
    (offices, [first, second], file, programs)
}

async fn text(client: &mut Client, file: &FileHandle) -> String {
    String::from_utf8(client.content(file).await.unwrap()).unwrap()
}

async fn listed(edge: &Edge) -> Value {
    let text = edge.command("locks", &["--output", "json"]).await.unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["locks"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_exclude_the_other_offices_clients_and_go_over_with_what_was_written_under_them() {
    let here = tempfile::tempdir().unwrap();
    let (mut offices, [mut one, mut two], file, [mut of_one, mut of_two]) =
        with_programs(here.path(), "plan").await;
    assert_eq!(of_one.tries().await, LockStatus::Granted);
    let asked = Instant::now();
    assert_eq!(of_two.tries().await, LockStatus::Denied);
    println!("refused {:?} after it was asked for", asked.elapsed());
    // Office two decides by now, and knows whose lock it is; office one knows its own.
    for (edge, protocol, client) in [
        (&offices.two, "office", "one"),
        (&offices.one, "nfs", "127.0.0.1 machine of one"),
    ] {
        let locks = listed(edge).await;
        let lock = &locks[0];
        let shown = (&lock["path"], &lock["protocol"], &lock["client"], &lock["kind"]);
        assert_eq!(
            shown,
            (&"/plan".into(), &protocol.into(), &client.into(), &"write".into()),
            "{locks}"
        );
    }
    assert_eq!(part(&offices.two).await["decides_locks"].as_bool(), Some(true));
    assert_eq!(part(&offices.one).await["decides_locks"].as_bool(), Some(false));

    // It waits; what is written before the unlock is what it reads, though its edge would look at the root in ten seconds only.
    assert_eq!(of_two.asks(true, false).await, Some(LockStatus::Blocked));
    one.write(&file, 0, b"agreed in office one").await.unwrap();
    of_one.unlocks().await;
    let waited = of_two.waits(SOON).await;
    assert_eq!(text(&mut two, &file).await, "agreed in office one");
    println!("granted {waited:?} after the unlock");
    assert_eq!(of_one.tries().await, LockStatus::Denied);
    two.write(&file, 0, b"and in two......").await.unwrap();
    of_two.unlocks().await;
    of_one.waits(SOON).await;
    assert_eq!(text(&mut one, &file).await, "and in two...... one");
    of_one.unlocks().await;

    // A counter that programs of both offices raise at the same moment.
    one.write(&file, 0, format!("{:020}", 0).as_bytes())
        .await
        .unwrap();
    offices.one.sync().await.unwrap();
    let began = Instant::now();
    let raise = async |client: &mut Client, program: &mut Program| {
        for _ in 0..ROUNDS {
            program.waits(AFTER_A_BREAK).await;
            let number: u64 = text(client, &file).await.parse().unwrap();
            client
                .write(&file, 0, format!("{:020}", number + 1).as_bytes())
                .await
                .unwrap();
            program.unlocks().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::join!(raise(&mut one, &mut of_one), raise(&mut two, &mut of_two));
    let took = began.elapsed();
    of_two.waits(SOON).await;
    assert_eq!(text(&mut two, &file).await, format!("{:020}", 2 * ROUNDS));
    of_two.unlocks().await;
    let terms = part(&offices.one).await["lock_terms"].as_u64().unwrap();
    println!(
        "{} rounds of a counter: {took:?}; office one decided {terms} times",
        2 * ROUNDS
    );
    assert!(terms > 2, "both were at it");

    // An administrator breaks what the other office's client has; that office hears it.
    assert_eq!(of_one.tries().await, LockStatus::Granted);
    assert_eq!(of_two.tries().await, LockStatus::Denied);
    let arguments = ["/plan", "--break", "--client", "one", "--yes"];
    let said = offices.two.command("locks", &arguments).await.unwrap();
    assert!(said.contains("broken: the locks of one in /plan"), "{said}");
    assert_eq!(of_two.tries().await, LockStatus::Granted);
    let began = Instant::now();
    while part(&offices.one).await["locks_lost"].as_u64() != Some(1) {
        assert!(began.elapsed() < SOON, "{}", part(&offices.one).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(of_one.tries().await, LockStatus::Denied);
    of_two.unlocks().await;
    offices.one.stop().await.unwrap();
    offices.two.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_survive_a_restart_in_place_and_fall_with_an_office_that_is_gone() {
    let here = tempfile::tempdir().unwrap();
    let (mut offices, [_, mut two], file, [mut of_one, mut of_two]) =
        with_programs(here.path(), "plan").await;
    // Killed and started again at once: its client has its lock again, and nobody else had it.
    assert_eq!(of_one.tries().await, LockStatus::Granted);
    offices.one.kill().await.unwrap();
    offices.one.start().await.unwrap();
    assert_eq!(of_one.reclaims().await, LockStatus::Granted);
    assert_eq!(of_two.tries().await, LockStatus::Denied, "after the grace period");

    // The same once the other office decides: what the record has is what its client has.
    offices.one.kill().await.unwrap();
    offices.one.start().await.unwrap();
    assert_eq!(of_one.reclaims().await, LockStatus::Granted);
    assert_eq!(of_two.tries().await, LockStatus::Denied);

    // Killed for good: the lock is had a minute later, and what is written under it stays.
    offices.one.kill().await.unwrap();
    let waited = of_two.waits(AFTER_A_BREAK).await;
    println!("granted {waited:?} after the kill");
    assert!(waited > Duration::from_secs(50), "{waited:?}");
    two.write(&file, 0, b"goes on in two").await.unwrap();
    offices.one.start().await.unwrap();
    let refused = of_one.reclaims().await;
    assert_eq!(refused, LockStatus::Denied, "another has it");
    assert_eq!(of_one.tries().await, LockStatus::Denied);
    of_two.unlocks().await;
    of_one.waits(SOON).await;
    let mut one = Client::mount(offices.one.address, EXPORT).await.unwrap();
    assert_eq!(text(&mut one, &file).await, "goes on in two");

    // A process that stands still, as on a machine that was suspended: it hears that its client's lock is lost.
    let process = offices.one.process_id().unwrap();
    signal(process, "STOP");
    let waited = of_two.waits(AFTER_A_BREAK).await;
    println!("granted {waited:?} after the office stood still");
    signal(process, "CONT");
    let began = Instant::now();
    let lost = || async {
        let status = offices.one.status().await.ok()?;
        status["by_inode"]["locks_lost"].as_u64()
    };
    while lost().await != Some(1) {
        assert!(began.elapsed() < AFTER_A_BREAK, "it does not hear it");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("heard {:?} after it goes on", began.elapsed());
    assert_eq!(of_one.tries().await, LockStatus::Denied);
    of_two.unlocks().await;
    of_one.waits(SOON).await;
    of_one.unlocks().await;
    offices.one.stop().await.unwrap();
    offices.two.stop().await.unwrap();
}
