//! Breadth-first search of all states of a model, with the shortest counterexample.
//!
//! States are recognised by 64 bits of a hash: of a hundred million states two share one with a probability of 1 in 3,700, and would hide
//! what lies behind one of them. States themselves are kept only while their successors are made; a trace is made by going its steps once
//! more from the beginning.
//!
//! **Progress**: from every state a state must be reachable in which everything that was begun is done, without any further fault and without new
//! work. Steps are kept for that as edges, and followed backwards from what is done. Where the search ended early that cannot be judged.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasherDefault, Hash, Hasher},
};

/// What can be explored.
pub trait Model {
    /// Equal states have equal futures.
    type State: Clone + Eq + Hash;
    /// From one to the next.
    type Step: Copy + fmt::Display;

    /// Where it begins.
    fn initial(&self) -> Self::State;
    /// All that can happen.
    fn steps(&self, state: &Self::State) -> Vec<Self::Step>;
    /// What it does, or which promise it breaks.
    ///
    /// # Errors
    /// The promise.
    fn take(&self, state: &Self::State, step: Self::Step) -> Result<Self::State, String>;
    /// What must hold in every state.
    ///
    /// # Errors
    /// The promise.
    fn check(&self, state: &Self::State) -> Result<(), String>;
    /// Whether a step is a fault or new work, on which progress may not depend.
    fn is_from_outside(&self, step: Self::Step) -> bool;
    /// Whether everything that was begun is done.
    fn is_done(&self, state: &Self::State) -> bool;
    /// For a reader of a trace.
    fn describe(&self, state: &Self::State) -> String;
}

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Steps from the beginning.
    pub depth: usize,
    /// Distinct states.
    pub states: usize,
}

/// A history that breaks a promise.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// Which.
    pub promise: String,
    /// Step by step, with the state behind each.
    pub trace: Vec<(String, String)>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (step, state)) in self.trace.iter().enumerate() {
            writeln!(formatter, "  {:>2}. {step}\n        {state}", number + 1)?;
        }
        write!(formatter, "  => {}", self.promise)
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Distinct states.
    pub states: usize,
    /// Steps between them.
    pub edges: usize,
    /// Steps of the longest of the shortest ways to a state.
    pub depth: usize,
    /// Whether no state is left; otherwise progress was not judged.
    pub is_whole: bool,
    /// The first promise that was broken.
    pub broken: Option<Counterexample>,
}

struct Node<S> {
    from: u32,
    step: Option<S>,
}

struct Search<'a, M: Model> {
    model: &'a M,
    nodes: Vec<Node<M::Step>>,
    // Backwards: (to, from) of steps that are not from outside.
    edges: Vec<(u32, u32)>,
    done: Vec<u32>,
    numbers: HashMap<u64, u32, BuildHasherDefault<Identity>>,
}

/// Digests are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("digests are numbers");
    }

    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }
}

/// A multiply-and-fold hash, keyed by fractions of pi: nobody chooses states to collide, and most of the search is hashing.
struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * u128::from(0x243f_6a88_85a3_08d3_u64);
        self.0 = (product as u64) ^ ((product >> 64) as u64).rotate_left(23) ^ 0x1319_8a2e_0370_7344;
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.mix(0xa409_3822_299f_31d0);
        last.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut value = [0; 8];
            value[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(value));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

fn digest(state: &impl Hash) -> u64 {
    let mut mixer = Mixer(0);
    state.hash(&mut mixer);
    mixer.finish()
}

