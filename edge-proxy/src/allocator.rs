//! How the allocator keeps memory: not at all.
//!
//! An edge moves buffers of 20 KiB to 4 MiB between the network, the journal and the cloud all day, freed by other threads
//! than those that made them. Kept for reuse, as is the default, they add half to what caches and queues are meant to hold:
//! while `make bounds` wrote its 200,000 files, a resident 667 MiB instead of 450 to 510 (then; `docs/bounds.md` has the present figure).

use std::ffi::{c_int, c_long};

/// Every request of every client allocates; the C library's allocator asked the kernel for each page anew.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 2 and 3: after so many milliseconds freed pages go back to the kernel.
const PURGE_DELAY: c_int = 15;

/// To be called before other threads are started.
pub fn keep_little() {
    const AT_ONCE: c_long = 0;
    // SAFETY: takes two numbers by value and stores one in mimalloc's table of options, which checks the index and is read
    // when pages are freed; no memory that was or will be given out becomes invalid by it.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, AT_ONCE) }
}
