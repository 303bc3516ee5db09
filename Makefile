# Two commands: `make run` shows the main job working, `make test` passes the tests. Both set everything up themselves.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The first interpreter that runs and is new enough; PYTHON=... chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
VENV := .venv
PY := $(VENV)/bin/python
CEXT := $(wildcard cext/*.pyx cext/*.pxd) setup.py
ARGS ?=
FUZZ_SECONDS ?= 120
SOAK_SECONDS ?= 600
# Most end-to-end tests wait for leases and processes; a file stays with one worker.
WORKERS ?= 2

.PHONY: help build run test lint interop fuzz soak bench annotate coverage sanitize clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{ printf "%-9s %s\n", $$1, $$2 }'

$(VENV)/.deps: requirements/dev.lock
	@test -n "$(PYTHON)" || { echo "Sidecar needs Python >= 3.11; none was found (set PYTHON=...)" >&2; exit 1; }
	@echo "Installing what is pinned and compiling the extensions: a minute or two, and only once"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@touch $@

# compat: a program that lies beside a checkout with the name `sidecar` would import that directory and not the package
$(VENV)/.package: $(VENV)/.deps pyproject.toml
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--config-settings editable_mode=compat -e .
	@touch $@

$(VENV)/.cext: $(VENV)/.package $(CEXT)
	$(PY) setup.py --quiet build_ext --inplace
	@# where PYTHONDONTWRITEBYTECODE is set, each of the many processes would compile what it imports anew
	@$(PY) -m compileall -q cext sidecar tests
	@touch $@

build: $(VENV)/.cext ## virtual environment, pinned dependencies, compiled extensions

run: build ## start everything on loopback and walk through the main job (ARGS=--once exits after the tour)
	@$(VENV)/bin/sidecar dev --demo $(ARGS)

test: build ## all tests; writes build/junit.xml
	@mkdir -p build
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -p no:benchmark --junitxml build/junit.xml $(ARGS)

lint: build ## ruff and mypy --strict
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

annotate: build ## what Cython made of each line of cext, as HTML in build/annotate/cext
	$(PY) tools/variant.py annotate

coverage: build ## coverage of cext and the wire by their tests, from a tracing build in build/coverage
	$(PY) tools/variant.py coverage

sanitize: build ## the same tests and a seeded fuzz under AddressSanitizer and UBSan, in build/sanitize
	$(PY) tools/variant.py sanitize

INTEROP := tests/interop/js

$(INTEROP)/node_modules/.package-lock.json: $(INTEROP)/package-lock.json
	@command -v npm >/dev/null || { echo "This needs Node.js >= 18 with npm" >&2; exit 1; }
	npm ci --prefix $(INTEROP) --silent --no-audit --no-fund
	@touch $@

interop: build $(INTEROP)/node_modules/.package-lock.json ## messaging and endpoints with the stock NATS JavaScript client (needs Node.js)
	@mkdir -p build
	$(PY) -m pytest --junitxml build/junit-interop.xml -o addopts="-q -ra --strict-markers -p no:cacheprovider" $(ARGS) $(INTEROP)

fuzz: build ## compare cext and the wire with their oracles for FUZZ_SECONDS (120); ARGS="--seed N" repeats a run
	$(PY) -m tests.fuzz --seconds $(FUZZ_SECONDS) $(ARGS)

soak: build ## 64 clients do everything at once for SOAK_SECONDS (600) against one server; ARGS="--seed N" repeats a run
	$(PY) -m tests.soak --seconds $(SOAK_SECONDS) $(ARGS)

bench: build ## medians beside plain-Python oracles and floors; only measures, never fails on time
	$(PY) -m pytest $(ARGS) $(sort $(wildcard tests/bench/test_bench_*.py))

clean: ## remove what was built
	rm -rf $(VENV) build dist *.egg-info cext/*.c cext/*.so cext/*.html
