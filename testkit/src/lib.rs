//! Scripted peers.
