# `make help` lists the targets. TORCH_INDEX: an index to take torch from first, e.g. one with CPU or CUDA builds.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test check fix docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv and install bathy with everything it can use

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("bathy needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.11" % v[:2])'
	$(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),$(BIN)/pip install -q --index-url $(TORCH_INDEX) -c constraints.txt torch)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP) ## the first ten minutes: three deep models, one that fails, one that translates, and why
	$(BIN)/bathy demo

test: check ## install, check style and types, run all tests
	$(BIN)/pytest -n 2 --dist worksteal

check: $(STAMP) ## style (ruff) and types (mypy strict)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fix: $(STAMP) ## format and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## build the documentation into site/
	$(BIN)/mkdocs build --strict

clean: ## remove the environment and all caches
	rm -rf .venv .cache .hypothesis site build src/*.egg-info
