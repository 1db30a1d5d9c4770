PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
DATA ?=

.PHONY: demo test lint bench gpu clean

demo: $(VENV)/.core
	$(BIN)/fanrank demo $(if $(DATA),"$(DATA)")

test: lint
	$(BIN)/pytest -q

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/pip install -q -e '.[bench]'
	$(BIN)/python -m bench $(ARGS)

gpu: $(VENV)/.dev
	$(BIN)/fanrank doctor
	$(BIN)/pytest -q -m gpu || [ $$? -eq 5 ]

$(VENV)/.core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
