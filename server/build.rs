//! Hands the bytes of `dressage-tap`, and the files of the page, to the program that embeds them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
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
    if let Err(error) = page(Path::new(&out)) {
        eprintln!("the files of the page in `{PAGE}` cannot be read: {error}");
        exit(1)
    }
}

/// Where the files of the page are.
const PAGE: &str = "../ui/page";

/// Writes the table of the page's files: the path below [`PAGE`], and the bytes.
fn page(out: &Path) -> std::io::Result<()> {
    println!("cargo:rerun-if-changed={PAGE}");
    let root = Path::new(PAGE).canonicalize()?;
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for path in files {
        let name = path.strip_prefix(&root).map_err(std::io::Error::other)?;
        // A string takes everything.
        _ = writeln!(table, "    ({name:?}, include_bytes!({path:?})),");
    }
    table.push_str("]\n");
    std::fs::write(out.join("page.rs"), table)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
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
