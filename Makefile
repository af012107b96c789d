# The two commands that matter: `make demo` and `make test`. Both set themselves up.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The installer's warnings about its own configuration are not relevant here.
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# Third-party servers for the tests.
TOOLS := .tools
AIMOCK := $(TOOLS)/node_modules/@copilotkit/aimock/package.json
AIMOCK_VERSION := 1.43.0
EVERYTHING := $(TOOLS)/node_modules/@modelcontextprotocol/server-everything/package.json
EVERYTHING_VERSION := 2026.8.31
PYRIGHT := $(TOOLS)/node_modules/pyright/package.json
PYRIGHT_VERSION := 1.1.414
# Libraries of the migration pages, each in its own folder because their dependencies conflict.
LITELLM_VERSION := 1.100.5
PYDANTIC_AI_VERSION := 2.66.0

# Without compiled modules every program that a test starts would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint words types imports unit recordings cover peers engines docs wheel soak bench bench-quick format clean

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

# Downloaded once. Without it, the demo uses a script and the tests that need it are skipped.
$(VENV)/.local: agent/local/installer.py agent/local/weights.py | $(VENV)/.core
	@$(BIN)/python -m agent local install && touch $@ || echo "There is no embedded model here; everything else works."

demo: $(VENV)/.core $(VENV)/.local  ## run the main features with an embedded model; no key needed
	@$(BIN)/python examples/demo.py

# Installation and checks run in parallel; the output of each target is printed when it ends.
# Make 3.81, which macOS ships, has no --output-sync.
MAKE_BESIDE := $(MAKE) --no-print-directory $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

test:  ## run every check; CI runs this
	@$(MAKE_BESIDE) -j2 $(VENV)/.dev peers
	@$(MAKE_BESIDE) -j3 $(VENV)/.local types docs lint imports wheel
	@$(MAKE) --no-print-directory unit

lint: $(VENV)/.dev words  ## ruff, and standard names and phrases
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

words: $(VENV)/.dev  ## names and phrases that are not standard terms
	$(BIN)/python scripts/words.py

types: $(VENV)/.dev  ## mypy --strict over package and tests
	$(BIN)/mypy

imports: $(VENV)/.dev  ## check that imports point downward
	$(BIN)/lint-imports

PYTEST := $(BIN)/python -m pytest
# Tests of one file run in one process, so that servers and models start once.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder
# Tests of data engines need other environments, see `make engines`.
ORDINARY := not soak and not alone and not engine
# Tests that drive a terminal or a browser.
ALONE := tests/cli tests/graph/test_viewer_browser.py

unit: $(VENV)/.dev $(VENV)/.local peers  ## run the tests
	$(PYTEST) $(PARALLEL) -m '$(ORDINARY)'
	$(PYTEST) -m 'alone and not soak' $(ALONE)

quick: $(VENV)/.dev  ## run the most relevant tests in a minute
	$(BIN)/ruff check --quiet .
	$(PYTEST) $(PARALLEL) -m '$(ORDINARY) and not timing' $$($(BIN)/python scripts/quick.py)

recordings: $(VENV)/.dev  ## run the tests on recorded conversations in AGENT_WIRE_CORPUS
	$(PYTEST) --collect-only -q >/dev/null
	$(PYTEST) $(PARALLEL) -m '$(ORDINARY)' $$(grep -rlE 'tests\.support\.(corpus|recorded_requests) import' tests --include='test_*.py')

cover: $(VENV)/.dev $(VENV)/.local peers  ## run the tests with branch coverage
	$(PYTEST) $(PARALLEL) -m '$(ORDINARY)' --cov --cov-report=
	$(PYTEST) -m 'alone and not soak' $(ALONE) --cov --cov-append --cov-report=term:skip-covered --cov-fail-under=95

