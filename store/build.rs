//! A new migration is a change of the program.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
