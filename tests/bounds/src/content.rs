//! File contents that follow from a number, and cannot be compressed: the worst that a volume can be given.

/// `bytes` bytes of file `number`.
pub fn content(number: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    blake3::Hasher::new()
        .update(&number.to_le_bytes())
        .finalize_xof()
        .fill(&mut content);
    content
}
