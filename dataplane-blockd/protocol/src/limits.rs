//! Every bound of the protocol, with its reason. Both ends enforce all of them.

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of a message's fields. The largest are lists of tracts and the versions of 256 blocks (6 KiB).
pub const MAX_BODY_BYTES: usize = 64 << 10;
/// Blocks in one write or fetch: 1 MiB, an eighth of a tract. A larger unit would hold a connection for
/// milliseconds; a smaller one would spend more on headers and checksums of small lists than it saves.
pub const MAX_REQUEST_BLOCKS: usize = 256;
/// Bytes of block data in one frame.
pub const MAX_DATA_BYTES: usize = MAX_REQUEST_BLOCKS * crate::BLOCK_BYTES;
/// Bytes of a capability.
pub const MAX_CAPABILITY_BYTES: usize = 8 << 10;
/// Bytes of a text field: the name of a program, the words of a refusal.
pub const MAX_TEXT_BYTES: usize = 512;
/// Replicas in one row, joining ones included: three copies, and as many on their way.
pub const MAX_REPLICAS: usize = 8;
/// Tracts in one list.
pub const MAX_LIST: usize = 512;
/// What a tract takes in the reply to a list, in the version of the protocol in which it takes most.
pub const LISTED_TRACT_BYTES: usize = 42;
/// Requests in flight on one connection that a client may ask for.
pub const MAX_REQUESTS_IN_FLIGHT: u32 = 1024;
/// Bytes in flight on one connection that a client may ask for, requests and the replies they ask for together.
pub const MAX_BYTES_IN_FLIGHT: u32 = 64 << 20;
/// What a request or reply is counted as beside its block data.
pub const MESSAGE_OVERHEAD_BYTES: usize = 4 << 10;
