//! A client that sends exactly what it is told to, right or wrong.

use bytes::{BufMut, BytesMut};
use firn_blockd_nbd::wire::{
    EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, IHAVEOPT, NBDMAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk, rep,
};
use firn_env::{ByteStream, Env};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub struct Raw {
    pub stream: Box<dyn ByteStream>,
    pub extended: bool,
}

/// One reply to an option.
pub type OptionReply = (u32, Vec<u8>);

#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    pub done: bool,
    pub kind: u16,
    pub cookie: u64,
    pub payload: Vec<u8>,
}

impl Chunk {
    /// The error code, or 0.
    pub fn error(&self) -> u32 {
        if self.kind == chunk::ERROR {
            be32(&self.payload)
        } else {
            0
        }
    }
}

pub fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

pub fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

/// The data of GO and INFO.
pub fn go_data(name: &str, items: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((items.len() as u16).to_be_bytes());
    data.extend(items.iter().flat_map(|item| item.to_be_bytes()));
    data
}

/// The data of the metadata options.
pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

impl Raw {
    pub async fn connect(env: &Env, address: &str) -> Self {
        Self::connect_with(env, address, 3).await
    }

    pub async fn connect_with(env: &Env, address: &str, flags: u32) -> Self {
        let mut stream = env.network().connect(address).await.unwrap();
        assert_eq!(stream.read_u64().await.unwrap(), NBDMAGIC);
        assert_eq!(stream.read_u64().await.unwrap(), IHAVEOPT);
        assert_eq!(stream.read_u16().await.unwrap(), 3);
        stream.write_u32(flags).await.unwrap();
        Self {
            stream,
            extended: false,
        }
    }

    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    pub async fn send_option(&mut self, option: u32, length: u32, data: &[u8]) {
        let mut bytes = BytesMut::new();
        bytes.put_u64(IHAVEOPT);
        bytes.put_u32(option);
        bytes.put_u32(length);
        bytes.put_slice(data);
        // The server may have closed already; the test sees that when it reads.
        let _ = self.send(&bytes).await;
    }

    pub async fn option_reply(&mut self, option: u32) -> OptionReply {
        assert_eq!(self.stream.read_u64().await.unwrap(), OPTION_REPLY_MAGIC);
        assert_eq!(self.stream.read_u32().await.unwrap(), option);
        let kind = self.stream.read_u32().await.unwrap();
        let mut data = vec![0; self.stream.read_u32().await.unwrap() as usize];
        self.stream.read_exact(&mut data).await.unwrap();
        (kind, data)
    }

    /// Sends an option and takes its replies; the last is the verdict.
    pub async fn option(&mut self, option: u32, data: &[u8]) -> (u32, Vec<OptionReply>) {
        self.send_option(option, data.len() as u32, data).await;
        let mut replies = Vec::new();
        loop {
            let reply = self.option_reply(option).await;
            if reply.0 == rep::ACK || reply.0 >> 31 == 1 {
                return (reply.0, replies);
            }
            replies.push(reply);
        }
    }

    pub async fn request(
        &mut self,
        flags: u16,
        command: u16,
        cookie: u64,
        offset: u64,
        length: u64,
        payload: &[u8],
    ) {
        let mut bytes = BytesMut::new();
        bytes.put_u32(if self.extended {
            EXTENDED_REQUEST_MAGIC
        } else {
            REQUEST_MAGIC
        });
        bytes.put_u16(flags);
        bytes.put_u16(command);
        bytes.put_u64(cookie);
        bytes.put_u64(offset);
        if self.extended {
            bytes.put_u64(length);
        } else {
            bytes.put_u32(length as u32);
        }
        bytes.put_slice(payload);
        let _ = self.send(&bytes).await;
    }

    /// Takes a simple reply: error, cookie, data.
    pub async fn simple(&mut self, data_bytes: usize) -> (u32, u64, Vec<u8>) {
        assert_eq!(self.stream.read_u32().await.unwrap(), SIMPLE_REPLY_MAGIC);
        let error = self.stream.read_u32().await.unwrap();
        let cookie = self.stream.read_u64().await.unwrap();
        let mut data = vec![0; if error == 0 { data_bytes } else { 0 }];
        self.stream.read_exact(&mut data).await.unwrap();
        (error, cookie, data)
    }

    pub async fn chunk(&mut self) -> Chunk {
        let magic = self.stream.read_u32().await.unwrap();
        assert_eq!(
            magic,
            if self.extended {
                EXTENDED_REPLY_MAGIC
            } else {
                STRUCTURED_REPLY_MAGIC
            }
        );
        let flags = self.stream.read_u16().await.unwrap();
        let kind = self.stream.read_u16().await.unwrap();
        let cookie = self.stream.read_u64().await.unwrap();
        let length = if self.extended {
            let _offset = self.stream.read_u64().await.unwrap();
            self.stream.read_u64().await.unwrap()
        } else {
            self.stream.read_u32().await.unwrap().into()
        };
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).await.unwrap();
        Chunk {
            done: flags & chunk::FLAG_DONE != 0,
            kind,
            cookie,
            payload,
        }
    }

    /// Whether the server closes without another byte.
    pub async fn is_closed(&mut self) -> bool {
        self.stream.read_u8().await.is_err()
    }
}
