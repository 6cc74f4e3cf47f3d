//! Bytes of objects, pointers, segments, checkpoints and journals. Pure: no I/O, no keys.
