PYTHON ?= python
JOBS ?= $(shell nproc)
BUILD_DIR ?= build/dev
CMAKE_ARGS ?=
GENERATOR := $(if $(shell command -v ninja),-G Ninja)

.PHONY: help native

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

native: ## build the native module into src/chairlift/ops
	cmake -S . -B $(BUILD_DIR) $(GENERATOR) -DPython_EXECUTABLE="$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(CMAKE_ARGS)
	cmake --build $(BUILD_DIR) -j $(JOBS)
	rm -f src/chairlift/ops/_native*.so
	cp $(BUILD_DIR)/_native*.so src/chairlift/ops/
