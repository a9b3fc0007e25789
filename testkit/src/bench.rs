//! Measuring speed: an upstream that only copies, a load generator, a byte-copy proxy, and the driver of them all.
//!
//! Every repetition runs all targets back to back in one scenario, so that a busy machine slows them all alike; what is
//! reported are medians over repetitions and ratios taken within each.

/// An upstream that renders a reply once and then only copies it out.
pub mod upstream;

/// A closed loop of clients that check every turn.
pub mod load;

/// The physical limit: a proxy that copies bytes.
pub mod floor;

/// Programs under measurement: started, watched, ended.
pub mod process;

/// What is measured, by name, and how often.
pub mod measurement;

/// Measurement: proxies between the upstream and the clients.
pub mod proxies;

/// Measurement: how long a program takes to answer, and what it holds then.
pub mod startup;

/// Many listeners of one feed of events.
pub mod listeners;

/// Measurement: what another program prints.
pub mod external;

/// Goals, and whether they are met.
pub mod goal;

/// Results as JSON and as tables.
pub mod report;
