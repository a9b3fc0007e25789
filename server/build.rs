//! Hands the bytes of `dressage-tap` to the program that embeds them.

use std::path::Path;
use std::process::exit;

const VARIABLE: &str = "DRESSAGE_TAP_BINARY";

fn main() {
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    println!("cargo:rerun-if-changed=build.rs");
    let Some(path) = std::env::var_os(VARIABLE) else {
        fail(&format!("{VARIABLE} is not set"));
    };
    let path = match Path::new(&path).canonicalize() {
        Ok(path) => path,
        Err(error) => fail(&format!(
            "{VARIABLE} names {}, which cannot be read: {error}",
            Path::new(&path).display()
        )),
    };
    println!("cargo:rerun-if-changed={}", path.display());
    let Some(out) = std::env::var_os("OUT_DIR") else {
        fail("cargo did not set OUT_DIR")
    };
    if let Err(error) = std::fs::copy(&path, Path::new(&out).join("dressage-tap")) {
        fail(&format!("{} cannot be copied: {error}", path.display()));
    }
}

/// Ends the build with what to do, instead of an error inside `include_bytes!`.
fn fail(what: &str) -> ! {
    eprintln!(
        "dressage embeds the static program dressage-tap, and {what}.\n\
         Run `make build`, which builds dressage-tap first and hands its path to this build;\n\
         or set {VARIABLE} to the path of a dressage-tap that was built with\n\
         RUSTFLAGS=\"-C target-feature=+crt-static\" scripts/pathless cargo build -p dressage-tap --no-default-features \
         --profile tap --target x86_64-unknown-linux-gnu --target-dir target/static"
    );
    exit(1)
}
