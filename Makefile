PYTHON ?= python3
BIN := .venv/bin
REQUIREMENTS := pyproject.toml constraints.txt
# One process a core: a test of klover's needs no threads of BLAS, which would wait for each other. Tests of a file share
# what they compile, so they stay in one process. A library that is missing is an error here, where all extras are installed.
TEST = KLOVER_REQUIRE_EXTRAS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint check-format check-rules check-types check-layers check-spelling check-install \
  check-journeys check-versions check-site bench docs format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.stamp-plots  ## run the demonstration
	$(BIN)/klover demo

test: .venv/.stamp-test  ## run the tests, the slow ones excepted
	$(TEST)

test-all: .venv/.stamp-test  ## run all tests
	$(TEST) -m ""

lint: check-format check-rules check-types check-layers check-spelling  ## check format, rules, types, layers and spelling

check-format: .venv/.stamp-lint
	$(BIN)/ruff format --check

check-rules: .venv/.stamp-lint
	$(BIN)/ruff check

check-types: .venv/.stamp-lint .venv/.stamp-test
	$(BIN)/pyright --pythonpath $(BIN)/python

check-layers: .venv/.stamp-lint
	$(BIN)/lint-imports

check-spelling: .venv/.stamp-lint
	$(BIN)/codespell

check-install: .venv/.stamp-lint .venv/.stamp-test  ## build and install the package as a user would
	scripts/check_install.sh

check-journeys:  ## walk the first ten minutes of three users, each in a new environment
	PYTHON=$(PYTHON) scripts/check_journeys.sh

check-versions:  ## try the oldest and the newest versions of the dependencies, each in a new environment
	scripts/check_versions.sh oldest $(PYTHON)
	scripts/check_versions.sh newest $(PYTHON)

docs: .venv/.stamp-docs  ## build the site in docs/_build/html; what has not changed is not run again
	$(BIN)/python -m sphinx -W --keep-going -q -d docs/_build/doctrees docs docs/_build/html

check-site: docs .venv/.stamp-test  ## build the site, and look at it in a browser (Debian's chromium and chromium-driver)
	$(TEST) -n 0 -m "" tests/docs

bench: .venv/.stamp-paper  ## measure the time to import, or what RUN="suite --seeds 1" names
	$(BIN)/python -m benchmarks $(or $(RUN),import_time)

format: .venv/.stamp-lint  ## rewrite the code in the house format
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

clean:  ## remove caches and build results; .venv stays
	rm -rf build dist docs/_build .pytest_cache .ruff_cache .import_linter_cache .grimp_cache .hypothesis
	find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# pip comes last when an environment is made, so an interrupted one is made again. Order only: its date says nothing.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "klover needs Python 3.11 or later, but PYTHON=$(PYTHON) is: $$($(PYTHON) --version 2>&1 | head -n 1)" >&2; \
	  echo "Name another one, for example: make PYTHON=python3.12 demo" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv

.venv/.stamp-plots: $(REQUIREMENTS) | $(BIN)/pip
	$(INSTALL) '.[plots]'
	@touch $@

.venv/.stamp-paper: $(REQUIREMENTS) | $(BIN)/pip
	$(INSTALL) '.[paper]'
	@touch $@ .venv/.stamp-plots

.venv/.stamp-test: $(REQUIREMENTS) | $(BIN)/pip
	$(INSTALL) '.[paper,test]'
	@touch $@ .venv/.stamp-paper .venv/.stamp-plots

.venv/.stamp-docs: $(REQUIREMENTS) | $(BIN)/pip
	$(INSTALL) '.[paper,docs]'
	@touch $@ .venv/.stamp-paper .venv/.stamp-plots

.venv/.stamp-lint: $(REQUIREMENTS) | $(BIN)/pip
	$(INSTALL) '.[paper,dev]'
	@touch $@ .venv/.stamp-paper .venv/.stamp-plots
