//! The health probe of smbd: an SMB2 NEGOTIATE, whose answer takes its first process and one made for the connection.

use firn_env::{Env, Network};
use std::{io, net::IpAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Source: MS-SMB2 2.2.1.2, 2.2.3: a header of 64 bytes, then 36 bytes and the dialects.
const HEADER_BYTES: usize = 64;
/// 2.1, 3.0 and 3.0.2; 3.1.1 would want contexts.
const DIALECTS: [u16; 3] = [0x0210, 0x0300, 0x0302];
/// What a reply may have: far more than a negotiation's.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// The request, with the length before it that SMB over TCP has.
fn request() -> Vec<u8> {
    let mut bytes = vec![0xfe, b'S', b'M', b'B'];
    bytes.extend((HEADER_BYTES as u16).to_le_bytes());
    bytes.resize(HEADER_BYTES, 0);
    // A credit, as every first request asks for.
    bytes[14] = 1;
    bytes.extend(36_u16.to_le_bytes());
    bytes.extend((DIALECTS.len() as u16).to_le_bytes());
    // Signing enabled; the rest is zero, the client's identifier too.
    bytes.extend(1_u16.to_le_bytes());
    bytes.resize(HEADER_BYTES + 36, 0);
    for dialect in DIALECTS {
        bytes.extend(dialect.to_le_bytes());
    }
    let mut framed = (bytes.len() as u32).to_be_bytes().to_vec();
    framed.extend(bytes);
    framed
}

/// Asks smbd at this address; the caller bounds the time.
///
/// # Errors
/// If it does not answer, or something else than SMB does.
pub async fn ask(env: &Env, address: IpAddr, port: u16) -> io::Result<()> {
    let network: &dyn Network = &**env.network();
    let mut stream = network
        .connect(&std::net::SocketAddr::new(address, port).to_string())
        .await?;
    stream.write_all(&request()).await?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let length = u32::from_be_bytes(length) as usize;
    if !(HEADER_BYTES..=REPLY_BYTES_MAX).contains(&length) {
        return Err(io::Error::other("what answers there does not speak SMB"));
    }
    let mut reply = vec![0; length];
    stream.read_exact(&mut reply).await?;
    if !reply.starts_with(b"\xfeSMB") {
        return Err(io::Error::other("what answers there does not speak SMB2"));
    }
    Ok(())
}

/// By which address the edge reaches what listens on `listen`.
pub fn own_address(listen: IpAddr) -> IpAddr {
    if listen.is_unspecified() {
        IpAddr::from([127, 0, 0, 1])
    } else {
        listen
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_request_has_the_lengths_that_it_says() {
        let request = super::request();
        assert_eq!(request.len(), 4 + 64 + 36 + 6);
        assert_eq!(request[..4], [0, 0, 0, 106]);
        assert_eq!(request[68], 36);
    }
}
