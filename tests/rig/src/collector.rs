//! A collector of OpenTelemetry's, as far as traces go: it takes OTLP over HTTP with protobuf, decoded by OpenTelemetry's own definitions, and keeps
//! what it took.

use anyhow::{Context as _, Result, bail, ensure};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value},
};
use prost::Message as _;
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Larger than any batch.
const BODY_BYTES_MAX: usize = 16 << 20;
/// An exporter sends every five seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A span as it came.
#[derive(Clone, Debug)]
pub struct TakenSpan {
    /// Who exports.
    pub service: String,
    /// Its name.
    pub name: String,
    /// The trace it is of.
    pub trace: Vec<u8>,
    /// Its own number.
    pub id: Vec<u8>,
    /// The span it is inside of; empty: none.
    pub parent: Vec<u8>,
    /// What was said of it, as text.
    pub attributes: BTreeMap<String, String>,
}

/// See the module. It listens until the process ends.
#[derive(Debug)]
pub struct Collector {
    /// What exporters are given.
    pub endpoint: String,
    taken: Arc<Mutex<Vec<TakenSpan>>>,
    status: Arc<AtomicU16>,
}

impl Collector {
    /// Listens at a free port.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("http://{}/v1/traces", listener.local_addr()?);
        let (taken, status) = (Arc::default(), Arc::new(AtomicU16::new(200)));
        let (into, answered) = (Arc::clone(&taken), status.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // One that breaks off has exported nothing; whoever waits for it says so.
                let _ = take(stream, &into, answered.load(Relaxed));
            }
        });
        Ok(Self {
            endpoint,
            taken,
            status,
        })
    }

    /// From now on it takes nothing and answers this instead; 200: it takes again.
    pub fn answer(&self, status: u16) {
        self.status.store(status, Relaxed);
    }

    /// All that it took.
    pub fn spans(&self) -> Vec<TakenSpan> {
        self.taken.lock().expect("no panic under this lock").clone()
    }

    /// Waits until what it took satisfies `found`.
    pub fn wait_for<T>(&self, what: &str, found: impl Fn(&[TakenSpan]) -> Option<T>) -> Result<T> {
        let began = Instant::now();
        loop {
            let spans = self.spans();
            if let Some(found) = found(&spans) {
                return Ok(found);
            }
            if began.elapsed() > TIMEOUT {
                bail!("{what} is not among {} spans: {spans:#?}", spans.len());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn take(mut stream: TcpStream, taken: &Mutex<Vec<TakenSpan>>, status: u16) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_ascii_lowercase());
    }
    ensure!(
        head.first()
            .is_some_and(|line| line.starts_with("post /v1/traces ")),
        "{head:?}"
    );
    ensure!(
        head.iter()
            .any(|line| line == "content-type: application/x-protobuf"),
        "{head:?}"
    );
    let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.context("how long it is")?.parse()?;
    ensure!(length <= BODY_BYTES_MAX, "{length} bytes");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if status == 200 {
        let request = ExportTraceServiceRequest::decode(&*body)?;
        taken
            .lock()
            .expect("no panic under this lock")
            .extend(spans(request));
    }
    write!(
        stream,
        "HTTP/1.1 {status} x\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )?;
    Ok(())
}

fn spans(request: ExportTraceServiceRequest) -> Vec<TakenSpan> {
    let mut taken = Vec::new();
    for of_process in request.resource_spans {
        let resource = of_process.resource.map(|resource| texts(resource.attributes));
        let service = resource.and_then(|mut resource| resource.remove("service.name"));
        for span in of_process.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            taken.push(TakenSpan {
                service: service.clone().unwrap_or_default(),
                name: span.name,
                trace: span.trace_id,
                id: span.span_id,
                parent: span.parent_span_id,
                attributes: texts(span.attributes),
            });
        }
    }
    taken
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(other) => format!("{other:?}"),
        None => String::new(),
    };
    attributes
        .into_iter()
        .map(|attribute| (attribute.key, text(attribute.value)))
        .collect()
}
