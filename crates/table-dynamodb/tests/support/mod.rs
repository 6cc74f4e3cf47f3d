//! DynamoDB Local behind a proxy that misbehaves on request.
#![allow(
    clippy::disallowed_methods,
    reason = "the proxy and the real client run on tokio's own clock and network"
)]

use firn_env::{Clock, Env, Monotonic, Parts, WallTime};
use firn_table::{DynamoDbUrl, TableError};
use firn_table_dynamodb::{AwsCredentials, DynamoDbTable};
use futures::future::BoxFuture;
use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// The server under test.
pub fn server() -> String {
    std::env::var("FIRN_TEST_DYNAMODB")
        .expect("FIRN_TEST_DYNAMODB names DynamoDB Local, as `make test` starts it")
}

/// Any credentials will do.
pub fn credentials() -> AwsCredentials {
    AwsCredentials {
        access_key_id: "firntest".into(),
        secret_access_key: "firntest".into(),
        session_token: None,
    }
}

pub fn address(endpoint: &str, table: &str, create: bool) -> DynamoDbUrl {
    DynamoDbUrl {
        table: table.into(),
        region: None,
        endpoint: Some(endpoint.into()),
        create,
    }
}

/// A new table with a name nobody has.
pub async fn fresh(env: &Env, endpoint: &str) -> DynamoDbTable {
    let name = format!("firn-test-{:016x}", env.random_u64());
    open(env, &address(endpoint, &name, true)).await.unwrap()
}

pub async fn open(env: &Env, url: &DynamoDbUrl) -> Result<DynamoDbTable, TableError> {
    DynamoDbTable::open_as(env, url, Some(credentials())).await
}

pub fn environment() -> Env {
    firn_env::real(Path::new(".")).unwrap()
}

/// A clock on which sleeping takes no time; it remembers how long each sleep was.
#[derive(Default)]
pub struct EagerClock {
    now: Arc<Mutex<Duration>>,
    pub sleeps: Arc<Mutex<Vec<Duration>>>,
}

impl Clock for EagerClock {
    fn now(&self) -> Monotonic {
        Monotonic::default().after(*self.now.lock().unwrap())
    }

    fn wall(&self) -> WallTime {
        WallTime(0)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        *self.now.lock().unwrap() += duration;
        self.sleeps.lock().unwrap().push(duration);
        Box::pin(tokio::task::yield_now())
    }
}

pub fn eager_environment() -> (Env, Arc<Mutex<Vec<Duration>>>) {
    let clock = EagerClock::default();
    let sleeps = clock.sleeps.clone();
    struct Passed(Env);
    impl firn_env::Random for Passed {
        fn fill(&self, bytes: &mut [u8]) {
            for byte in bytes {
                *byte = self.0.random_bytes::<1>()[0];
            }
        }
    }
    impl firn_env::Tasks for Passed {
        fn spawn(&self, _: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn Fn() + Send + Sync> {
            let handle = tokio::spawn(future).abort_handle();
            Box::new(move || handle.abort())
        }

        fn spawn_compute(&self, work: Box<dyn FnOnce() + Send>) {
            tokio::task::spawn_blocking(work);
        }
    }
    let real = environment();
    let env = Env::new(Parts {
        clock: Arc::new(clock),
        random: Arc::new(Passed(real.clone())),
        tasks: Arc::new(Passed(real.clone())),
        disk: real.disk().clone(),
        network: real.network().clone(),
        faults: real.faults().clone(),
    });
    (env, sleeps)
}

/// What the proxy does with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Passes it on.
    None,
    /// Passes it on, and drops the answer with the connection.
    LoseReply,
    /// Drops it with the connection.
    LoseRequest,
    /// Answers itself that it is throttled.
    Throttle,
    /// Answers itself with an error of the service.
    InternalError,
    /// Passes it on, and answers with an error of the service.
    InternalErrorAfterwards,
}

/// Stands between the client and the server.
pub struct Proxy {
    pub endpoint: String,
    script: Arc<Mutex<VecDeque<Trouble>>>,
    /// The operations that were asked for, such as `PutItem`.
    operations: Arc<Mutex<Vec<String>>>,
    chance: Arc<Chance>,
}

