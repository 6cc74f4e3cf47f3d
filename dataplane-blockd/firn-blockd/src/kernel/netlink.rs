//! The kernel's NBD client as it is asked over generic netlink (`linux/nbd-netlink.h`, `linux/genetlink.h`).
//!
//! ```text
//! message   = length u32 | kind u16 | flags u16 | sequence u32 | port u32 | command u8 | version u8 | 0 u16 | attribute*
//! attribute = length u16 | kind u16 | value, padded to four bytes                    (all in the machine's byte order)
//! answer    = a message, or one of the kind ERROR: -errno i32 (0: done) | the request's header
//! ```
//!
//! The kernel does what a message asks before it takes the next, so an answer is there when the message is sent. What it answers is
//! read with bounds all the same.

use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsRawFd as _, BorrowedFd},
};

const HEADER_BYTES: usize = 16;
/// Command, version and two bytes that are reserved.
const GENERIC_BYTES: usize = 4;
const ATTRIBUTE_BYTES: usize = 4;
/// An answer has some dozen attributes; what does not fit is cut off by the kernel.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// An answer and its acknowledgement, with room.
const ANSWERS_MAX: usize = 16;

mod flag {
    pub const REQUEST: u16 = 1;
    pub const ACKNOWLEDGE: u16 = 4;
    /// Of an attribute that holds attributes.
    pub const NESTED: u16 = 1 << 15;
}

/// The kind of an answer that is an error number.
const ERROR: u16 = 2;

/// The family by which others are found.
mod control {
    pub const FAMILY: u16 = 0x10;
    pub const GET_FAMILY: u8 = 3;
    pub const FAMILY_ID: u16 = 1;
    pub const FAMILY_NAME: u16 = 2;
}

mod command {
    pub const CONNECT: u8 = 1;
    pub const DISCONNECT: u8 = 2;
    pub const RECONFIGURE: u8 = 3;
}

mod attribute {
    pub const INDEX: u16 = 1;
    pub const SIZE_BYTES: u16 = 2;
    pub const BLOCK_BYTES: u16 = 3;
    pub const SERVER_FLAGS: u16 = 5;
    pub const SOCKETS: u16 = 7;
    pub const BACKEND: u16 = 10;
    /// Within SOCKETS.
    pub const SOCKET: u16 = 1;
    /// Within SOCKET.
    pub const DESCRIPTOR: u16 = 1;
}

/// A message under construction.
struct Message(Vec<u8>);

impl Message {
    fn new(family: u16, command: u8) -> Self {
        let mut bytes = vec![0; HEADER_BYTES + GENERIC_BYTES];
        bytes[4..6].copy_from_slice(&family.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flag::REQUEST | flag::ACKNOWLEDGE).to_ne_bytes());
        bytes[8..12].copy_from_slice(&1_u32.to_ne_bytes());
        bytes[HEADER_BYTES] = command;
        bytes[HEADER_BYTES + 1] = 1;
        Self(bytes)
    }

    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(attribute_bytes(kind, value));
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).expect("a message has some hundred bytes");
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

