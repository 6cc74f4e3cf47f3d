//! Types that know their own XDR form, and the two macros by which the protocols' structures are declared.
//!
//! A protocol's structure is written once, field by field in wire order, and gets both directions: the server decodes
//! calls and encodes replies, the clients (callbacks, tests) do the opposite.

use super::{Decoder, Encoder, XdrError};
use bytes::Bytes;

/// Can be written as XDR.
pub trait Encode {
    /// Appends this value.
    fn encode(&self, out: &mut Encoder);
}

/// Can be read from XDR.
pub trait Decode: Sized {
    /// Reads one value.
    ///
    /// # Errors
    /// If the input is not one.
    fn decode(input: &mut Decoder) -> Result<Self, XdrError>;
}

impl Encode for () {
    fn encode(&self, _: &mut Encoder) {}
}

impl Decode for () {
    fn decode(_: &mut Decoder) -> Result<Self, XdrError> {
        Ok(())
    }
}

impl Encode for u32 {
    fn encode(&self, out: &mut Encoder) {
        out.u32(*self);
    }
}

impl Decode for u32 {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        input.u32()
    }
}

impl Encode for i32 {
    fn encode(&self, out: &mut Encoder) {
        out.u32(self.cast_unsigned());
    }
}

impl Decode for i32 {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        Ok(input.u32()?.cast_signed())
    }
}

impl Encode for u64 {
    fn encode(&self, out: &mut Encoder) {
        out.u64(*self);
    }
}

impl Decode for u64 {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        input.u64()
    }
}

impl Encode for bool {
    fn encode(&self, out: &mut Encoder) {
        out.bool(*self);
    }
}

impl Decode for bool {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        input.bool()
    }
}

/// Fixed-length opaque data.
impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut Encoder) {
        out.fixed(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        input.fixed()
    }
}

/// Variable-length opaque data or a string of at most `MAX` bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Opaque<const MAX: usize>(pub Bytes);

impl<const MAX: usize> Encode for Opaque<MAX> {
    fn encode(&self, out: &mut Encoder) {
        out.opaque(&self.0);
    }
}

impl<const MAX: usize> Decode for Opaque<MAX> {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        Ok(Self(input.opaque(MAX)?))
    }
}

impl<const MAX: usize> From<&str> for Opaque<MAX> {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl<const MAX: usize> From<Bytes> for Opaque<MAX> {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

/// Optional data: a boolean, and the value if it is true.
impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Encoder) {
        out.bool(self.is_some());
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        input.bool()?.then(|| T::decode(input)).transpose()
    }
}

/// A linked list: each element preceded by `true`, the end marked by `false`.
impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Encoder) {
        for element in self {
            out.bool(true);
            element.encode(out);
        }
        out.bool(false);
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        let mut list = Self::new();
        // Every turn consumes at least four bytes, so the input bounds the loop and the list.
        while input.bool()? {
            list.push(T::decode(input)?);
        }
        Ok(list)
    }
}

/// A counted array of at most `MAX` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Array<T, const MAX: usize>(pub Vec<T>);

impl<T: Encode, const MAX: usize> Encode for Array<T, MAX> {
    fn encode(&self, out: &mut Encoder) {
        out.u32(u32::try_from(self.0.len()).expect("arrays are bounded by MAX"));
        for element in &self.0 {
            element.encode(out);
        }
    }
}

impl<T: Decode, const MAX: usize> Decode for Array<T, MAX> {
    fn decode(input: &mut Decoder) -> Result<Self, XdrError> {
        let length = input.u32()? as usize;
        if length > MAX {
            return Err(XdrError::TooLong { length, limit: MAX });
        }
        // Grown as elements are found, not by the count in the input.
        let mut list = Vec::new();
        for _ in 0..length {
            list.push(T::decode(input)?);
        }
        Ok(Self(list))
    }
}

/// Declares structures whose XDR form is their fields in order.
macro_rules! xdr_struct {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$field_meta:meta])* $field_vis:vis $field:ident : $type:ty),* $(,)? })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $name { $($(#[$field_meta])* $field_vis $field: $type),* }

        impl $crate::xdr::Encode for $name {
            fn encode(&self, out: &mut $crate::xdr::Encoder) {
                $($crate::xdr::Encode::encode(&self.$field, out);)*
            }
        }

        impl $crate::xdr::Decode for $name {
            fn decode(input: &mut $crate::xdr::Decoder) -> Result<Self, $crate::xdr::XdrError> {
                Ok(Self { $($field: $crate::xdr::Decode::decode(input)?),* })
            }
        }
    )+};
}

/// Declares enumerations of named numbers; any other number is an error.
macro_rules! xdr_enum {
    ($($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $value:literal),* $(,)? })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        $vis enum $name { $($(#[$variant_meta])* $variant = $value),* }

        impl $crate::xdr::Encode for $name {
            fn encode(&self, out: &mut $crate::xdr::Encoder) {
                out.u32(*self as u32);
            }
        }

        impl $crate::xdr::Decode for $name {
            fn decode(input: &mut $crate::xdr::Decoder) -> Result<Self, $crate::xdr::XdrError> {
                match input.u32()? {
                    $($value => Ok(Self::$variant),)*
                    value => Err($crate::xdr::XdrError::UnknownValue { value }),
                }
            }
        }
    )+};
}

pub(crate) use {xdr_enum, xdr_struct};