/// Loses one message of so many, by a fixed sequence.
#[derive(Default)]
struct Chance {
    one_in: AtomicU64,
    drawn: AtomicU64,
    lost: AtomicU64,
}

impl Chance {
    fn draw(&self) -> Trouble {
        let one_in = self.one_in.load(Ordering::Relaxed);
        if one_in == 0 {
            return Trouble::None;
        }
        let drawn = self
            .drawn
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> 33;
        if !drawn.is_multiple_of(one_in) {
            return Trouble::None;
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        match drawn / one_in % 3 {
            0 => Trouble::LoseRequest,
            _ => Trouble::LoseReply,
        }
    }
}

impl Proxy {
    pub async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let script = Arc::new(Mutex::new(VecDeque::new()));
        let operations = Arc::new(Mutex::new(Vec::new()));
        let upstream = server
            .trim_start_matches("http://")
            .trim_end_matches('/')
            .to_owned();
        let chance = Arc::new(Chance::default());
        let (scripted, seen, drawn) = (script.clone(), operations.clone(), chance.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, scripted, seen) = (upstream.clone(), scripted.clone(), seen.clone());
                let drawn = drawn.clone();
                tokio::spawn(async move { serve(client, &upstream, &scripted, &seen, &drawn).await });
            }
        });
        Self {
            endpoint,
            script,
            operations,
            chance,
        }
    }

    /// Loses one message of `one_in` from now on; 0: none.
    pub fn lose_at_random(&self, one_in: u64) {
        self.chance.one_in.store(one_in, Ordering::Relaxed);
    }

    /// Messages lost by chance so far.
    pub fn lost(&self) -> u64 {
        self.chance.lost.load(Ordering::Relaxed)
    }

    pub fn script(&self, troubles: impl IntoIterator<Item = Trouble>) {
        self.script.lock().unwrap().extend(troubles);
    }

    pub fn clear(&self) {
        self.script.lock().unwrap().clear();
        self.operations.lock().unwrap().clear();
    }

    pub fn operations(&self) -> Vec<String> {
        std::mem::take(&mut *self.operations.lock().unwrap())
    }
}

async fn serve(
    mut client: TcpStream,
    upstream: &str,
    script: &Mutex<VecDeque<Trouble>>,
    operations: &Mutex<Vec<String>>,
    chance: &Chance,
) {
    while let Some(request) = read_message(&mut client).await {
        let head = String::from_utf8_lossy(&request).into_owned();
        if let Some(target) = header(&head, "x-amz-target") {
            let operation = target.rsplit('.').next().unwrap_or_default();
            operations.lock().unwrap().push(operation.to_owned());
        }
        let scripted = script.lock().unwrap().pop_front();
        let trouble = scripted.unwrap_or_else(|| chance.draw());
        let answer = match trouble {
            Trouble::LoseRequest => return,
            Trouble::Throttle => error_answer("400 Bad Request", "ThrottlingException"),
            Trouble::InternalError => error_answer("500 Internal Server Error", "InternalServerError"),
            Trouble::None | Trouble::LoseReply | Trouble::InternalErrorAfterwards => {
                let mut server = TcpStream::connect(upstream).await.expect("the server is there");
                server.write_all(&request).await.expect("the server reads");
                let answer = read_message(&mut server).await.expect("the server answers");
                match trouble {
                    Trouble::LoseReply => return,
                    Trouble::InternalErrorAfterwards => {
                        error_answer("500 Internal Server Error", "InternalServerError")
                    }
                    _ => answer,
                }
            }
        };
        if client.write_all(&answer).await.is_err() {
            return;
        }
    }
}

fn error_answer(status: &str, code: &str) -> Vec<u8> {
    let body =
        format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"said the proxy"}}"#);
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(':'))
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}

/// One HTTP/1.1 message with its body; `None` when the connection ends.
async fn read_message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    let mut buffer = [0; 64 << 10];
    loop {
        if let Some(end) = message.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&message[..end + 4]).into_owned();
            let complete = match header(&head, "content-length") {
                Some(length) => message.len() >= end + 4 + length.parse::<usize>().expect("a length"),
                None if header(&head, "transfer-encoding").is_some() => message.ends_with(b"0\r\n\r\n"),
                None => true,
            };
            if complete {
                return Some(message);
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => message.extend_from_slice(&buffer[..read]),
        }
    }
}
