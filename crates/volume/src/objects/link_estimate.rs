//! Link estimate (latency, bandwidth) of the store: how long a small GET takes, and how many bytes the link carries.

use firn_format::MAX_SEGMENT_BYTES;
use std::time::Duration;

/// A window is cut so that its first piece takes about this many times as long as a small GET.
const PIECE_LATENCIES: f64 = 2.0;
/// No piece is smaller.
const PIECE_BYTES_MIN: f64 = 262_144.0;

/// What is fetched ahead of its readers is never more than the line carries in this time: longer, and whoever wants something
/// else waits for it.
const AHEAD: Duration = Duration::from_secs(1);
/// The same before anything is known of the line.
const AHEAD_BYTES_UNKNOWN: u64 = 8 << 20;
/// A piece fetched ahead takes no longer than this: its reader may come soon.
const AHEAD_PIECE: Duration = Duration::from_millis(250);

/// What is taken for the time of a small GET before one was seen.
const USUAL_LATENCY_MS: f64 = 20.0;

/// What is known of the link to the store.
#[derive(Default)]
pub(super) struct LinkEstimate {
    /// Time of a small GET.
    latency_ms: Option<f64>,
    bytes_per_ms: Option<f64>,
}

impl LinkEstimate {
    pub(super) fn latency_ms(&self) -> f64 {
        self.latency_ms.unwrap_or(USUAL_LATENCY_MS)
    }

    /// A GET took so long.
    pub(super) fn observe(&mut self, bytes: usize, took: Duration) {
        let took_ms = took.as_secs_f64() * 1000.0;
        let (known, value) = if bytes <= 64 << 10 {
            (&mut self.latency_ms, took_ms)
        } else {
            // The time of a GET of no bytes says nothing of the link's width.
            let transfer_ms = took_ms - self.latency_ms.unwrap_or(took_ms / 2.0);
            let rate = bytes as f64 / transfer_ms.max(took_ms / 16.0).max(0.01);
            (&mut self.bytes_per_ms, rate)
        };
        *known = Some(known.map_or(value, |mean| mean + (value - mean) / 8.0));
    }

    /// How many bytes may be under way ahead of their readers.
    pub(super) fn ahead_bytes(&self) -> u64 {
        self.bytes_per_ms.map_or(AHEAD_BYTES_UNKNOWN, |rate| {
            (rate * AHEAD.as_millis() as f64) as u64
        })
    }

    /// How large the pieces of what is fetched ahead may be.
    pub(super) fn ahead_piece_bytes(&self) -> u32 {
        let bytes = self
            .bytes_per_ms
            .map_or(f64::INFINITY, |rate| rate * AHEAD_PIECE.as_millis() as f64);
        bytes.clamp(PIECE_BYTES_MIN, MAX_SEGMENT_BYTES as f64) as u32
    }

    /// How large the pieces of a window should be.
    pub(super) fn piece_bytes(&self) -> u32 {
        let bytes = self
            .bytes_per_ms
            .map_or(f64::INFINITY, |rate| PIECE_LATENCIES * self.latency_ms() * rate);
        bytes.clamp(PIECE_BYTES_MIN, MAX_SEGMENT_BYTES as f64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::LinkEstimate;
    use std::time::Duration;

    #[test]
    fn pieces_are_small_on_a_slow_line_and_whole_on_a_fast_one() {
        let mut link = LinkEstimate::default();
        for _ in 0..50 {
            link.observe(1000, Duration::from_millis(12));
            link.observe(1_250_000, Duration::from_millis(112));
        }
        // 100 Mbit/s and 12 ms.
        assert!(
            (262_144..400_000).contains(&link.piece_bytes()),
            "{}",
            link.piece_bytes()
        );
        for _ in 0..50 {
            link.observe(4_000_000, Duration::from_millis(14));
        }
        assert!(link.piece_bytes() > 4 << 20, "{}", link.piece_bytes());
    }
}