/// # Panics
/// If the value has 64 KiB.
fn attribute_bytes(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ATTRIBUTE_BYTES + value.len()).expect("attributes are short");
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// What the kernel answers a message.
#[derive(Debug, PartialEq, Eq)]
enum Answer<'a> {
    /// Done, or an error number.
    End(i32),
    /// Attributes.
    Attributes(&'a [u8]),
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer cannot be read")
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The first message of what was received, and the rest.
fn first_answer(bytes: &[u8]) -> io::Result<(Answer<'_>, &[u8])> {
    let length = number(bytes, 0).map(u32::from_ne_bytes).ok_or_else(malformed)? as usize;
    let kind = number(bytes, 4).map(u16::from_ne_bytes).ok_or_else(malformed)?;
    let message = bytes.get(..length).ok_or_else(malformed)?;
    let payload = message.get(HEADER_BYTES..).ok_or_else(malformed)?;
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    if kind == ERROR {
        let code = number(payload, 0).map(i32::from_ne_bytes).ok_or_else(malformed)?;
        return Ok((Answer::End(code), rest));
    }
    let attributes = payload.get(GENERIC_BYTES..).ok_or_else(malformed)?;
    Ok((Answer::Attributes(attributes), rest))
}

/// The value of the first attribute of a kind.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(number(attributes, 0).map(u16::from_ne_bytes)?);
        let kind = number(attributes, 2).map(u16::from_ne_bytes)?;
        let value = attributes.get(ATTRIBUTE_BYTES..length)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// The kernel's NBD client.
pub struct NbdFamily {
    socket: File,
    family: u16,
}

impl NbdFamily {
    /// Looks for it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the kernel has none: its module is not loaded.
    pub fn open() -> io::Result<Self> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::GENERIC))?;
        let mut control = Self {
            socket: socket.into(),
            family: control::FAMILY,
        };
        let wanted = Message::new(control.family, control::GET_FAMILY).with(control::FAMILY_NAME, b"nbd\0");
        let mut family = None;
        control.ask(wanted, |attributes| {
            let id = find(attributes, control::FAMILY_ID).and_then(|id| number(id, 0));
            family = family.or(id.map(u16::from_ne_bytes));
        })?;
        control.family = family.ok_or_else(malformed)?;
        Ok(control)
    }

    /// Sends a message and reads until its end is told.
    fn ask(&mut self, message: Message, mut with: impl FnMut(&[u8])) -> io::Result<()> {
        // Whole or not at all: it is a datagram.
        let bytes = message.finish();
        if self.socket.write(&bytes)? != bytes.len() {
            return Err(malformed());
        }
        let mut received = vec![0; ANSWER_BYTES_MAX];
        for _ in 0..ANSWERS_MAX {
            let length = self.socket.read(&mut received)?;
            let mut rest = received.get(..length).ok_or_else(malformed)?;
            while !rest.is_empty() {
                let (answer, after) = first_answer(rest)?;
                rest = after;
                match answer {
                    Answer::End(0) => return Ok(()),
                    Answer::End(code) => {
                        return Err(io::Error::from_raw_os_error(code.checked_neg().unwrap_or(0)));
                    }
                    Answer::Attributes(attributes) => with(attributes),
                }
            }
        }
        Err(malformed())
    }

    /// Gives device number `index` to whoever serves the other end of `socket`, which is past any negotiation. The kernel keeps the
    /// socket. `backend` says whose it is.
    ///
    /// # Errors
    /// EBUSY if the device is in use, EPERM if this process may not administer the machine.
    pub fn connect(
        &mut self,
        index: u32,
        socket: BorrowedFd<'_>,
        export: ExportTerms,
        backend: &str,
    ) -> io::Result<()> {
        let descriptor = u32::try_from(socket.as_raw_fd()).map_err(|_| malformed())?;
        let descriptor = attribute_bytes(attribute::DESCRIPTOR, &descriptor.to_ne_bytes());
        let socket = attribute_bytes(attribute::SOCKET | flag::NESTED, &descriptor);
        let message = Message::new(self.family, command::CONNECT)
            .with(attribute::INDEX, &index.to_ne_bytes())
            .with(attribute::SIZE_BYTES, &export.size_bytes.to_ne_bytes())
            .with(attribute::BLOCK_BYTES, &export.block_bytes.to_ne_bytes())
            .with(attribute::SERVER_FLAGS, &u64::from(export.flags).to_ne_bytes())
            .with(attribute::BACKEND, &[backend.as_bytes(), &[0]].concat())
            .with(attribute::SOCKETS | flag::NESTED, &socket);
        self.ask(message, |_| {})
    }

    /// Tells the kernel that the device is larger.
    ///
    /// # Errors
    /// If it has another backend, or none.
    pub fn resize(&mut self, index: u32, size_bytes: u64, backend: &str) -> io::Result<()> {
        let message = Message::new(self.family, command::RECONFIGURE)
            .with(attribute::INDEX, &index.to_ne_bytes())
            .with(attribute::SIZE_BYTES, &size_bytes.to_ne_bytes())
            .with(attribute::BACKEND, &[backend.as_bytes(), &[0]].concat());
        self.ask(message, |_| {})
    }

    /// Takes the device away from whoever serves it. What is under way fails.
    ///
    /// # Errors
    /// If it has nobody.
    pub fn disconnect(&mut self, index: u32) -> io::Result<()> {
        let message =
            Message::new(self.family, command::DISCONNECT).with(attribute::INDEX, &index.to_ne_bytes());
        self.ask(message, |_| {})
    }
}

/// What the kernel would have learnt in a negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportTerms {
    /// The size.
    pub size_bytes: u64,
    /// The sector that the kernel shows: at most a page.
    pub block_bytes: u64,
    /// The export's transmission flags.
    pub flags: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_as_the_kernel_reads_it() {
        let bytes = Message::new(0x1b, command::DISCONNECT)
            .with(attribute::INDEX, &5_u32.to_ne_bytes())
            .with(attribute::BACKEND, b"x\0")
            .finish();
        let expected = [
            &36_u32.to_ne_bytes()[..],
            &0x1b_u16.to_ne_bytes(),
            &5_u16.to_ne_bytes(),
            &1_u32.to_ne_bytes(),
            &0_u32.to_ne_bytes(),
            &[2, 1, 0, 0],
            &8_u16.to_ne_bytes(),
            &1_u16.to_ne_bytes(),
            &5_u32.to_ne_bytes(),
            &6_u16.to_ne_bytes(),
            &10_u16.to_ne_bytes(),
            b"x\0\0\0",
        ]
        .concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn answers_are_read_and_whatever_is_cut_off_is_refused() {
        let mut given = Message::new(control::FAMILY, 1)
            .with(control::FAMILY_NAME, b"nbd\0")
            .with(control::FAMILY_ID, &0x1b_u16.to_ne_bytes())
            .finish();
        let whole = given.len();
        let mut end = Message::new(ERROR, 0).finish();
        end[HEADER_BYTES..].copy_from_slice(&(-16_i32).to_ne_bytes());
        given.extend(&end);
        let (answer, rest) = first_answer(&given).expect("a message");
        let Answer::Attributes(attributes) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(
            find(attributes, control::FAMILY_ID),
            Some(&0x1b_u16.to_ne_bytes()[..])
        );
        assert_eq!(find(attributes, 77), None);
        assert_eq!(rest, end);
        assert_eq!(first_answer(rest).expect("an end").0, Answer::End(-16));
        for cut in 0..whole {
            assert!(first_answer(&given[..cut]).is_err(), "{cut}");
        }
        // Lengths that lie.
        for length in [0_u32, 3, 15, 17, u32::MAX] {
            let mut lies = given[..whole].to_vec();
            lies[..4].copy_from_slice(&length.to_ne_bytes());
            assert!(first_answer(&lies).is_err(), "{length}");
        }
        for length in [0_u16, 1, 3, u16::MAX] {
            let lies = [length.to_ne_bytes(), 9_u16.to_ne_bytes()].concat();
            assert_eq!(find(&lies, 1), None, "{length}");
        }
    }
}