peers: | $(BIN)/python  ## install third-party servers and libraries for tests
	@$(call peer,litellm,litellm==$(LITELLM_VERSION),litellm-$(LITELLM_VERSION)) & \
	$(call peer,pydantic-ai,pydantic-ai-slim[openai]==$(PYDANTIC_AI_VERSION),pydantic_ai_slim-$(PYDANTIC_AI_VERSION)) & wait
	@if [ -e $(AIMOCK) ] && [ -e $(EVERYTHING) ] && [ -e $(PYRIGHT) ]; then :; \
	elif ! command -v npm >/dev/null; then echo "There is no npm: the tests with aimock, server-everything and pyright will be skipped."; \
	else mkdir -p $(TOOLS) && npm install --prefix $(TOOLS) --no-package-lock --no-audit --no-fund --ignore-scripts \
		--fetch-retries=1 --fetch-timeout=30000 @copilotkit/aimock@$(AIMOCK_VERSION) \
		@modelcontextprotocol/server-everything@$(EVERYTHING_VERSION) pyright@$(PYRIGHT_VERSION) >$(TOOLS)/npm.log 2>&1 \
		|| echo "The peers cannot be installed (see $(TOOLS)/npm.log): the tests against them will be skipped."; fi

# Install into a new folder first: an interrupted installation must not look complete.
define peer
if [ ! -d $(TOOLS)/$(1)/$(3).dist-info ]; then mkdir -p $(TOOLS); rm -rf $(TOOLS)/$(1) $(TOOLS)/$(1).new; \
	$(PIP) install --no-compile --retries=1 --target $(TOOLS)/$(1).new '$(2)' >$(TOOLS)/$(1).log 2>&1 && mv $(TOOLS)/$(1).new $(TOOLS)/$(1) \
	|| echo "$(1) cannot be installed (see $(TOOLS)/$(1).log): its migration page will not be tried."; fi
endef

# Each in its own environment, on top of .venv, because they are large and their dependencies conflict.
ENGINES := ray daft dask spark
ENGINE_ray := ray[data]==2.60.0
ENGINE_daft := daft==0.7.26
ENGINE_dask := dask[dataframe]==2026.8.0
ENGINE_spark := pyspark==4.3.0 pyarrow pandas<3

$(TOOLS)/engines/%/.installed: Makefile | $(VENV)/.dev
	@rm -rf $(@D) && $(PYTHON) -m venv --without-pip $(@D)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		>$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-venv.pth
	@$(PIP) --python $(@D)/bin/python install --retries=1 $(foreach requirement,$(ENGINE_$*),'$(requirement)') >$(@D).log 2>&1 \
		&& touch $@ || echo "$* cannot be installed (see $(@D).log): its tests are skipped."

engines: $(ENGINES:%=$(TOOLS)/engines/%/.installed)  ## run the tests on Ray, Daft, Dask and Spark
	@for engine in $(ENGINES); do echo "$$engine:"; [ ! -e $(TOOLS)/engines/$$engine/.installed ] \
		|| ENGINE=$$engine $(TOOLS)/engines/$$engine/bin/python -m pytest -q -n0 -m engine -k $$engine tests/engines || exit 1; done

docs: $(VENV)/.dev  ## build the documentation; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # without --quiet, which hides warnings

wheel: $(VENV)/.dev  ## build the wheel and try it in an empty environment
	rm -rf dist build/wheel-env
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	$(PYTHON) -m venv --without-pip build/wheel-env
	$(PIP) --python build/wheel-env/bin/python install dist/*.whl
	cd build && wheel-env/bin/python ../scripts/smoke.py

soak: export AGENT_TEST_FULL := 1
soak: $(VENV)/.dev $(VENV)/.local peers  ## run exhaustive sweeps; hours
	$(PYTEST) -m soak --timeout=3600
	$(PYTEST) $(PARALLEL) -m '$(ORDINARY)' --timeout=3600

bench: $(VENV)/.dev  ## benchmark all libraries; an hour
	$(BIN)/python -m benchmarks.full

bench-quick: $(VENV)/.dev  ## check CPU time relative to raw httpx; two minutes
	$(BIN)/python -m benchmarks.quick

format: $(VENV)/.dev  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what was built
	rm -rf $(VENV) $(TOOLS) build dist site .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
