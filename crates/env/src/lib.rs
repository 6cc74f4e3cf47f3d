//! Clock, randomness, disk, network and tasks: the real ones and the deterministic simulated ones, with fault points.
