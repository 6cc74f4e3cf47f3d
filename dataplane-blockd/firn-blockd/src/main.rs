//! `firn-blockd`: disk nodes, and virtual disks on them. See the library of this package.

fn main() -> std::process::ExitCode {
    firn_blockd::program()
}
