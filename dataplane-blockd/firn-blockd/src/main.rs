//! `firn-blockd`: disk nodes, and virtual disks on them. See the library of this package.

/// Requests allocate on one thread and are freed on another, for which the C library's allocator takes its locks: a sixth of the
/// time of a node with random writes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    firn_blockd::program()
}
