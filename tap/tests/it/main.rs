//! The gateway on real sockets, against an endpoint that does what each test says.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets what it does not expect has to fail there"
)]

mod support;

mod leader;

mod streams;

mod whole;

mod ends;

mod dialects;

mod every_trap;

mod sessions;

mod refusals;

mod channels;

mod gateways;

mod endpoints;

mod controls;

mod probes;

mod proxy;

mod static_program;
