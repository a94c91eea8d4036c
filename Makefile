PYTHON ?= python
JOBS ?= $(shell nproc)
BUILD_DIR ?= build/dev
CMAKE_ARGS ?=
GENERATOR := $(if $(shell command -v ninja),-G Ninja)

.PHONY: help setup native test check bench

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install the package in place, with what tests and linters need
	$(PYTHON) -m pip install -e '.[test,dev]'

native: ## build the native module into src/chairlift/ops (for work on the kernels)
	cmake -S . -B $(BUILD_DIR) $(GENERATOR) -DPython_EXECUTABLE="$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(CMAKE_ARGS)
	cmake --build $(BUILD_DIR) -j $(JOBS)
	rm -f src/chairlift/ops/_native*.so
	cp $(BUILD_DIR)/_native*.so src/chairlift/ops/

test: ## run the tests
	$(PYTHON) -m pytest

check: ## linters, types, import rules
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	lint-imports

bench: ## linear kernels against this machine's peak, then offline throughput
	$(PYTHON) benchmarks/ops/linear.py
	$(PYTHON) benchmarks/serving/offline.py --modes decode,prefill
