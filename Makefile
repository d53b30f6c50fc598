# Every target installs what it needs into .venv and can be run again. No path is absolute, so blanks in it do no harm.
.PHONY: help demo test test-all test-browser soak lint bench notebooks reference clean
.DEFAULT_GOAL := help
SHELL := /bin/sh
ENV ?= .venv
PY := $(ENV)/bin/python
PYTEST := $(PY) -m pytest -q -n auto --dist worksteal

help:  ## say what there is
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/ -/' | sed 's/^/make /'

demo: $(ENV)/.runtime  ## ask one real question of the local documents, in a real IPython
	@$(PY) -m vane_magic.demo

test: $(ENV)/.test  ## run the tests (no root, no browser)
	@$(PYTEST) -m "not browser and not soak"

test-all:  ## run the tests on each Python the machine has
	@for python in $${PYTHONS:-$$(sh .ci/python --all)}; do \
	  echo "== $$($$python --version)"; \
	  $(MAKE) --no-print-directory test ENV=".venv-$$(basename $$python)" PYTHON="$$python" || exit 1; \
	done

test-browser: $(ENV)/.browser  ## run the tests that need Chromium
	@$(PY) -m pytest -q -m browser

soak: $(ENV)/.test  ## some twenty minutes of processes that get killed, and the real 65 s
	@$(PY) -m pytest -q -m soak -s --timeout 3600

lint: $(ENV)/.test  ## check style, types and the arrows between modules
	@$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m pyright --pythonpath $(PY) && $(ENV)/bin/lint-imports

bench: $(ENV)/.test  ## measure, and print the table of ratios
	@$(PY) benchmarks/run.py

notebooks: $(ENV)/.test  ## run the notebooks against the local documents, and store their outputs
	@$(PY) tests/notebooks.py

reference: $(ENV)/.test  ## write docs/reference.md from the docstrings
	@$(PY) tests/reference.py

clean:  ## remove the environments
	@rm -rf .venv .venv-*

$(ENV)/.runtime: pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" sh .ci/install "$(ENV)"
	@touch $@

$(ENV)/.test: pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" sh .ci/install "$(ENV)" test
	@touch $@ $(ENV)/.runtime

$(ENV)/.browser: $(ENV)/.test
	@PYTHON="$(PYTHON)" sh .ci/install "$(ENV)" test browser
	@touch $@
