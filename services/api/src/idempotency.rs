//! A request repeated under its idempotency key gets the first reply.
//!
//! The reply is kept in the transaction that made the change, so there is no moment at which one is there without the other.
//! It may hold a secret that is shown once (an API key), so it is sealed under a key derived from the service's master secret
//! and the idempotency key itself, of which only a hash is stored: the table alone opens nothing.

use crate::{
    app::App,
    context::TenantContext,
    endpoint::Reply,
    problem::{Code, Problem},
    secrets::hex,
    store::{KeptReply, TenantStore},
};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use axum::http::StatusCode;
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use zeroize::Zeroizing;

/// The longest key: a UUID has 36.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 128;
/// How long a reply is kept: longer than any client retries.
const KEEP_SECONDS: u64 = 24 * 3600;

/// One request with an idempotency key.
pub(crate) struct Attempt {
    sort: String,
    request_hash: String,
    key: Zeroizing<[u8; 32]>,
}

impl Attempt {
    /// Names the attempt: keys of one caller do not meet those of another.
    pub(crate) fn new(
        app: &App,
        context: &TenantContext,
        idempotency_key: &str,
        operation: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Self, Problem> {
        let fits = (1..=MAX_IDEMPOTENCY_KEY_BYTES).contains(&idempotency_key.len())
            && idempotency_key.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            return Err(Problem::new(
                Code::MalformedHeader,
                format!(
                    "Idempotency-Key: 1 to {MAX_IDEMPOTENCY_KEY_BYTES} printable characters, such as a UUID"
                ),
            ));
        }
        let who = context
            .caller()
            .map(|caller| caller.principal.to_string())
            .unwrap_or_default();
        let hash = |context: &str, parts: &[&[u8]]| {
            let mut hasher = blake3::Hasher::new_derive_key(context);
            for part in parts {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
            hex(hasher.finalize().as_bytes())
        };
        Ok(Self {
            sort: format!(
                "kept-reply/{}",
                hash(
                    "firn-api 1 idempotency key",
                    &[who.as_bytes(), idempotency_key.as_bytes()]
                )
            ),
            request_hash: hash(
                "firn-api 1 request",
                &[operation.as_bytes(), path.as_bytes(), body],
            ),
            key: app
                .master()
                .reply_key(&context.tenant().to_string(), idempotency_key),
        })
    }

    /// The reply of an earlier attempt, if there was one.
    pub(crate) async fn earlier(&self, app: &App, store: &TenantStore) -> Result<Option<Reply>, Problem> {
        let Some(kept) = store.get::<KeptReply>(&self.sort).await? else {
            return Ok(None);
        };
        if kept.record.request_hash != self.request_hash {
            return Err(Problem::new(
                Code::IdempotencyKeyReused,
                "draw a new key for a new request; nothing was changed",
            ));
        }
        if kept.record.expires < app.now() {
            return Err(Problem::new(
                Code::IdempotencyKeyReused,
                "this request was done more than a day ago; look at what it made, or draw a new key",
            ));
        }
        self.open(&kept.record.sealed)
            .map(Some)
            .ok_or_else(|| Problem::internal("a kept reply does not open"))
    }

    /// The record that keeps `reply`.
    pub(crate) fn keep(&self, app: &App, reply: &Reply) -> Result<(String, KeptReply), Problem> {
        let nonce: [u8; NONCE_LEN] = app.env().random_bytes();
        let mut sealed = Zeroizing::new(Vec::with_capacity(reply.body.len() + 32));
        sealed.extend_from_slice(&reply.status.as_u16().to_be_bytes());
        sealed.extend_from_slice(&reply.body);
        self.cipher()
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(self.request_hash.as_bytes()),
                &mut *sealed,
            )
            .map_err(|_| Problem::internal("a reply could not be sealed"))?;
        let sealed = STANDARD_NO_PAD.encode([&nonce[..], &sealed].concat());
        let record = KeptReply {
            request_hash: self.request_hash.clone(),
            sealed,
            expires: app.now().plus(KEEP_SECONDS),
        };
        Ok((self.sort.clone(), record))
    }

    fn open(&self, sealed: &str) -> Option<Reply> {
        let bytes = STANDARD_NO_PAD.decode(sealed).ok()?;
        let (nonce, ciphertext) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut buffer = ciphertext.to_vec();
        let opened = self
            .cipher()
            .open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                Aad::from(self.request_hash.as_bytes()),
                &mut buffer,
            )
            .ok()?;
        let (status, body) = opened.split_first_chunk::<2>()?;
        Some(Reply {
            status: StatusCode::from_u16(u16::from_be_bytes(*status)).ok()?,
            body: body.to_vec().into(),
            replayed: true,
            ..Reply::nothing()
        })
    }

    fn cipher(&self) -> LessSafeKey {
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*self.key).expect("32 bytes are a key"))
    }
}
