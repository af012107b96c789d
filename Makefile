# The two commands that matter: `make demo` and `make test`. Both set themselves up.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Warnings from the installer about its own configuration are none of our business here.
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# Programs in other languages that the tests talk to.
TOOLS := .tools
AIMOCK := $(TOOLS)/node_modules/@copilotkit/aimock/package.json
AIMOCK_VERSION := 1.43.0
EVERYTHING := $(TOOLS)/node_modules/@modelcontextprotocol/server-everything/package.json
EVERYTHING_VERSION := 2026.8.31

.DEFAULT_GOAL := help
.PHONY: help demo test lint types imports unit peers docs wheel soak bench bench-quick format clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(PIP) install -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[dev]'
	@touch $@ $(VENV)/.core

demo: $(VENV)/.core  ## the first minute: complete, stream and a typed answer, with no key
	@$(BIN)/python examples/demo.py

test: lint types imports unit docs wheel  ## every check; what CI runs

lint: $(VENV)/.dev  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## mypy, strict, over package and tests
	$(BIN)/mypy

imports: $(VENV)/.dev  ## imports point downward
	$(BIN)/lint-imports

unit: $(VENV)/.dev peers  ## the test suite with branch coverage
	$(BIN)/python -m pytest -n auto --maxprocesses=4 -m 'not soak and not alone' --cov --cov-report=
	$(BIN)/python -m pytest -m 'alone and not soak' --cov --cov-append --cov-report=term:skip-covered --cov-fail-under=95

peers:  ## other people's servers to test against; without npm or network their tests are skipped
	@if [ -e $(AIMOCK) ] && [ -e $(EVERYTHING) ]; then :; \
	elif ! command -v npm >/dev/null; then echo "There is no npm: the tests against aimock and server-everything will be skipped."; \
	else mkdir -p $(TOOLS) && npm install --prefix $(TOOLS) --no-package-lock --no-audit --no-fund --ignore-scripts \
		--fetch-retries=1 --fetch-timeout=30000 @copilotkit/aimock@$(AIMOCK_VERSION) \
		@modelcontextprotocol/server-everything@$(EVERYTHING_VERSION) >$(TOOLS)/npm.log 2>&1 \
		|| echo "The peers cannot be installed (see $(TOOLS)/npm.log): the tests against them will be skipped."; fi

docs: $(VENV)/.dev  ## build the documentation, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(VENV)/.dev  ## build the wheel and try it in an empty environment
	rm -rf dist build/wheel-env
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	$(PYTHON) -m venv build/wheel-env
	build/wheel-env/bin/python -m pip --disable-pip-version-check -q install dist/*.whl
	cd build && wheel-env/bin/python ../scripts/smoke.py

soak: $(VENV)/.dev  ## the slow suites: every byte, many rounds
	$(BIN)/python -m pytest -m soak --timeout=3600
	AGENT_TEST_RANDOM=1 $(BIN)/python -m pytest --timeout=3600 tests/types tests/schemas tests/providers tests/routing tests/loop tests/graph

bench: bench-quick  ## all benchmarks

bench-quick: $(VENV)/.dev  ## our cost as a ratio to floors measured in the same run
	$(BIN)/python -m benchmarks.quick

format: $(VENV)/.dev  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what was built
	rm -rf $(VENV) $(TOOLS) build dist site .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
