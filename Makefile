# `make help` lists the targets. TORCH_INDEX: an index to take torch from first, e.g. one with CPU or CUDA builds.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test coverage check fix docs clean chaos zoo wheel

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv and install bathy with everything it can use

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("bathy needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.11" % v[:2])'
	$(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),$(BIN)/pip install -q --index-url $(TORCH_INDEX) -c constraints.txt torch)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/pip install -q -c constraints.txt --no-deps argostranslate minisbd stanza emoji onnxruntime # --no-deps: no spaCy
	@touch $@

demo: $(STAMP) ## the first ten minutes: three deep models, one that fails, one that translates, and why
	$(BIN)/bathy demo

test: check ## install, check style and types, run all tests
	$(BIN)/pytest -n 2 --dist worksteal

coverage: $(STAMP) ## run all tests and print which lines none of them reaches, also in the processes they start
	@mkdir -p .cache/coverage
	$(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered --cov-report=html

chaos: $(STAMP) ## kills, damaged files, full disks and bad settings by the hundred; CHAOS_SEED=n repeats a run
	BATHY_CHAOS=full BATHY_CHAOS_SEED=$(CHAOS_SEED) $(BIN)/pytest tests/chaos -p no:xdist

check: $(STAMP) ## style (ruff) and types (mypy strict)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

zoo: $(STAMP) ## try every class of six libraries that builds small (an hour); writes docs/results/zoo.json
	$(BIN)/pip install -q --no-deps --target .venv/zoo -c constraints.txt timm torchvision
	$(BIN)/python tests/sites/whole_zoo.py --out docs/results/zoo.json

wheel: $(STAMP) ## build the wheel and try each extra alone in an empty environment (downloads each)
	$(BIN)/python tests/try_wheel.py $(EXTRAS)

fix: $(STAMP) ## format, and auto-fix with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## build the documentation into site/
	$(BIN)/mkdocs build --strict

clean: ## remove the environment and all caches
	rm -rf .venv .cache .hypothesis site build src/*.egg-info
