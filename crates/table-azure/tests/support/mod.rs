//! Azurite's tables behind a proxy that misbehaves on request.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(
    clippy::disallowed_methods,
    reason = "the proxy and the real client run on tokio's own clock and network"
)]

use firn_env::{Clock, Env, Monotonic, Parts, WallTime};
use firn_rig::buckets::{AZURITE_ACCOUNT, AZURITE_KEY};
use firn_store_cloud::Credentials;
use firn_table::{AzureTableUrl, TableError};
use firn_table_azure::AzureTable;
use futures::future::BoxFuture;
use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// The server under test.
pub fn server() -> String {
    firn_rig::servers::variable("FIRN_TEST_AZURITE_TABLES")
        .expect("make test starts Azurite and names its tables")
}

pub fn address(endpoint: &str, table: &str, create: bool) -> AzureTableUrl {
    AzureTableUrl {
        table: table.into(),
        account: Some(AZURITE_ACCOUNT.into()),
        endpoint: Some(endpoint.into()),
        create,
    }
}

/// A name that no table has.
pub fn name(env: &Env) -> String {
    format!("firntest{:016x}", env.random_u64())
}

/// A new table with a name nobody has.
pub async fn fresh(env: &Env, endpoint: &str) -> AzureTable {
    open(env, &address(endpoint, &name(env), true)).await.unwrap()
}

pub async fn open(env: &Env, url: &AzureTableUrl) -> Result<AzureTable, TableError> {
    AzureTable::open_as(env, url, &Credentials::AzureKey(AZURITE_KEY.into())).await
}

pub fn environment() -> Env {
    firn_env::real(Path::new(".")).unwrap()
}

/// A pause between tries is never longer; a deadline of a request is.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A clock on which pauses between tries take no time, and are remembered; deadlines are real.
struct EagerClock {
    real: Env,
    skipped: Arc<Mutex<Duration>>,
    sleeps: Arc<Mutex<Vec<Duration>>>,
}

impl Clock for EagerClock {
    fn now(&self) -> Monotonic {
        self.real.now().after(*self.skipped.lock().unwrap())
    }

    fn wall(&self) -> WallTime {
        self.real.wall()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if duration > LONGEST_PAUSE {
            return Box::pin(tokio::time::sleep(duration));
        }
        *self.skipped.lock().unwrap() += duration;
        self.sleeps.lock().unwrap().push(duration);
        Box::pin(tokio::task::yield_now())
    }
}

pub fn eager_environment() -> (Env, Arc<Mutex<Vec<Duration>>>) {
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
    let sleeps = Arc::default();
    let env = Env::new(Parts {
        clock: Arc::new(EagerClock {
            real: real.clone(),
            skipped: Arc::default(),
            sleeps: Arc::clone(&sleeps),
        }),
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

#[derive(Default)]
struct Seen {
    script: VecDeque<Trouble>,
    operations: Vec<String>,
    table: String,
}

/// Stands between the client and the server.
pub struct Proxy {
    pub endpoint: String,
    seen: Arc<Mutex<Seen>>,
}

impl Proxy {
    pub async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (upstream, account) = server.trim_start_matches("http://").split_once('/').unwrap();
        let endpoint = format!("http://{}/{account}", listener.local_addr().unwrap());
        let (upstream, seen) = (upstream.to_owned(), Arc::<Mutex<Seen>>::default());
        let shared = seen.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, seen) = (upstream.clone(), shared.clone());
                tokio::spawn(async move { serve(client, &upstream, &seen).await });
            }
        });
        Self { endpoint, seen }
    }

    pub fn script(&self, troubles: impl IntoIterator<Item = Trouble>) {
        self.seen.lock().unwrap().script.extend(troubles);
    }

    pub fn clear(&self) {
        let mut seen = self.seen.lock().unwrap();
        seen.script.clear();
        seen.operations.clear();
    }

    /// The methods of the requests since the last look; that of a group is `BATCH`.
    pub fn operations(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap().operations)
    }

    /// The table that was created by way of it.
    pub fn table(&self) -> String {
        self.seen.lock().unwrap().table.clone()
    }
}

async fn serve(mut client: TcpStream, upstream: &str, seen: &Mutex<Seen>) {
    while let Some(request) = read_message(&mut client).await {
        let head = String::from_utf8_lossy(&request).into_owned();
        let trouble = {
            let mut seen = seen.lock().unwrap();
            let method = match head.contains("/$batch HTTP") {
                true => "BATCH",
                false => head.split(' ').next().unwrap_or_default(),
            };
            seen.operations.push(method.to_owned());
            if let Some((_, name)) = head.split_once("{\"TableName\":\"") {
                seen.table = name.split('"').next().unwrap_or_default().to_owned();
            }
            seen.script.pop_front().unwrap_or(Trouble::None)
        };
        let answer = match trouble {
            Trouble::LoseRequest => return,
            Trouble::Throttle => error_answer("503 Service Unavailable", "ServerBusy"),
            Trouble::InternalError => error_answer("500 Internal Server Error", "InternalError"),
            Trouble::None | Trouble::LoseReply | Trouble::InternalErrorAfterwards => {
                let mut server = TcpStream::connect(upstream).await.expect("the server is there");
                server.write_all(&request).await.expect("the server reads");
                let answer = read_message(&mut server).await.expect("the server answers");
                match trouble {
                    Trouble::LoseReply => return,
                    Trouble::InternalErrorAfterwards => {
                        error_answer("500 Internal Server Error", "InternalError")
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
    let body = format!(
        r#"{{"odata.error":{{"code":"{code}","message":{{"lang":"en-US","value":"said the proxy"}}}}}}"#
    );
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
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
    let mut buffer = vec![0; 64 << 10];
    loop {
        if let Some(end) = message.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&message[..end + 4]).into_owned();
            let is_whole = match header(&head, "content-length") {
                Some(length) => message.len() >= end + 4 + length.parse::<usize>().expect("a length"),
                None if header(&head, "transfer-encoding").is_some() => message.ends_with(b"0\r\n\r\n"),
                None => true,
            };
            if is_whole {
                return Some(message);
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => message.extend_from_slice(&buffer[..read]),
        }
    }
}
