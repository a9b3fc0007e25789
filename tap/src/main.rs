//! `dressage-tap`: the small static program for inside sandboxes.

use std::process::ExitCode;

fn main() -> ExitCode {
    dressage_tap::cli::main(std::env::args_os().skip(1).collect())
}
