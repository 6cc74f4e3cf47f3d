//! The model: what a disk may hold after a crash.

/// A write of one block, in the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Which block.
    pub block: u64,
    /// What was written; 0 is zeroes.
    pub number: u64,
    /// Flushes before it that followed a write.
    pub epoch: u64,
}

/// All that was submitted since the last time the disk was known, and what was promised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promises {
    /// What the disk held at first.
    pub base: Vec<u64>,
    /// Writes since.
    pub pieces: Vec<Piece>,
    /// All pieces before this one were answered as durable by a flush (or, in a log, by FUA).
    pub prefix: usize,
    /// Pieces answered as durable by themselves.
    pub durable: Vec<usize>,
}

impl Promises {
    /// A disk that is known.
    pub fn new(base: Vec<u64>) -> Self {
        Self {
            base,
            ..Self::default()
        }
    }

    /// What a reader sees without a crash.
    pub fn newest(&self, blocks: u64) -> Vec<u64> {
        let mut content = self.base.clone();
        content.resize(blocks as usize, 0);
        for piece in &self.pieces {
            content[piece.block as usize] = piece.number;
        }
        content
    }

    /// Requires that `content` is exactly some prefix of the pieces, with all that was promised. Returns how many pieces are
    /// lost at least.
    ///
    /// # Errors
    /// If it is none.
    pub fn check_prefix(&self, content: &[u64]) -> Result<usize, String> {
        let promised = self
            .durable
            .iter()
            .map(|piece| piece + 1)
            .max()
            .unwrap_or(0)
            .max(self.prefix);
        let blocks = self.blocks(content);
        let mut state = self.base.clone();
        state.resize(blocks, 0);
        let mut content = content.to_vec();
        content.resize(blocks, 0);
        let mut best = None;
        for count in 0..=self.pieces.len() {
            if count >= promised && state == content {
                best = Some(count);
            }
            if let Some(piece) = self.pieces.get(count) {
                state[piece.block as usize] = piece.number;
            }
        }
        best.map(|count| self.pieces.len() - count)
            .ok_or_else(|| self.complaint(&content, "no prefix of the writes"))
    }

    /// Requires I10: all of the epochs up to some R, any part of R + 1, nothing of those after; and all that was promised.
    /// Returns how many pieces are lost at least.
    ///
    /// # Errors
    /// If there is no such R.
    pub fn check_epochs(&self, content: &[u64]) -> Result<usize, String> {
        let blocks = self.blocks(content);
        let mut content = content.to_vec();
        content.resize(blocks, 0);
        let last = self.pieces.last().map_or(0, |piece| piece.epoch);
        // `whole` epochs are complete; the one with that number is the questionable one.
        let fitting = (0..=last + 1).rev().find(|whole| self.fits(&content, *whole));
        match fitting {
            Some(whole) => Ok(self.pieces.iter().filter(|piece| piece.epoch >= whole).count()),
            None => Err(self.complaint(&content, "no prefix of the epochs")),
        }
    }

    fn fits(&self, content: &[u64], whole: u64) -> bool {
        let promised_prefix = self.pieces[..self.prefix].iter().all(|piece| piece.epoch < whole);
        let promised_pieces = self
            .durable
            .iter()
            .all(|piece| self.pieces[*piece].epoch <= whole);
        if !promised_prefix || !promised_pieces {
            return false;
        }
        let mut state = self.base.clone();
        state.resize(content.len(), 0);
        for piece in self.pieces.iter().filter(|piece| piece.epoch < whole) {
            state[piece.block as usize] = piece.number;
        }
        (0_u64..).zip(content).all(|(block, number)| {
            let questionable = (0..)
                .zip(&self.pieces)
                .filter(|(_, piece)| piece.epoch == whole && piece.block == block);
            let last_durable = questionable
                .clone()
                .map(|(index, _)| index)
                .filter(|index| self.durable.contains(index))
                .max();
            let mut allowed =
                questionable.filter(|(index, _)| last_durable.is_none_or(|durable| *index >= durable));
            (last_durable.is_none() && state[block as usize] == *number)
                || allowed.any(|(_, piece)| piece.number == *number)
        })
    }

    fn blocks(&self, content: &[u64]) -> usize {
        let highest = self
            .pieces
            .iter()
            .map(|piece| piece.block as usize + 1)
            .max()
            .unwrap_or(0);
        content.len().max(self.base.len()).max(highest)
    }

    fn complaint(&self, content: &[u64], what: &str) -> String {
        let pieces: Vec<String> = self
            .pieces
            .iter()
            .map(|piece| format!("{}←{} (epoch {})", piece.block, piece.number, piece.epoch))
            .collect();
        format!(
            "the disk holds {content:?}, which is {what}: it held {:?}, then {}; promised: the first {} and {:?}",
            self.base,
            pieces.join(", "),
            self.prefix,
            self.durable
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promises(prefix: usize, durable: &[usize]) -> Promises {
        let piece = |block, number, epoch| Piece { block, number, epoch };
        Promises {
            base: vec![0, 0],
            pieces: vec![
                piece(0, 1, 0),
                piece(1, 2, 0),
                piece(0, 3, 1),
                piece(1, 4, 1),
                piece(0, 5, 2),
            ],
            prefix,
            durable: durable.to_vec(),
        }
    }

    #[test]
    fn a_prefix_of_epochs_and_a_part_of_the_next_is_allowed_and_nothing_else() {
        let check = |content: [u64; 2]| promises(0, &[]).check_epochs(&content).is_ok();
        for allowed in [[0, 0], [1, 0], [0, 2], [1, 2], [3, 2], [1, 4], [3, 4], [5, 4]] {
            assert!(check(allowed), "{allowed:?}");
        }
        for forbidden in [[3, 0], [0, 4], [5, 2], [5, 0], [9, 2]] {
            assert!(!check(forbidden), "{forbidden:?}");
        }
    }

    #[test]
    fn what_was_promised_must_be_there() {
        assert!(promises(2, &[]).check_epochs(&[1, 0]).is_err());
        assert!(promises(2, &[]).check_epochs(&[1, 2]).is_ok());
        assert!(promises(0, &[1]).check_epochs(&[1, 0]).is_err());
        assert!(promises(0, &[1]).check_epochs(&[0, 2]).is_ok());
        assert!(promises(0, &[3]).check_epochs(&[3, 2]).is_err());
        assert!(promises(0, &[4]).check_epochs(&[3, 4]).is_err());
    }

    #[test]
    fn a_log_holds_an_exact_prefix() {
        let check = |content: [u64; 2], prefix| promises(prefix, &[]).check_prefix(&content);
        assert_eq!(check([1, 2], 0), Ok(3));
        assert_eq!(check([5, 4], 5), Ok(0));
        assert!(check([0, 2], 0).is_err() && check([1, 4], 0).is_err() && check([1, 2], 3).is_err());
    }
}
