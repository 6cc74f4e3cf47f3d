//! A record of all that the service receives, for whoever wants to see for themselves what it learns (`firn-dev --record`, and the
//! test that nothing in it opens a customer's data). Never on in `firn-api`: it holds credentials.

use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::{Arc, Mutex},
};

/// The largest body that is recorded; larger ones the service refuses itself.
const BODY_BYTES_MAX: usize = 4 << 20;

/// A file to which every request is appended: its line, its headers, its body.
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<File>>);

impl Recorder {
    /// Appends to a file that only its owner reads.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)?;
        Ok(Self(Arc::new(Mutex::new(file))))
    }

    fn write(&self, entry: &[u8]) -> io::Result<()> {
        self.0.lock().expect("no panic under this lock").write_all(entry)
    }

    /// Records a request and passes it on. One that cannot be recorded is refused: a record with holes proves nothing.
    pub(crate) async fn pass(self, request: Request, next: Next) -> Response {
        let (head, body) = request.into_parts();
        let Ok(body) = to_bytes(body, BODY_BYTES_MAX).await else {
            return StatusCode::PAYLOAD_TOO_LARGE.into_response();
        };
        let mut entry = format!("{} {}\n", head.method, head.uri).into_bytes();
        for (name, value) in &head.headers {
            entry.extend_from_slice(name.as_str().as_bytes());
            entry.extend_from_slice(b": ");
            entry.extend_from_slice(value.as_bytes());
            entry.push(b'\n');
        }
        entry.push(b'\n');
        entry.extend_from_slice(&body);
        entry.push(b'\n');
        if let Err(error) = self.write(&entry) {
            tracing::error!(%error, "a request could not be recorded and was refused");
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        next.run(Request::from_parts(head, Body::from(body))).await
    }
}
