# Everything a newcomer needs: `make run` and `make test` set up what is missing first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup run test slow docs screenshots federation dist package lint format bench board fuzz clean

help:  ## Show this help
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## Make the virtual environment and install the package

NATIVE := $(wildcard src/fedtiny/native/csrc/*) src/fedtiny/native/compile.py hatch_build.py
# With a compiler at hand the native library must build without a warning; else it is left out.
STRICT := $(if $(shell command -v c++ g++ clang++),strict)

$(READY): pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	@echo "installing PyTorch and fedtiny (minutes, once)"
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	@echo "compiling the native library and installing fedtiny with its tools"
	FEDTINY_NATIVE=$(STRICT) $(BIN)/pip install --quiet --disable-pip-version-check \
	    --constraint constraints.txt --editable '.[all,dev]'
	touch $(READY)

run: $(READY)  ## Train a 1%-density ResNet18 over ten native devices on the digits (3 to 5 minutes the first time, then under one)
	$(BIN)/fedtiny run --width 64 --density 0.01
	@echo "to have the command fedtiny at hand: source $(BIN)/activate"

TESTED := $(BIN)/pytest --numprocesses 2 --dist worksteal

test: lint  ## Check style, layers and types, and run the quick tests (4 minutes)
	$(TESTED)

slow: $(READY)  ## Run the tests that make test leaves out (several minutes)
	$(TESTED) -m slow

docs: $(READY)  ## Check spelling and style of the pages, and build the site into build/docs
	$(BIN)/codespell README.md CONTRIBUTING.md SECURITY.md docs examples/*/README.md
	$(BIN)/python docs/extensions/prose.py
	$(BIN)/sphinx-build --fresh-env --nitpicky --fail-on-warning --keep-going --quiet docs build/docs

screenshots: docs  ## Make the pictures of the report and the site under docs/figures again (minutes; needs Chromium)
	$(BIN)/python -m tests.report.screenshots

federation: $(READY)  ## Test a SuperLink and up to four SuperNodes with TLS on this machine (minutes)
	$(BIN)/pytest -m federation tests/flower tests/package

# The oldest glibc that a wheel runs on. zig has the symbols of each, whatever this machine has.
GLIBC ?= 2.17
MACHINE := $(shell uname -m)
ZIG = $(abspath $(BIN))/python -m ziglang c++ -target $(MACHINE)-linux-gnu.$(GLIBC) -s

dist: $(READY)  ## Build the sources and, on Linux, a wheel that PyPI takes, into dist
	rm -rf dist build/wheel
	FEDTINY_NATIVE=strict CXX='$(ZIG)' $(BIN)/python -m build --outdir build/wheel
	PATH=$(abspath $(BIN)):$$PATH auditwheel repair --wheel-dir dist build/wheel/*.whl
	cp build/wheel/*.tar.gz dist
	$(BIN)/twine check --strict dist/*

package: dist  ## Build them, and test the wheel in an environment of its own (minutes)
	$(BIN)/pytest -m package tests/package

lint: $(READY)  ## Check style, layers and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

format: $(READY)  ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## Measure the simulator, the bytes of a round, native devices and exported C
	$(BIN)/python benchmarks/simulator_overhead.py
	$(BIN)/python benchmarks/wire.py
	$(BIN)/fedtiny bench device
	$(BIN)/python benchmarks/grouped_convolutions.py
	$(BIN)/python benchmarks/export.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/secure_aggregation.py

board: $(READY)  ## Run exported models on Cortex-M cores under QEMU, and a federated run with a Cortex-M7 among its devices
	$(BIN)/python benchmarks/board.py
	$(BIN)/python benchmarks/board_federation.py

FUZZ_SECONDS ?= 240

fuzz: $(READY)  ## Give damaged messages, files, run folders, native calls and streams FUZZ_SECONDS of time
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

clean:  ## Remove the virtual environment, what was built and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build/docs build/wheel dist
