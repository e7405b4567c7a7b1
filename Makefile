# The verbs of the project. Each one sets up what it needs; Python >= 3.11 and make are all that it assumes.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   ?= runs

.DEFAULT_GOAL := help
.PHONY: help setup demo federation test test-fast lint bench bench-peers docs clean

help:  ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 22

setup: $(VENV)/.ready  ## make .venv with everything in it

# --compile-bytecode: without compiled files every process pays twice the import time.
$(VENV)/.ready: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make setup needs Python >= 3.11; set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make setup needs Python >= 3.11, found $$($(PYTHON) -V); set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --editable . --group dev
	@touch $@

demo: setup  ## train 10 clients on the digits in Flower's simulation, some seconds
	$(BIN)/bouquet run --recipe demo --run-name demo --runs-dir $(RUNS)

federation: setup  ## the same ten clients on one SuperLink and three SuperNodes, real gRPC processes
	$(BIN)/bouquet federation --recipe demo --run-name federation --runs-dir $(RUNS)

test: setup lint  ## every check and every test
	$(BIN)/python -m pytest

test-fast: setup  ## the default suite without the tests that start processes
	$(BIN)/python -m pytest -m "not system"

lint: setup  ## ruff, mypy --strict, codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell

bench: setup  ## speed and memory, as ratios in one run: table, runs/bench/bench.json and .png
	$(BIN)/python -m tests.bench --work $(RUNS)/bench

bench-peers: setup  ## the same work in other simulators, each installed from PyPI: runs/bench/peers.json
	$(BIN)/python -m tests.bench.peers --work $(RUNS)/bench

docs: setup  ## write the generated table of the README
	$(BIN)/python -c 'from pathlib import Path; from server_app.catalogue import with_table; p = Path("README.md"); p.write_text(with_table(p.read_text()))'

clean:  ## remove the .venv and the caches of the tools
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
