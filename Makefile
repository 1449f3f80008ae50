# Build, test and run Innoscope from a source tree. `make help` lists the targets.

SHELL := /bin/bash
PYTHON := .venv/bin/python
SETUP_INPUTS := pyproject.toml packaging/setup.sh agent/native/Cargo.toml agent/native/Cargo.lock agent/native/build.rs \
	$(shell find agent/native/src probes/snapshot probes/profile probes/include -type f 2>/dev/null)
NAME ?= mysql-5.6.24
WORKLOAD ?= idle
SECONDS := 60
TRIPLE := x86_64-unknown-linux-gnu

.PHONY: help setup run unit test test-all lint format packages fuzz asan bench server incident dashboards pictures clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready ## build everything into .venv (.venv/bin/innoscope)

.venv/.ready: $(SETUP_INPUTS)
	packaging/setup.sh
	@touch $@

.venv/.ready-dev: $(SETUP_INPUTS)
	packaging/setup.sh test,lint
	@touch .venv/.ready $@

run: .venv/.ready ## first stack dump of the server on this host, or of a throw-away one
	PYTHONPATH=tests $(PYTHON) -m demo

unit: .venv/.ready-dev ## the unit tests, in less than 90 s: no root, no network, no servers
	.venv/bin/pytest -q -n 2 --dist worksteal tests/unit

test: .venv/.ready-dev ## what every change must pass, on five real servers: less than 20 minutes
	tests/run.sh

test-all: .venv/.ready-dev ## all tests, with all repetitions and the incident lab: two to three hours
	tests/run.sh --full

lint: .venv/.ready-dev ## ruff, mypy --strict, rustfmt, clippy, clang-format
	packaging/lint.sh

format: .venv/.ready-dev ## let the formatters write
	.venv/bin/ruff check --fix-only --quiet agent dashboards packaging tests
	cd agent/native && cargo fmt
	clang-format -i probes/snapshot/*.[ch] probes/profile/*.[ch]

packages: .venv/.ready ## dist/*.deb (Debian 12) and dist/*.rpm; SIGN_KEY=… signs them
	packaging/packages.sh $(if $(SIGN_KEY),--sign-key "$(SIGN_KEY)")

fuzz: .venv/.ready-dev ## fuzz all that reads foreign input: make fuzz SECONDS=3600 TARGETS="elf pack"
	PYTHONPATH=tests $(PYTHON) -m fuzz --seconds $(SECONDS) $(TARGETS)

asan: ## the Rust core's tests under AddressSanitizer
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address cargo test --manifest-path agent/native/Cargo.toml \
		--target $(TRIPLE) --target-dir agent/native/target/asan --release --no-default-features --quiet -- \
		--skip less_than_50_ms  # its subject is time, of which ASan takes several times as much

bench: .venv/.ready ## the tables of docs/performance.md, measured here
	PYTHONPATH=tests $(PYTHON) -m bench

server: .venv/.ready ## run a test server: make server NAME=mysql-5.6.24 WORKLOAD=row_lock
	PYTHONPATH=tests $(PYTHON) -m servers start $(NAME) --workload $(WORKLOAD)

incident: NAME :=
incident: .venv/.ready ## a stall to look at, and what diagnose says: make incident NAME=row-lock-97; which, without NAME
	@PYTHONPATH=tests $(PYTHON) -m incidents $(NAME)

dashboards: .venv/.ready ## make dashboards/grafana/*.json again from dashboards/generate
	PYTHONPATH=dashboards $(PYTHON) -m generate

pictures: .venv/.ready-dev ## make the pictures of docs/dashboards again, from servers under load
	PYTHONPATH=tests $(PYTHON) -m pictures

clean: ## remove what was built (downloads stay)
	rm -rf .venv build dist agent/native/target agent/innoscope/*.so agent/innoscope.egg-info
