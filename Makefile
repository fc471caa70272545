# Two commands from a fresh clone: `make run` and `make test`. `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

SITE := book/_build/html
CHAPTERS := $(wildcard book/*.ipynb)
NOTEBOOKS := $(CHAPTERS) $(wildcard labs/solutions/*.ipynb)
# Chapters include excerpts of the package's source, so the site depends on it too.
SITE_SOURCES := $(shell find book zerolab -type f \
	-not -path 'book/_build/*' -not -path '*/.ipynb_checkpoints/*' -not -path '*/__pycache__/*')

NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=300 \
	--nbval-sanitize-with=tests/notebooks/sanitize.cfg

.PHONY: help setup run test check site lab bench clean

help:  ## list these targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

setup: $(READY)  ## make .venv from requirements.txt

# pip leaves what fits alone, so a second run after an edit takes seconds.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is missing or older than 3.11. Name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Python's venv is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing what requirements.txt pins into $(VENV) (a minute or two the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --editable .
	@touch $@

run: $(READY)  ## train a small GPT by DDP, ZeRO-1, 2 and 3, compare them, build the site
	$(BIN)/zerolab compare --ranks 4
	@$(MAKE) --no-print-directory site

site: $(SITE)/index.html  ## build the book, its PDF too where there is a Chromium; EXECUTE=1 runs its notebooks again first
	@test -f $(SITE)/zerolab.pdf || echo "No Chromium was found, so the book is not printed as a PDF."
	@echo "The book is ready. Open $(CURDIR)/$(SITE)/index.html, or serve it:"
	@echo "  $(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) 8000"

# A Chromium, where there is one, prints the book as a PDF as well.
# --all, because an incremental build leaves changed static files as they were. Warnings, which fail
# the build, go to stderr; what goes to stdout is said above in fewer words.
$(SITE)/index.html: $(SITE_SOURCES) $(READY) $(if $(EXECUTE),execute)
	CHROMIUM="$$(PYTHONPATH=tests $(BIN)/python -c 'from system_tools import chromium; print(chromium() or "")')" \
	  $(BIN)/jupyter-book build book --all --quiet -W -n --keep-going > /dev/null
	@touch $@

.PHONY: execute
execute: $(READY)
	$(BIN)/python book/execute.py $(CHAPTERS)

test: $(READY)  ## everything: linters, types, all tests, notebooks, the site in a browser
	$(BIN)/python tests/system_tools.py
	@$(MAKE) --no-print-directory site
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest $(NBVAL) tests $(NOTEBOOKS)
	@echo "make test ran ruff, mypy and pytest: unit, multirank, notebooks (nbval) and the site in a browser"

check: $(READY)  ## the quick part of the tests, in minutes
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -m quick tests
	@echo "make check ran ruff, mypy and the tests marked quick; make test runs them all"

lab: $(READY)  ## open JupyterLab on this machine only
	$(BIN)/jupyter lab --ServerApp.ip=127.0.0.1 $(if $(filter 0,$(shell id -u)),--allow-root)

bench: $(READY)  ## measure how fast ranks start, and ours against torch's and DeepSpeed's (hours)
	$(BIN)/python tests/benchmarks/world.py
	$(BIN)/zerolab bench

clean:  ## remove what the other targets made, .venv apart
	rm -rf book/_build build ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis zerolab-compare.*
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
