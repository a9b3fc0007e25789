//! The gateway that agents' calls pass through.
