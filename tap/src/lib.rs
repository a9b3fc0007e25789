//! The gateway that agents' calls pass through, as a library; and what the program `dressage-tap` does inside
//! sandboxes.

/// The command line of `dressage-tap`: `relay`, `init`, `proxy`.
pub mod cli;
