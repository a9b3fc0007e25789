use std::ffi::OsString;
use std::process::ExitCode;

const USAGE: &str = "usage: dressage-tap <init|relay|proxy> [options]";

/// Runs the subcommand that the first argument names.
#[must_use]
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let name = arguments.next();
    match name.as_deref().and_then(|name| name.to_str()) {
        Some("init") => crate::init::main(arguments.collect()),
        Some("guard") => crate::guard::main(arguments.collect()),
        Some("leader") => crate::leader::main(arguments.collect()),
        Some("drain") => crate::leader::drain(),
        Some("relay") => crate::relay::main(arguments.collect()),
        Some("proxy") => crate::proxy::main(arguments.collect()),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
