# Everything a newcomer needs: `make run` and `make test` set up what is missing first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup run test lint format bench clean

help:  ## Show this help
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## Make the virtual environment and install the package

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	    --editable '.[all,dev]'
	touch $(READY)

run: $(READY)  ## Train a 5%-density ResNet18 over ten devices on the digits (half a minute)
	$(BIN)/fedtiny run

test: lint  ## Check style and types, and run the tests
	$(BIN)/pytest --numprocesses 2

lint: $(READY)  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## Measure what the simulator adds to a plain PyTorch loop
	$(BIN)/python benchmarks/simulator_overhead.py

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
