//! A server of the Network Block Device protocol (NBD) over anything that is a [`BlockDevice`].
//!
//! It knows nothing of what lies behind the device and needs nothing but `firn-env`, so it can be read, tested and reused by
//! itself. The protocol is the public one of the NBD project, fixed newstyle, with structured replies and extended headers.
//!
//! ```text
//! client ── negotiation ──▶ reader ──▶ one task a request ──▶ BlockDevice
//!           (options)         │ holds back when too much          │
//!                             │ is in flight                      ▼
//! client ◀───────────────── writer ◀───── replies, in the order in which they are done
//! ```
//!
//! - [`wire`], [`option`], [`request`] and [`reply`] are the bytes: pure functions, property-tested, never a panic, never an
//!   allocation larger than what was received.
//! - [`BlockDevice`] is the seam; [`MemoryDevice`] is the simplest device; [`AnyAlignment`] makes a device of whole blocks
//!   usable by clients that know only sectors or bytes.
//! - [`Exports`] are the devices on offer by name; [`Server`] listens, on TCP or a local socket, with TLS 1.3 if asked.

mod align;
mod device;
mod execute;
mod export;
mod limits;
#[cfg(feature = "testing")]
mod memory;
mod negotiation;
pub mod option;
mod range_lock;
pub mod reply;
pub mod request;
mod server;
mod tls;
mod transmission;
pub mod wire;

pub use align::AnyAlignment;
pub use device::{BlockDevice, DeviceError, Durability, Extent, Geometry, Piece, ZEROES_AT_ONCE_BYTES};
pub use export::{Export, Exports};
pub use limits::Limits;
#[cfg(feature = "testing")]
pub use memory::MemoryDevice;
pub use range_lock::{RangeGuard, RangeLock};
pub use server::{Listening, Server};
pub use tls::{Tls, TlsError, TlsPolicy};
