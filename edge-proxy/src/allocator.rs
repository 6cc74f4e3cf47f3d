//! Allocator tuning: freed memory is kept for a second.
//!
//! An edge moves buffers of 20 KiB to 4 MiB between the network, the journal and the cloud all day, freed by other threads
//! than those that made them. Given back to the kernel at once, each is faulted in anew, page by page, a millisecond later: three
//! page faults for each 4 KiB written. Kept for long, they add to what caches and queues are meant to hold. The figures,
//! and why it is a second: docs/decisions/0099-freed-memory-is-kept-for-a-moment.md.

use std::ffi::{c_int, c_long};

/// Every request of every client allocates; the C library's allocator asked the kernel for each page anew.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 2 and 3: after so many milliseconds freed pages go back to the kernel.
const PURGE_DELAY: c_int = 15;

/// What a burst of requests frees is taken by the next one; what is kept of it is at most what this time frees.
const KEPT_MS: c_long = 1000;

/// To be called before other threads are started.
pub fn keep_little() {
    // SAFETY: takes two numbers by value and stores one in mimalloc's table of options, which checks the index and is read
    // when pages are freed; no memory that was or will be given out becomes invalid by it.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, KEPT_MS) }
}
