# `make demo` and `make test` are all a newcomer needs; `make help` lists the rest.
# Each target installs what it lacks, says so, and is quick the second time.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-web build soak bench fuzz wheel static prepare clean
.PHONY: environments suites clients package exports

TRIPLE := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
STATIC := $(CURDIR)/target/static/$(TRIPLE)/tap/dressage-tap

# The static program for inside sandboxes: embedded in `dressage`, and run by the tests.
export DRESSAGE_TAP_BINARY := $(STATIC)

# Programs and tests of the same libraries, which are then built once.
AS_TESTS := --features dressage/as-tests

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: build ## run a real agent in a sandbox, from task to reward; no network, no key
	@target/release/dressage agents install opencode
	@target/release/dressage demo

build: prepare static ## build target/release/{dressage,dressage-tap}
	scripts/pathless cargo build --release --locked -p dressage
	@install -m 755 "$(STATIC)" target/release/dressage-tap
	@ls -l target/release/dressage target/release/dressage-tap | awk '{ printf "%s  %.1f MB\n", $$NF, $$5 / 1e6 }'

test: prepare ## formatting, lints, all tests, docs
	cargo fmt --all --check
	@$(MAKE) --no-print-directory --jobs 2 static environments
	cargo clippy --workspace --all-targets --locked $(AS_TESTS) -- -D warnings
	cargo build --workspace --bins --locked $(AS_TESTS)
	@target/debug/dressage agents install opencode qwen-code
	cargo test --workspace --locked --no-run $(AS_TESTS)
	@scripts/docker-engine start >/dev/null || [ $$? -eq 3 ]
	@$(MAKE) --no-print-directory --jobs 2 suites clients package exports; failed=$$?; scripts/docker-engine stop; exit $$failed
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked $(AS_TESTS)

test-web: prepare ## the page in a real browser, against the program that `make test` built
	scripts/web-tests target/debug/dressage

# The parts of `test` that are done two at once: each waits for the network, a sandbox or a client about as long as it computes.
environments: prepare
	scripts/prepare-tests

# The cases of property tests are the same each time; `make soak` and `make fuzz` make up new ones.
suites: export PROPTEST_RNG_SEED := 1
suites:
	scripts/emulators cargo test --workspace --locked --no-fail-fast $(AS_TESTS)

clients:
	scripts/client-tests target/debug/dressage

package:
	scripts/python-tests target/debug/dressage

exports:
	scripts/export-tests target/debug/dressage

soak: build ## the full counts: kills, thousands of rollouts, every agent, the real llama.cpp; sums up in docs/soak.md
	@scripts/prepare /usr/bin/pip3=python3-pip
	@target/release/dressage agents install
	scripts/soak

wheel: build ## build the Python package, which carries the program, into target/wheels
	scripts/wheel release target/wheels
	@ls -l target/wheels | awk 'NR > 1 { printf "%s  %.1f MB\n", $$NF, $$5 / 1e6 }'

bench: build ## measure, and write docs/benchmarks.md
	scripts/pathless cargo build --release --locked -p dressage-testkit --bins
	scripts/pathless cargo build --release --locked -p dressage-tap -p dressage-sandbox -p dressage-rollout -p dressage-store --examples
	scripts/bench

fuzz: ## look for bytes that break a parser or a translator, five minutes each; what it finds is kept in fuzz/
	scripts/fuzz 300

# Nothing in it unwinds: panics abort, and without symbols there is nothing that a backtrace could say.
static: prepare
	@RUSTFLAGS="-C target-feature=+crt-static -C link-arg=-Wl,--no-eh-frame-hdr" scripts/pathless cargo build --locked --quiet --profile tap \
		--target $(TRIPLE) --target-dir target/static -p dressage-tap --bin dressage-tap --no-default-features

prepare:
	@scripts/prepare

clean: ## remove what was built
	cargo clean
