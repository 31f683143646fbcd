# Every target that needs the virtual environment creates it first: on a machine with only
# Python 3.11+ and pip, `make demo` and `make test` work straight after the clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
PYTEST_ARGS ?=
BENCH_ARGS ?=
DEMO_ARGS ?=

# Otherwise Spark starts its workers with whichever python3 comes first on PATH.
export PYSPARK_PYTHON ?= $(CURDIR)/$(BIN)/python

# A stamp does not vouch for an environment whose interpreter has gone or whose checkout was moved.
ifneq ($(wildcard $(STAMP)),)
  ifneq ($(shell { $(BIN)/python -c '' && cat $(STAMP); } 2>/dev/null),$(CURDIR))
    $(shell rm -f $(STAMP))
  endif
endif

.DEFAULT_GOAL := help
.PHONY: help setup java chromium demo test test-fast lint format bench docs lock clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) java ## Create .venv from the lock file; install Java if it is missing and we may

$(STAMP): requirements.lock pyproject.toml lab/pyproject.toml scripts/setup-venv
	@scripts/setup-venv "$(PYTHON)"

# Not fatal: only the Spark parts need Java, and the script says so when it cannot help.
java:
	@scripts/ensure-java

# For the tests of the broker's console only, and not fatal either.
chromium:
	@scripts/ensure-chromium

demo: setup ## Run the demonstration
	$(BIN)/tocsin demo $(DEMO_ARGS)

# Linting takes a minute on one core, and the tests wait for others often enough.
test: setup chromium ## Run the whole test suite, and lint meanwhile
	@mkdir -p .cache; \
	$(MAKE) --no-print-directory lint >.cache/lint.log 2>&1 & lint=$$!; \
	$(BIN)/python -m pytest -n 3 $(PYTEST_ARGS); tests=$$?; \
	wait $$lint; linted=$$?; cat .cache/lint.log; exit $$((tests ? tests : linted))

test-fast: setup ## Run the tests that are not marked slow
	$(BIN)/python -m pytest -n 2 -m "not slow" $(PYTEST_ARGS)

lint: setup ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## Sort imports, apply safe fixes, format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Run the benchmarks
	$(BIN)/tocsin bench $(BENCH_ARGS)

docs: setup ## Build the documents as a site in build/site
	@scripts/build-docs

# The options keep local paths and a developer's own package index out of the file.
lock: $(STAMP) ## Resolve requirements.lock again, with the newest versions allowed
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras \
		--generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

clean: ## Remove the environment, caches and build output
	rm -rf $(VENV) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests lab -name __pycache__ -type d -prune -exec rm -rf {} +
