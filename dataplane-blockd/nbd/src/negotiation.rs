//! The option phase: from the first byte to a chosen export.
//!
//! ```text
//! state        │ option                                 │ reply                    │ next
//! ─────────────┼────────────────────────────────────────┼──────────────────────────┼──────────────
//! plain, TLS   │ STARTTLS                               │ ACK, then the handshake  │ private, all forgotten
//!   configured │ ABORT                                  │ ACK                      │ end
//!              │ EXPORT_NAME                            │ none                     │ end
//!              │ anything else                          │ ERR_TLS_REQD             │ plain
//! open         │ LIST, INFO, META_CONTEXT, STRUCTURED…  │ as each says             │ open
//! (private, or │ GO                                     │ INFO…, ACK               │ transmission
//!  no TLS)     │ EXPORT_NAME                            │ size, flags              │ transmission
//!              │ unknown                                │ ERR_UNSUP                │ open
//! ```
//!
//! Nothing is read ahead, so no byte sent in the clear can pass for one sent under TLS. Data of an option is read only up to
//! [`OPTION_DATA_MAX`]; a little more is skipped and refused, much more ends the connection. An endless haggle ends too.

use crate::{
    export::{Export, Exports},
    option::{InfoRequest, MetaRequest, OPTION_HEADER_BYTES, OptionError, OptionHeader, decode_name},
    reply::{Style, encode_option},
    tls::Tls,
    wire::{BASE_ALLOCATION, BASE_ALLOCATION_ID, IHAVEOPT, NBDMAGIC, client, handshake, info, opt, rep},
};
use firn_codec::Writer;
use firn_env::ByteStream;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longest data of an option that is looked at: a name and 64 long queries fit.
const OPTION_DATA_MAX: u32 = 64 << 10;
/// Longest data that is skipped to answer "too big"; beyond it the connection is closed.
const OPTION_SKIP_MAX: u32 = 1 << 20;
/// Options of one connection; a thorough client sends ten.
const OPTIONS_MAX: u32 = 1000;

/// What was agreed.
pub(crate) struct Agreed {
    pub(crate) stream: Box<dyn ByteStream>,
    pub(crate) export: Export,
    pub(crate) style: Style,
    pub(crate) block_status: bool,
}

/// Why there was no agreement.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAgreement {
    #[error("the client ended the negotiation")]
    Aborted,
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    #[error("the client broke the protocol: {0}")]
    Violation(&'static str),
}

/// What the options so far have set.
#[derive(Default)]
struct Settings {
    structured: bool,
    extended: bool,
    /// The export for which `base:allocation` was chosen.
    context_of: Option<String>,
}

pub(crate) struct Negotiation<'a> {
    pub(crate) exports: &'a Exports,
    pub(crate) tls: Option<&'a Tls>,
    /// Asked before each option.
    pub(crate) is_shutting_down: &'a (dyn Fn() -> bool + Send + Sync),
}

struct Session<'a> {
    rules: &'a Negotiation<'a>,
    stream: Box<dyn ByteStream>,
    fixed: bool,
    no_zeroes: bool,
    private: bool,
    settings: Settings,
}

/// What an option leads to.
enum Next {
    More,
    End,
    Encrypt,
    Transmit(Export),
}

impl Negotiation<'_> {
    pub(crate) async fn run(&self, mut stream: Box<dyn ByteStream>) -> Result<Agreed, NoAgreement> {
        let mut greeting = Writer::big_endian(18);
        greeting.u64(NBDMAGIC);
        greeting.u64(IHAVEOPT);
        greeting.u16(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        stream.write_all(greeting.as_slice()).await?;
        stream.flush().await?;
        let flags = stream.read_u32().await?;
        if flags & !(client::FIXED_NEWSTYLE | client::NO_ZEROES) != 0 {
            return Err(NoAgreement::Violation("unknown client flags"));
        }
        let mut session = Session {
            rules: self,
            stream,
            fixed: flags & client::FIXED_NEWSTYLE != 0,
            no_zeroes: flags & client::NO_ZEROES != 0,
            private: false,
            settings: Settings::default(),
        };
        for _ in 0..OPTIONS_MAX {
            match session.option().await? {
                Next::More => {}
                Next::End => return Err(NoAgreement::Aborted),
                Next::Encrypt => session = session.encrypt().await?,
                Next::Transmit(export) => {
                    return Ok(Agreed {
                        export,
                        style: session.settings.style(),
                        block_status: session.settings.context_of.is_some(),
                        stream: session.stream,
                    });
                }
            }
        }
        Err(NoAgreement::Violation("too many options"))
    }
}

impl Settings {
    fn style(&self) -> Style {
        match (self.extended, self.structured) {
            (true, _) => Style::Extended,
            (false, true) => Style::Structured,
            (false, false) => Style::Simple,
        }
    }
}

