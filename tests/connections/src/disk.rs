//! A client of the network block device protocol with one request under way: the least that makes a disk node work.

use anyhow::{Result, bail, ensure};
use std::path::Path;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// What is written and read at once, in bytes.
const BLOCK: usize = 4096;
/// "NBDMAGIC", then "IHAVEOPT" (the protocol's fixed newstyle negotiation).
const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
/// The write is durable when it is answered.
const FORCE_UNIT_ACCESS: u16 = 1;

/// An open export.
pub struct Disk {
    stream: UnixStream,
    blocks: u64,
}

impl Disk {
    /// Opens `export` at the socket; only its first `blocks` are used.
    ///
    /// # Errors
    /// If it is not served.
    pub async fn open(socket: &Path, export: &str, blocks: u64) -> Result<Self> {
        let mut stream = UnixStream::connect(socket).await?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).await?;
        ensure!(greeting.starts_with(GREETING), "that is no NBD server");
        let length = u32::try_from(export.len())?;
        // The client's flags, the option, and its data: the name, and no information that is asked for.
        let mut go = REPLY_INFO.to_be_bytes().to_vec();
        go.extend(b"IHAVEOPT");
        go.extend(OPTION_GO.to_be_bytes());
        go.extend((length + 6).to_be_bytes());
        go.extend(length.to_be_bytes());
        go.extend(export.as_bytes());
        go.extend([0, 0]);
        stream.write_all(&go).await?;
        // Answers before the last: information about the export, a bounded number of kinds.
        for _ in 0..16 {
            let _magic = stream.read_u64().await?;
            let _option = stream.read_u32().await?;
            let kind = stream.read_u32().await?;
            let mut rest = vec![0; (stream.read_u32().await? as usize).min(4096)];
            stream.read_exact(&mut rest).await?;
            match kind {
                REPLY_ACK => return Ok(Self { stream, blocks }),
                REPLY_INFO => {}
                other => bail!(
                    "{export} is refused: {other:#x} {}",
                    String::from_utf8_lossy(&rest)
                ),
            }
        }
        bail!("{export} is described without end")
    }

    async fn request(&mut self, flags: u16, kind: u16, block: u64, data: &[u8]) -> Result<()> {
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend(flags.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(block.to_be_bytes());
        request.extend((block * BLOCK as u64).to_be_bytes());
        request.extend((BLOCK as u32).to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request).await?;
        ensure!(
            self.stream.read_u32().await? == REPLY_MAGIC,
            "a reply begins otherwise"
        );
        let error = self.stream.read_u32().await?;
        ensure!(error == 0, "the disk answers with error {error}");
        ensure!(
            self.stream.read_u64().await? == block,
            "a reply to something else"
        );
        Ok(())
    }

    /// A durable write of a block and a read of it, elsewhere each round.
    ///
    /// # Errors
    /// If one of them fails, or other bytes come back.
    pub async fn work(&mut self, round: u64) -> Result<()> {
        // An odd multiplier walks through all blocks before it comes back.
        let block = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.blocks;
        let data = vec![round as u8; BLOCK];
        self.request(FORCE_UNIT_ACCESS, WRITE, block, &data).await?;
        self.request(0, READ, block, &[]).await?;
        let mut found = vec![0; BLOCK];
        self.stream.read_exact(&mut found).await?;
        ensure!(found == data, "other bytes came back in round {round}");
        Ok(())
    }
}
