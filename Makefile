# make demo   the whole way on a small real model, on a CPU
# make test   the tests
# Both set up .venv by themselves (make setup); a second run reuses it.
# A CUDA or CPU build of torch other than pip's default: PIP_EXTRA_INDEX_URL=... make setup

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo test test-real test-distributed check format bench lock

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "Python 3.10 or newer is needed, found $$($(PYTHON) --version 2>&1); try: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
	@echo "installing into .venv (a few minutes the first time)" >&2
	$(PYTHON) -m venv .venv
	$(PIP) torch hatchling editables setuptools wheel ninja
	$(PIP) --no-build-isolation -e '.[demo,dev]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/qdeploy demo

test: $(STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/pytest -m "not real and not distributed"

# The tests that take the demo's real model through the commands, and those that train on two ranks
# (some minutes).
test-real: $(STAMP)
	$(BIN)/pytest -m "(real or distributed) and not extended"

# Every strategy, offload and precision on two ranks (a quarter of an hour).
test-distributed: $(STAMP)
	$(BIN)/pytest -m distributed

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python benchmarks/int8_runtime.py
	$(BIN)/python benchmarks/int8_quality.py
	$(BIN)/python benchmarks/gate_power.py
	$(BIN)/python benchmarks/planner.py
	$(BIN)/python benchmarks/activation_step.py "$$($(BIN)/qdeploy demo --fetch-only)"

# Resolve the newest versions again (needs uv); torch keeps its pin.
lock:
	echo "torch==2.13.0" > .torch-pin.txt
	uv pip compile pyproject.toml --universal --python-version 3.10 --extra demo --extra dev \
		--no-header --no-annotate -c .torch-pin.txt -o .lock.txt
	{ echo "# The versions that make setup installs; made by: make lock"; \
		grep -vE '^(nvidia-|cuda-|triton)' .lock.txt; } > constraints.txt
	rm .torch-pin.txt .lock.txt
