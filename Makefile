# make study   answers the example's question: sets everything up and runs it
# make test    sets everything up and passes the tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: study test lint clean

study: $(VENV)/example.stamp
	$(BIN)/bitworth study examples/ocr/study.toml

test: $(VENV)/dev.stamp lint
	$(BIN)/pytest -n 2 --dist worksteal

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases examples
	$(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/example.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[example]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[example,dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
