//! How the C library's allocator keeps memory: little of it.
//!
//! By default it gives each of many threads an arena of its own, and, once a large buffer was freed, takes later ones from
//! arenas too, where they leave holes that are never given back. An edge moves buffers of 256 KiB to 4 MiB between the
//! network, the journal and the cloud all day, so a process grows by half of what its caches and queues are meant to hold.
//! Few arenas, and large buffers straight from the kernel and back to it, keep it near what it accounts for.

/// Threads contend for an arena for nanoseconds; each more costs megabytes of holes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS: i32 = 2;

/// Buffers from this size on are mapped by themselves. Setting it also ends its growing.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM_BYTES: i32 = 128 << 10;

/// To be called before any thread is started. Other C libraries have other allocators; there it does nothing.
pub fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt takes two numbers by value and changes parameters of the allocator under its own lock; no memory that
    // was or will be given out becomes invalid by it. A parameter that it does not know is refused and changes nothing.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
    }
}
