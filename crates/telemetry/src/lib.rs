//! Export of spans to a collector: OTLP over HTTP with protobuf, by OpenTelemetry's own crates. Off unless an address is configured.
//!
//! ```text
//! span ends ──▶ queue of the SDK (bounded; what finds no room is dropped) ──▶ its thread: a batch every five seconds ──POST──▶ collector
//! ```
//!
//! Nobody waits for a collector: one that is away, slow or hostile costs the spans and a line in the log. A trace is kept or dropped as a whole,
//! by its number. What is exported are our own spans, with warnings and errors that were logged inside them; names of files are in none.

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracerProvider},
};
use reqwest::{Client, Url, redirect::Policy};
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer, filter::filter_fn, layer::SubscriberExt as _, registry, registry::LookupSpan,
    util::SubscriberInitExt as _,
};

/// For one batch, all of it.
const LIMIT: Duration = Duration::from_secs(10);
/// A collector answers with some bytes; what is longer is not read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// An exporter that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// Where to is not understood.
    #[error("{0:?} is no address of a collector, such as http://127.0.0.1:4318/v1/traces")]
    Address(String),
    /// What part is not one.
    #[error("a part of traces is between 0 and 100 percent, not {0}")]
    Part(f64),
    /// The libraries' own refusal.
    #[error("the exporter of traces: {0}")]
    Exporter(String),
}

/// Whether traces could be exported so.
///
/// # Errors
/// [`TracesError`].
pub fn check(endpoint: &str, sample_percent: f64) -> Result<(), TracesError> {
    let address: Option<Url> = endpoint.parse().ok();
    if !address.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
        return Err(TracesError::Address(endpoint.to_owned()));
    }
    if !(0.0..=100.0).contains(&sample_percent) {
        return Err(TracesError::Part(sample_percent));
    }
    Ok(())
}

/// The exporter at work.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Exports to `endpoint`, the whole address, so many of a hundred traces, in the name of `service`.
    ///
    /// # Errors
    /// [`TracesError`]; that the collector is away is none.
    pub fn start(
        service: &'static str,
        version: &'static str,
        endpoint: &str,
        sample_percent: f64,
    ) -> Result<Self, TracesError> {
        check(endpoint, sample_percent)?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Sender::default())
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .with_timeout(LIMIT)
            .build()
            .map_err(|error| TracesError::Exporter(error.to_string()))?;
        let resource = Resource::builder_empty()
            .with_service_name(service)
            .with_attribute(KeyValue::new("service.version", version))
            .build();
        let sampler = Sampler::TraceIdRatioBased(sample_percent / 100.0);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(sampler)))
            .with_resource(resource)
            .build();
        Ok(Self(provider))
    }

    /// What hears of spans; beside a log's own layer, which filters for itself.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        // Which span is inside which is tracing's to say: work goes on in tasks that carry its span, on any thread.
        let layer = tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("firn"))
            .with_context_activation(false);
        layer.with_filter(filter_fn(is_exported))
    }

    /// Sends what waits and ends; within some seconds, whether the collector answers or not.
    pub fn end(self) {
        if let Err(error) = self.0.shutdown() {
            tracing::debug!(%error, "the last traces are not exported");
        }
    }
}

/// Starts the process's log, to standard error, and what hears of spans beside it.
///
/// # Panics
/// If one was started already.
pub fn start_log(filter: EnvFilter, json: bool, colours: bool, traces: Option<&Traces>) {
    let text = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours);
    let text = if json { text.json().boxed() } else { text.boxed() };
    match traces {
        // What nobody logs is not even looked at.
        None => registry().with(text).with(filter).init(),
        Some(traces) => registry()
            .with(text.with_filter(filter))
            .with(traces.layer())
            .init(),
    }
}

/// Our own spans, and what was worth a warning inside them.
fn is_exported(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("firn") && (metadata.is_span() || *metadata.level() <= Level::WARN)
}

/// Sends batches from the SDK's own thread, where nothing else waits. A connection a batch, every five seconds.
#[derive(Debug, Default)]
struct Sender {
    is_away: AtomicBool,
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // Not the process's own runtime: the SDK polls this where there is none, and may still do so when that has ended.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let answered = runtime.block_on(send(request));
        let is_away = !answered
            .as_ref()
            .is_ok_and(|response| response.status().is_success());
        if self.is_away.swap(is_away, Relaxed) != is_away {
            match (&answered, is_away) {
                (_, false) => tracing::info!("the collector takes traces again"),
                (Ok(response), true) => {
                    tracing::warn!(status = %response.status(), "the collector takes no traces; they are dropped");
                }
                (Err(error), true) => {
                    tracing::warn!(%error, "the collector does not answer; traces are dropped")
                }
            }
        }
        answered
    }
}

async fn send(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let client = Client::builder()
        .redirect(Policy::none())
        .timeout(LIMIT)
        .build()?;
    let mut response = client.execute(request.try_into()?).await?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err("the collector's answer is longer than any".into());
        }
        body.extend_from_slice(&chunk);
    }
    let answer = Response::builder().status(response.status());
    Ok(answer.body(Bytes::from(body))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_and_no_part_is_refused() {
        for endpoint in ["", "collector:4318", "file:///v1/traces", "http://"] {
            let refused = Traces::start("firn-test", "1", endpoint, 1.0);
            assert!(matches!(refused, Err(TracesError::Address(_))), "{endpoint}");
        }
        for part in [-1.0, 100.5, f64::NAN] {
            let refused = Traces::start("firn-test", "1", "http://127.0.0.1:1/v1/traces", part);
            assert!(matches!(refused, Err(TracesError::Part(_))), "{part}");
        }
    }
}
