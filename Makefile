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
# The libraries that the migration pages compare us with, each in a folder of its own: their dependencies are not ours.
LITELLM_VERSION := 1.100.5
PYDANTIC_AI_VERSION := 2.66.0

# Without compiled modules every program that a test starts would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint types imports unit recordings cover peers docs wheel soak bench bench-quick format clean

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

# Fetched once. Where it cannot be had, the demo says so and plays a script, and the tests that need it are skipped.
$(VENV)/.local: agent/local/installer.py agent/local/weights.py | $(VENV)/.core
	@$(BIN)/python -m agent local install && touch $@ || echo "There is no embedded model here; everything else works."

demo: $(VENV)/.core $(VENV)/.local  ## the first minute: a model on this machine, a stream, a typed answer, a route; no key
	@$(BIN)/python examples/demo.py

# Installation and checks run in parallel; the output of each target is printed when it ends.
# Make 3.81, which macOS ships, has no --output-sync.
MAKE_BESIDE := $(MAKE) --no-print-directory $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

test:  ## every check; what CI runs
	@$(MAKE_BESIDE) -j2 $(VENV)/.dev peers
	@$(MAKE_BESIDE) -j3 $(VENV)/.local types docs lint imports wheel
	@$(MAKE) --no-print-directory unit

lint: $(VENV)/.dev  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## mypy, strict, over package and tests
	$(BIN)/mypy

imports: $(VENV)/.dev  ## imports point downward
	$(BIN)/lint-imports

PYTEST := $(BIN)/python -m pytest
# A file's tests stay together, so that servers and models are started once.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder
# Terminals, whose programs want to be served at once.
ALONE := tests/cli tests/graph/test_viewer_browser.py

unit: $(VENV)/.dev $(VENV)/.local peers  ## the test suite
	$(PYTEST) $(PARALLEL) -m 'not soak and not alone'
	$(PYTEST) -m 'alone and not soak' $(ALONE)

quick: $(VENV)/.dev  ## within a minute: a few tests of each part, and those of what changed since main
	$(BIN)/ruff check --quiet .
	$(PYTEST) $(PARALLEL) -m 'not soak and not alone and not timing' $$($(BIN)/python scripts/quick.py)

recordings: $(VENV)/.dev  ## the tests that read recorded conversations; AGENT_WIRE_CORPUS says where these are
	$(PYTEST) --collect-only -q >/dev/null
	$(PYTEST) $(PARALLEL) -m 'not soak and not alone' $$(grep -rlE 'tests\.(corpus|recorded_requests) import' tests --include='test_*.py')

cover: $(VENV)/.dev $(VENV)/.local peers  ## the test suite with branch coverage, which takes a quarter longer
	$(PYTEST) $(PARALLEL) -m 'not soak and not alone' --cov --cov-report=
	$(PYTEST) -m 'alone and not soak' $(ALONE) --cov --cov-append --cov-report=term:skip-covered --cov-fail-under=95

peers: | $(BIN)/python  ## other people's servers and libraries to test against; without network their tests are skipped
	@$(call peer,litellm,litellm==$(LITELLM_VERSION),litellm-$(LITELLM_VERSION)) & \
	$(call peer,pydantic-ai,pydantic-ai-slim[openai]==$(PYDANTIC_AI_VERSION),pydantic_ai_slim-$(PYDANTIC_AI_VERSION)) & wait
	@if [ -e $(AIMOCK) ] && [ -e $(EVERYTHING) ]; then :; \
	elif ! command -v npm >/dev/null; then echo "There is no npm: the tests against aimock and server-everything will be skipped."; \
	else mkdir -p $(TOOLS) && npm install --prefix $(TOOLS) --no-package-lock --no-audit --no-fund --ignore-scripts \
		--fetch-retries=1 --fetch-timeout=30000 @copilotkit/aimock@$(AIMOCK_VERSION) \
		@modelcontextprotocol/server-everything@$(EVERYTHING_VERSION) >$(TOOLS)/npm.log 2>&1 \
		|| echo "The peers cannot be installed (see $(TOOLS)/npm.log): the tests against them will be skipped."; fi

# Into a new folder first, so that a half-finished one is never taken for an installed library.
define peer
if [ ! -d $(TOOLS)/$(1)/$(3).dist-info ]; then mkdir -p $(TOOLS); rm -rf $(TOOLS)/$(1) $(TOOLS)/$(1).new; \
	$(PIP) install --no-compile --retries=1 --target $(TOOLS)/$(1).new '$(2)' >$(TOOLS)/$(1).log 2>&1 && mv $(TOOLS)/$(1).new $(TOOLS)/$(1) \
	|| echo "$(1) cannot be installed (see $(TOOLS)/$(1).log): its migration page will not be tried."; fi
endef

docs: $(VENV)/.dev  ## build the documentation, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # not --quiet: warnings that nobody hears do not count

wheel: $(VENV)/.dev  ## build the wheel and try it in an empty environment
	rm -rf dist build/wheel-env
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	$(PYTHON) -m venv --without-pip build/wheel-env
	$(PIP) --python build/wheel-env/bin/python install dist/*.whl
	cd build && wheel-env/bin/python ../scripts/smoke.py

soak: export AGENT_TEST_FULL := 1
soak: $(VENV)/.dev $(VENV)/.local peers  ## everything in full: every byte, every combination, many rounds, another seed each time; hours
	$(PYTEST) -m soak --timeout=3600
	$(PYTEST) $(PARALLEL) -m 'not soak and not alone' --timeout=3600

bench: $(VENV)/.dev  ## everything against everyone: libraries are installed below .tools/bench, results go to build/bench; an hour
	$(BIN)/python -m benchmarks.full

bench-quick: $(VENV)/.dev  ## our cost as a ratio to raw httpx in the same run, with limits; two minutes
	$(BIN)/python -m benchmarks.quick

format: $(VENV)/.dev  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what was built
	rm -rf $(VENV) $(TOOLS) build dist site .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
