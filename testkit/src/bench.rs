//! Measuring speed: an upstream that only copies, a load generator, a byte-copy proxy and the driver of them all.