impl Session<'_> {
    async fn option(&mut self) -> Result<Next, NoAgreement> {
        let mut head = [0; OPTION_HEADER_BYTES];
        self.stream.read_exact(&mut head).await?;
        let OptionHeader { option, length } = OptionHeader::decode(&head)
            .map_err(|_| NoAgreement::Violation("wrong magic before an option"))?;
        if length > OPTION_DATA_MAX {
            if length > OPTION_SKIP_MAX || option == opt::EXPORT_NAME {
                return Err(NoAgreement::Violation("an option of absurd length"));
            }
            self.skip(length).await?;
            if option == opt::SET_META_CONTEXT {
                self.settings.context_of = None;
            }
            return self
                .reply(option, rep::ERR_TOO_BIG, b"the option is too long")
                .await;
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data).await?;
        if option == opt::EXPORT_NAME {
            return self.export_name(&data).await;
        }
        if option == opt::ABORT {
            // The client need not wait for the answer, so it may be gone.
            let _ = self.reply(option, rep::ACK, b"").await;
            return Ok(Next::End);
        }
        if (self.rules.is_shutting_down)() {
            return self
                .reply(option, rep::ERR_SHUTDOWN, b"the server is stopping")
                .await;
        }
        if self.rules.tls.is_some() && !self.private && option != opt::STARTTLS {
            return self
                .reply(
                    option,
                    rep::ERR_TLS_REQD,
                    b"this server talks only over TLS: send STARTTLS first",
                )
                .await;
        }
        let carries_data = !matches!(
            option,
            opt::STARTTLS | opt::LIST | opt::STRUCTURED_REPLY | opt::EXTENDED_HEADERS
        );
        if !carries_data && !data.is_empty() {
            return self
                .reply(option, rep::ERR_INVALID, b"this option carries no data")
                .await;
        }
        match option {
            opt::STARTTLS => self.start_tls().await,
            opt::LIST => self.list().await,
            opt::INFO | opt::GO => self.info(option, &data).await,
            opt::STRUCTURED_REPLY => self.structured().await,
            opt::EXTENDED_HEADERS => self.extended().await,
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_context(option, &data).await,
            _ => self.reply(option, rep::ERR_UNSUP, b"unknown option").await,
        }
    }

    async fn export_name(&mut self, data: &[u8]) -> Result<Next, NoAgreement> {
        // This option has no way to say no.
        if self.rules.tls.is_some() && !self.private {
            return Err(NoAgreement::Violation("EXPORT_NAME without TLS"));
        }
        if (self.rules.is_shutting_down)() {
            return Err(NoAgreement::Aborted);
        }
        if self.settings.extended {
            return Err(NoAgreement::Violation("EXPORT_NAME after EXTENDED_HEADERS"));
        }
        let name = decode_name(data).map_err(|_| NoAgreement::Violation("a bad export name"))?;
        let Some((canonical, export)) = self.rules.exports.find(&name) else {
            return Err(NoAgreement::Violation("an unknown export"));
        };
        self.keep_context_for(&canonical);
        let mut reply = Writer::big_endian(134);
        reply.u64(export.device.geometry().size_bytes);
        reply.u16(self.flags(&canonical, &export));
        if !self.no_zeroes {
            reply.zeros_to(reply.len() + 124);
        }
        self.stream.write_all(reply.as_slice()).await?;
        self.stream.flush().await?;
        Ok(Next::Transmit(export))
    }

    async fn start_tls(&mut self) -> Result<Next, NoAgreement> {
        let option = opt::STARTTLS;
        if self.private {
            return self
                .reply(option, rep::ERR_INVALID, b"TLS is already in use")
                .await;
        }
        if self.rules.tls.is_none() || !self.fixed {
            return self
                .reply(option, rep::ERR_POLICY, b"this server has no TLS")
                .await;
        }
        self.reply(option, rep::ACK, b"").await?;
        Ok(Next::Encrypt)
    }

    async fn encrypt(self) -> Result<Self, NoAgreement> {
        let tls = self.rules.tls.expect("only a server with TLS begins it");
        let stream = tls.acceptor.accept(self.stream).await?;
        Ok(Self {
            stream: Box::new(stream),
            private: true,
            // What was said before could have been said by anybody.
            settings: Settings::default(),
            ..self
        })
    }

    async fn list(&mut self) -> Result<Next, NoAgreement> {
        for (name, description) in self.rules.exports.list() {
            let mut entry = Writer::big_endian(4 + name.len() + description.len());
            entry.u32(name.len() as u32);
            entry.raw(name.as_bytes());
            entry.raw(description.as_bytes());
            self.reply(opt::LIST, rep::SERVER, entry.as_slice()).await?;
        }
        self.reply(opt::LIST, rep::ACK, b"").await
    }

    async fn info(&mut self, option: u32, data: &[u8]) -> Result<Next, NoAgreement> {
        let request = match InfoRequest::decode(data) {
            Ok(request) => request,
            Err(error) => return self.refuse(option, error).await,
        };
        let Some((name, export)) = self.rules.exports.find(&request.name) else {
            return self
                .reply(option, rep::ERR_UNKNOWN, b"no export has this name")
                .await;
        };
        if option == opt::GO {
            self.keep_context_for(&name);
        }
        let geometry = export.device.geometry();
        let mut item = Writer::big_endian(12);
        item.u16(info::EXPORT);
        item.u64(geometry.size_bytes);
        item.u16(self.flags(&name, &export));
        self.reply(option, rep::INFO, item.as_slice()).await?;
        // Sizes are told unasked too: a client that does not know them ignores them, one that does is faster.
        let mut item = Writer::big_endian(14);
        item.u16(info::BLOCK_SIZE);
        item.u32(geometry.block_bytes);
        item.u32(geometry.preferred_bytes);
        item.u32(geometry.payload_bytes_max);
        self.reply(option, rep::INFO, item.as_slice()).await?;
        for (kind, text) in [(info::NAME, &name), (info::DESCRIPTION, &export.description)] {
            if request.items.contains(&kind) {
                let mut item = Writer::big_endian(2 + text.len());
                item.u16(kind);
                item.raw(text.as_bytes());
                self.reply(option, rep::INFO, item.as_slice()).await?;
            }
        }
        self.reply(option, rep::ACK, b"").await?;
        Ok(if option == opt::GO {
            Next::Transmit(export)
        } else {
            Next::More
        })
    }

    async fn structured(&mut self) -> Result<Next, NoAgreement> {
        let option = opt::STRUCTURED_REPLY;
        if self.settings.extended {
            return self
                .reply(
                    option,
                    rep::ERR_EXT_HEADER_REQD,
                    b"extended headers are already in use",
                )
                .await;
        }
        if self.settings.structured {
            return self
                .reply(option, rep::ERR_INVALID, b"structured replies are already in use")
                .await;
        }
        self.settings.structured = true;
        self.reply(option, rep::ACK, b"").await
    }

    async fn extended(&mut self) -> Result<Next, NoAgreement> {
        let option = opt::EXTENDED_HEADERS;
        if self.settings.extended {
            return self
                .reply(option, rep::ERR_INVALID, b"extended headers are already in use")
                .await;
        }
        self.settings.extended = true;
        self.reply(option, rep::ACK, b"").await
    }

    async fn meta_context(&mut self, option: u32, data: &[u8]) -> Result<Next, NoAgreement> {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            // A request replaces earlier choices even if it fails.
            self.settings.context_of = None;
        }
        if self.settings.style() == Style::Simple {
            return self
                .reply(option, rep::ERR_INVALID, b"negotiate structured replies first")
                .await;
        }
        let request = match MetaRequest::decode(data) {
            Ok(request) => request,
            Err(error) => return self.refuse(option, error).await,
        };
        let Some((name, _)) = self.rules.exports.find(&request.name) else {
            return self
                .reply(option, rep::ERR_UNKNOWN, b"no export has this name")
                .await;
        };
        let all = !set && request.queries.is_empty();
        let matches = request
            .queries
            .iter()
            .any(|query| query == BASE_ALLOCATION || (!set && query == "base:"));
        if all || matches {
            let mut reply = Writer::big_endian(32);
            reply.u32(if set { BASE_ALLOCATION_ID } else { 0 });
            reply.raw(BASE_ALLOCATION.as_bytes());
            self.reply(option, rep::META_CONTEXT, reply.as_slice()).await?;
        }
        if set && matches {
            self.settings.context_of = Some(name);
        }
        self.reply(option, rep::ACK, b"").await
    }

    fn flags(&self, canonical: &str, export: &Export) -> u16 {
        export.transmission_flags(
            self.settings.style() != Style::Simple,
            self.settings.extended && self.settings.context_of.as_deref() == Some(canonical),
        )
    }

    /// A context counts only for the export it was asked for.
    fn keep_context_for(&mut self, canonical: &str) {
        self.settings.context_of = self.settings.context_of.take().filter(|name| name == canonical);
    }

    async fn refuse(&mut self, option: u32, error: OptionError) -> Result<Next, NoAgreement> {
        let kind = match error {
            OptionError::TooMany => rep::ERR_TOO_BIG,
            OptionError::Magic
            | OptionError::Malformed
            | OptionError::BadString
            | OptionError::NoNamespace => rep::ERR_INVALID,
        };
        self.reply(option, kind, error.to_string().as_bytes()).await
    }

    async fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> Result<Next, NoAgreement> {
        self.stream.write_all(&encode_option(option, kind, data)).await?;
        self.stream.flush().await?;
        Ok(Next::More)
    }

    async fn skip(&mut self, length: u32) -> io::Result<()> {
        let skipped = tokio::io::copy(
            &mut (&mut self.stream).take(length.into()),
            &mut tokio::io::sink(),
        )
        .await?;
        if skipped < length.into() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}
