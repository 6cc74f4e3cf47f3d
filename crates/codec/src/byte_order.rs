//! Byte order.

/// Which byte of an integer stands first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByteOrder {
    /// The least significant one: formats of our own.
    #[default]
    Little,
    /// The most significant one: XDR, NBD, and what is signed or sorted as bytes.
    Big,
}
