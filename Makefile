.PHONY: setup check test real format

PYTHON ?= python3.11
BIN := .venv/bin
WORKERS ?= auto

setup: .venv/.installed ## make the development environment

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev,demo]'
	touch $@

check: setup ## lint, types, contracts and every test that needs no engine
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -m 'not real' -n $(WORKERS) --dist loadgroup

real: setup ## the tests against the real engine (installs it into .phasewise first)
	PHASEWISE_HOME=$(CURDIR)/.phasewise $(BIN)/phasewise engine install
	PHASEWISE_HOME=$(CURDIR)/.phasewise $(BIN)/phasewise model fetch smollm2-135m
	PHASEWISE_HOME=$(CURDIR)/.phasewise $(BIN)/pytest -m real

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
