# Two commands from a clean clone: `make demo` and `make test`. Each sets up .venv first, and only once.

SHELL := /bin/bash
VENV  ?= .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready

# The first interpreter that is new enough. `make PYTHON=python3.12 …` chooses another.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Which torch goes into a new .venv. For a GPU take the build that fits its driver: `make TORCH=torch==2.11.0 …`.
TORCH ?= torch==2.13.0

# The tests run with the oldest Triton that is supported; tests/aot/test_versions.py compiles with the newest.
TRITON ?= triton==3.6.0

# The example that `make demo` takes, with a window that is small enough for a picture.
SPEC   ?= examples/windowed_alibi.attn
DEFINE ?= -D window=40

.DEFAULT_GOAL := help
.PHONY: help setup demo test gate test-all lint types floors sample newest golden gallery site format wheel clean

help:
	@echo 'make demo    set up, compile an example, show its mask, run it against the reference'
	@echo 'make test    set up, then ruff, pyright, import-linter, and a sample of the tests: six minutes'
	@echo 'make gate    the same with a larger sample: what CI runs'
	@echo 'make test-all  every test that needs no GPU, however long'
	@echo 'make golden  write the golden files and the messages of docs/errors anew'
	@echo 'make gallery draw the examples, and write docs/gallery.md'
	@echo 'make site    build the documentation into build/site, with its links checked'
	@echo 'make format  let ruff format and sort'
	@echo 'make wheel   build the wheel into dist/'
	@echo 'make clean   remove .venv, caches and builds'

setup: $(READY)

# torch comes first and by itself: the package asks for none, so that a machine keeps the build that fits it.
$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo 'attngen needs Python 3.11 or newer; set PYTHON=' >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet '$(TRITON)' --editable '.[triton,jax,tpu,show,dev,site]'
	@touch $@

demo: $(READY)
	@mkdir -p build
	$(BIN)/attngen compile $(SPEC) $(DEFINE) -o build/demo.py
	$(BIN)/attngen show $(SPEC) $(DEFINE) --size Sq=96 Sk=96 --tile 16,16
	$(BIN)/attngen verify $(SPEC) $(DEFINE)

# Processor seconds that a test function may take, and a single case of one: see tests/sampling.py.
test: BUDGET = 1
test: CASE = 1
gate: BUDGET = 2
gate: CASE = 4.5
# How many specs a drawn test draws.
test: DRAWS = 30
gate: DRAWS = 200
test gate: lint types floors sample
gate: newest site

# With the reasons of what is skipped: without a browser, how to get one.
test-all: lint types floors site
	$(BIN)/python -m pytest -n 2 -rs --durations=20 --draws 2000 -m 'not gpu'

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright --pythonpath $(BIN)/python

floors: $(READY)
	$(BIN)/lint-imports

sample: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=20 --budget $(BUDGET) --case $(CASE) --draws $(DRAWS)

# Six examples under the newest Triton, which goes into build/.
newest: $(READY)
	$(BIN)/python -m pytest -n 2 tests/aot/test_versions.py

golden: $(READY)
	$(BIN)/python -m pytest tests/golden tests/errors/test_error_pages.py --update-golden -n 2

gallery: $(READY)
	$(BIN)/python benchmarks/gallery.py

# A warning fails it (not with --quiet, which drops warnings before they are counted). The variable stops a notice that
# the theme prints at each build, about the next version of mkdocs.
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/mkdocs.yml
	@echo 'built build/site/index.html; its search needs a server: $(BIN)/python -m http.server --directory build/site'

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(READY)
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
