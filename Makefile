# Build, test and run Innoscope from a source tree. `make help` lists the targets.

SHELL := /bin/bash
PYTHON := .venv/bin/python
SETUP_INPUTS := pyproject.toml packaging/setup.sh agent/native/Cargo.toml agent/native/Cargo.lock agent/native/build.rs \
	$(shell find agent/native/src probes/snapshot probes/profile probes/include -type f 2>/dev/null)
# Cache compiled modules even if the environment forbids it: the tests start thousands of Python processes.
unexport PYTHONDONTWRITEBYTECODE
NAME ?= mysql-5.6.24
WORKLOAD ?= idle
SECONDS := 60

.PHONY: help setup run unit test test-all lint format packages image fuzz asan bench kernels server incident dashboards pictures site clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready ## build everything into .venv (.venv/bin/innoscope)

.venv/.ready: $(SETUP_INPUTS)
	packaging/setup.sh
	@touch $@

.venv/.ready-dev: $(SETUP_INPUTS)
	packaging/setup.sh test,lint
	@touch .venv/.ready $@

run: .venv/.ready ## dump and monitor the server on this host, or a temporary one
	PYTHONPATH=tests $(PYTHON) -m demo

unit: .venv/.ready-dev ## the unit tests, in less than 90 s: no root, no network, no servers
	.venv/bin/pytest -q -n 2 --dist worksteal tests/unit

test: .venv/.ready-dev ## the tests that every change must pass, on real servers: less than 20 minutes
	tests/run.sh

test-all: .venv/.ready-dev ## all tests, with all repetitions, the incident lab and other kernels: four to five hours
	tests/run.sh --full

lint: .venv/.ready-dev ## ruff, mypy --strict, rustfmt, clippy, clang-format
	packaging/lint.sh

format: .venv/.ready-dev ## run the formatters
	.venv/bin/ruff format --quiet agent dashboards packaging tests
	cd agent/native && cargo fmt
	clang-format -i probes/snapshot/*.[ch] probes/profile/*.[ch] probes/trace/*.c probes/uprobes/*.c probes/include/*.h

packages: .venv/.ready ## dist/: a .deb, .rpms for Fedora and RHEL, a .tar.gz; SIGN_KEY=… signs them, MAINTAINER=… names you
	packaging/packages.sh $(if $(SIGN_KEY),--sign-key "$(SIGN_KEY)")

image: .venv/.ready ## dist/: an OCI image, made from the .deb that `make packages` has built: docs/kubernetes.md
	packaging/image.sh

fuzz: .venv/.ready-dev ## fuzz all code that reads untrusted input: make fuzz SECONDS=3600 TARGETS="elf pack"
	PYTHONPATH=tests $(PYTHON) -m fuzz --seconds $(SECONDS) $(TARGETS)

asan: .venv/.ready-dev ## the Rust core's tests under AddressSanitizer
	tests/asan.sh

bench: .venv/.ready ## measure the tables of docs/performance.md on this machine
	PYTHONPATH=tests $(PYTHON) -m bench

kernels: .venv/.ready-dev ## run Innoscope on other kernels, in a virtual machine: docs/kernels.md; two and a half hours
	PYTHONPATH=tests:packaging $(PYTHON) -m kernels

server: .venv/.ready ## run a test server: make server NAME=mysql-5.6.24 WORKLOAD=row_lock
	PYTHONPATH=tests $(PYTHON) -m servers start $(NAME) --workload $(WORKLOAD)

incident: NAME :=
incident: .venv/.ready ## reproduce and diagnose a stall: make incident NAME=row-lock-97; without NAME, list all stalls
	@PYTHONPATH=tests $(PYTHON) -m incidents $(NAME)

dashboards: .venv/.ready ## rebuild dashboards/grafana/*.json from dashboards/generate, and the rules of the mixin
	PYTHONPATH=dashboards $(PYTHON) -m generate

pictures: .venv/.ready-dev ## redraw the pictures of docs/dashboards, from servers under load
	PYTHONPATH=tests $(PYTHON) -m pictures

site: .venv/.ready ## build/site: the documentation as a web site, one directory for each version
	PYTHONPATH=packaging $(PYTHON) -m website

clean: ## remove everything that was built, but no downloads
	rm -rf .venv build dist agent/native/target agent/innoscope/*.so agent/innoscope.egg-info
