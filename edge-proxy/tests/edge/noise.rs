//! Bytes that no compressor makes smaller, the same in every run.

/// So many of them, different for each seed.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        data.extend_from_slice(&random.to_le_bytes());
    }
    data.truncate(bytes);
    data
}