/// Goes through all states within the limits, the nearest first.
///
/// # Panics
/// If there are more than 2^32 states, which no memory holds.
pub fn explore<M: Model>(model: &M, limits: Limits) -> Explored {
    let initial = model.initial();
    let mut search = Search {
        model,
        nodes: Vec::new(),
        edges: Vec::new(),
        done: Vec::new(),
        numbers: HashMap::default(),
    };
    search.numbers.insert(digest(&initial), 0);
    search.nodes.push(Node { from: 0, step: None });
    if model.is_done(&initial) {
        search.done.push(0);
    }
    let mut level = vec![(0, initial)];
    let (mut depth, mut edges) = (0, 0);
    while !level.is_empty() && depth < limits.depth && search.nodes.len() < limits.states {
        let mut next = Vec::new();
        for (number, state) in &level {
            for step in model.steps(state) {
                edges += 1;
                match search.follow(*number, state, step) {
                    Ok(None) => {}
                    Ok(Some(new)) => next.push(new),
                    Err(promise) => {
                        let broken = Some(search.counterexample(*number, Some(step), promise));
                        let states = search.nodes.len();
                        return Explored {
                            states,
                            edges,
                            depth: depth + 1,
                            is_whole: false,
                            broken,
                        };
                    }
                }
            }
        }
        depth += usize::from(!next.is_empty());
        level = next;
    }
    let is_whole = level.is_empty();
    let stuck = if is_whole { search.stuck() } else { None };
    let promise = "progress: what was begun can never be done, though nothing fails any more";
    Explored {
        states: search.nodes.len(),
        edges,
        depth,
        is_whole,
        broken: stuck.map(|number| search.counterexample(number, None, promise.to_owned())),
    }
}

impl<M: Model> Search<'_, M> {
    fn follow(
        &mut self,
        from: u32,
        state: &M::State,
        step: M::Step,
    ) -> Result<Option<(u32, M::State)>, String> {
        let reached = self.model.take(state, step)?;
        let unused = u32::try_from(self.nodes.len()).expect("states are bounded");
        let number = *self.numbers.entry(digest(&reached)).or_insert(unused);
        if !self.model.is_from_outside(step) && number != from {
            self.edges.push((number, from));
        }
        if number != unused {
            return Ok(None);
        }
        self.nodes.push(Node {
            from,
            step: Some(step),
        });
        self.model.check(&reached)?;
        if self.model.is_done(&reached) {
            self.done.push(number);
        }
        Ok(Some((number, reached)))
    }

    /// The nearest state from which nothing that is done can be reached.
    fn stuck(&mut self) -> Option<u32> {
        self.edges.sort_unstable();
        let mut can_end = vec![false; self.nodes.len()];
        let mut waiting = std::mem::take(&mut self.done);
        for number in &waiting {
            can_end[*number as usize] = true;
        }
        while let Some(number) = waiting.pop() {
            let first = self.edges.partition_point(|(to, _)| *to < number);
            for (_, from) in self.edges[first..].iter().take_while(|(to, _)| *to == number) {
                if !std::mem::replace(&mut can_end[*from as usize], true) {
                    waiting.push(*from);
                }
            }
        }
        let stuck = can_end.iter().position(|can_end| !can_end)?;
        u32::try_from(stuck).ok()
    }

    fn counterexample(&self, mut number: u32, last: Option<M::Step>, promise: String) -> Counterexample {
        let mut steps: Vec<M::Step> = last.into_iter().collect();
        while let Some(step) = self.nodes[number as usize].step {
            steps.push(step);
            number = self.nodes[number as usize].from;
        }
        steps.reverse();
        let mut state = self.model.initial();
        let mut trace = Vec::with_capacity(steps.len());
        for step in steps {
            let described = match self.model.take(&state, step) {
                Ok(reached) => {
                    state = reached;
                    self.model.describe(&state)
                }
                Err(_) => "here the promise is broken".to_owned(),
            };
            trace.push((step.to_string(), described));
        }
        Counterexample { promise, trace }
    }
}

#[cfg(test)]
mod tests {
    use super::digest;
    use std::collections::HashSet;

    #[test]
    fn a_million_states_that_differ_in_little_have_a_million_digests() {
        let states =
            (0..100_u8).flat_map(|a| (0..100_u16).flat_map(move |b| (0..100_u64).map(move |c| (a, b, c, a))));
        let digests: HashSet<u64> = states.map(|state| digest(&state)).collect();
        assert_eq!(digests.len(), 1_000_000);
    }
}
