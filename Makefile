# make study   answers the example's question: sets everything up and runs it
# make test    sets everything up and passes the tests
# make bench-timing MINUTES=60   proves the timing verdict on this machine; goes on where it stopped
# make bench-calibration   what calibration costs, against quantize_static, in time and memory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

MINUTES ?= 60

.PHONY: study test bench-timing bench-calibration lint clean

study: $(VENV)/example.stamp
	$(BIN)/bitworth study examples/ocr/study.toml

test: $(VENV)/dev.stamp lint
	$(BIN)/pytest -n 2 --dist worksteal

bench-timing: $(VENV)/example.stamp
	$(BIN)/python -m benchmarks.timing --minutes $(MINUTES)

bench-calibration: $(VENV)/example.stamp
	$(BIN)/python -m benchmarks.calibration --docs docs/calibration.md

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases examples benchmarks
	$(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/example.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[example]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[example,torch,dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
