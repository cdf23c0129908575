# Recipes use relative paths only: the clone's own path may hold spaces.

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types arrows unit format docs wheel bench soak gate-fuzz scoreboard interop conformance clients coldstart lock clean
# The steps of `test` run in the order given, also under -j.
.NOTPARALLEL:

# Whatever the caller's shell or a git hook has set, a run here depends on this clone alone.
unexport PYTHONHOME PYTHONPATH PYTHONOPTIMIZE PYTHONUNBUFFERED PYTHONWARNINGS
unexport PYTEST_ADDOPTS PYTEST_PLUGINS
unexport COVERAGE_FILE COVERAGE_RCFILE VIRTUAL_ENV GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_PREFIX
unexport MAKEFLAGS MFLAGS MAKEOVERRIDES
# Without bytecode every process the tests start would compile the packages again.
unexport PYTHONDONTWRITEBYTECODE
# Pyright comes with its wheel: no look for a newer one, and no other version.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
unexport PYRIGHT_PYTHON_FORCE_VERSION PYRIGHT_PYTHON_PYLANCE_VERSION

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

setup:  ## make or update .venv
	@sh scripts/setup

demo: setup  ## show what the project does
	@.venv/bin/indus --version
	@.venv/bin/python examples/demo/demo.py

test: setup lint types arrows unit  ## run every check

lint: setup  ## check format and style
	@echo '== lint'
	@.venv/bin/ruff format --check
	@.venv/bin/ruff check

types: setup  ## check types
	@echo '== types'
	@.venv/bin/pyright

arrows: setup  ## check which package may import which
	@echo '== arrows'
	@.venv/bin/lint-imports --no-logo

unit: setup  ## run the tests and measure their coverage
	@echo '== unit'
	@.venv/bin/coverage erase
	@.venv/bin/coverage run -m pytest -n logical --maxprocesses 4 --dist worksteal
	@.venv/bin/coverage combine -q
	@.venv/bin/coverage report

docs: setup  ## build the documentation into site/
	@sh scripts/docs

wheel: setup  ## build dist/, install the wheel into a fresh environment and run it
	@sh scripts/wheel

format: setup  ## format, and mend what can be mended
	@.venv/bin/ruff format
	@.venv/bin/ruff check --fix

bench: setup  ## measure
	@.venv/bin/python -m bench

soak: setup  ## put indus serve under mixed load and see that nothing grows (MINUTES=30: for long)
	@.venv/bin/python -m bench.soak $(if $(MINUTES),--minutes $(MINUTES))

gate-fuzz: setup  ## run 10,000 generated commands that the gate allows, and see that they stay within their rules (COUNT=, SEED=)
	@.venv/bin/python -m outside.gate_fuzz $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

scoreboard: setup  ## probe the native tools, item by item
	@.venv/bin/python -m bench.tools

interop: setup  ## connect to servers that others wrote (installs them into .outside)
	@.venv/bin/python -m outside.interop

conformance: setup  ## have the official suite judge our client and our servers (installs it into .outside)
	@.venv/bin/python -m outside.conformance

clients: setup  ## let clients that others wrote visit `indus serve` (installs them into .outside)
	@.venv/bin/python -m outside.clients

coldstart: setup  ## start real npx and uvx servers in an empty home, and interrupt them (downloads)
	@.venv/bin/python -m outside.coldstart

lock: setup  ## write the locks anew (scripts/lock --upgrade takes newer versions)
	@sh scripts/lock

clean:  ## remove all that was made here
	rm -rf .venv .docs site .bench .outside .coverage .coverage.* .hypothesis .pytest_cache .ruff_cache
	rm -rf .import_linter_cache build dist
	find src tests bench examples scripts outside -name __pycache__ -prune -exec rm -rf {} +
