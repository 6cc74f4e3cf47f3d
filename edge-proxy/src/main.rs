//! `firn-edge`: the appliance in a branch office. See the library of this package.

fn main() -> std::process::ExitCode {
    firn_edge::program()
}
