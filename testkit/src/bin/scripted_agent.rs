//! `scripted_agent [run] [--base-url URL] [--api-key KEY] [--model NAME] [--arguments compact|verbatim] [--retries N]
//! [--misbehave NAME,…] < prompt`. Also takes the arguments and the configuration of `opencode run`.

use dressage_testkit::agent::{AgentOptions, run};
use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let variable = |name: &str| std::env::var(name).ok();
    if std::env::args().nth(1).as_deref() == Some("--version") {
        let printed = writeln!(std::io::stdout(), "{}", env!("CARGO_PKG_VERSION"));
        return if printed.is_ok() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    let options = match AgentOptions::read(std::env::args().skip(1), &variable) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    match run(
        &options,
        &variable,
        &mut std::io::stdin().lock(),
        &mut std::io::stdout().lock(),
    ) {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
