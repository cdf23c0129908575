# Recipes use relative paths only: the path of the clone may contain spaces.

.DEFAULT_GOAL := help
.PHONY: help setup demo cluster-demo demo-llm test lint types arrows unit suite coverage format reference docs wheel bench soak gate-fuzz host-fuzz approval-attacks cluster-faults mutants properties repeats stalls scoreboard
.PHONY: review page interop conformance clients demo-search clients-search adapters neighbours connectors search-bench flow signin resource-server sandboxes coldstart floors lock clean
# The steps of `test` run in the order given, also under -j.
.NOTPARALLEL:

# A run depends on this clone alone, not on variables of the caller's shell or of a git hook.
unexport PYTHONHOME PYTHONPATH PYTHONOPTIMIZE PYTHONUNBUFFERED PYTHONWARNINGS
unexport PYTEST_ADDOPTS PYTEST_PLUGINS
unexport COVERAGE_FILE COVERAGE_RCFILE VIRTUAL_ENV GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_PREFIX
unexport MAKEFLAGS MFLAGS MAKEOVERRIDES
# Without bytecode every process that the tests start would compile the packages again.
unexport PYTHONDONTWRITEBYTECODE
# Pyright comes with its wheel: it neither looks for a newer version nor takes another one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
unexport PYRIGHT_PYTHON_FORCE_VERSION PYRIGHT_PYTHON_PYLANCE_VERSION

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup:  ## create or update .venv
	@sh scripts/setup

demo: setup  ## show what the project does
	@.venv/bin/indus --version
	@.venv/bin/python examples/demo/demo.py

cluster-demo: setup  ## three brokers, three nodes and ten servers: kill a node and a broker under load
	@.venv/bin/python examples/cluster/demo.py

demo-llm: setup  ## show what a real small model does (needs 2 GB of memory, fetches 1.1 GB; TRIES=3)
	@.venv/bin/python -c 'import xllamacpp' 2>/dev/null || .venv/bin/uv pip install --quiet --python .venv/bin/python \
		--no-deps --require-hashes -r outside/local.txt
	@.venv/bin/python -m outside.engine.model
	@.venv/bin/python -m outside.local_model $(if $(TRIES),--tries $(TRIES))

demo-search: setup  ## let a real small model find tools among 527 (needs 2 GB of memory, fetches 1.1 GB; MINUTES=30)
	@.venv/bin/python -c 'import xllamacpp' 2>/dev/null || .venv/bin/uv pip install --quiet --python .venv/bin/python \
		--no-deps --require-hashes -r outside/local.txt
	@.venv/bin/python -m outside.engine.model
	@.venv/bin/python -m outside.search_model $(if $(MINUTES),--minutes $(MINUTES))

test: setup  ## run every check, and print how long each took
	@.venv/bin/python scripts/check.py

lint: setup  ## check format and style
	@.venv/bin/python scripts/check.py lint

types: setup  ## check types
	@.venv/bin/python scripts/check.py types

arrows: setup  ## check which package may import which
	@.venv/bin/python scripts/check.py arrows

unit: setup  ## run the fast tests: those that start no process (for daily work)
	@.venv/bin/python scripts/check.py unit

suite: setup  ## run all tests (SEED= shuffles them and draws new examples)
	@.venv/bin/python scripts/check.py $(if $(SEED),--seed $(SEED)) suite realtime

repeats: setup  ## run all tests 20 times in other orders, half of them under load (COUNT=, LOADED=, SEED=)
	@.venv/bin/python -m outside.repeats $(if $(COUNT),--count $(COUNT)) $(if $(LOADED),--loaded $(LOADED)) $(if $(SEED),--seed $(SEED))

coverage: setup  ## run all tests and measure their coverage
	@echo '== coverage'
	@.venv/bin/coverage erase
	@.venv/bin/coverage run -m pytest -q -n auto --dist worksteal
	@.venv/bin/coverage combine -q
	@.venv/bin/coverage report

reference: setup  ## write the reference pages of the command from its tables
	@.venv/bin/python scripts/reference.py

docs: reference  ## build the documentation into site/
	@sh scripts/docs

wheel: setup  ## build dist/, install the wheel into a fresh environment and run it
	@sh scripts/wheel

format: setup  ## format, and fix what can be fixed automatically
	@.venv/bin/ruff format
	@.venv/bin/ruff check --fix

bench: setup  ## measure speed and memory
	@.venv/bin/python -m bench

soak: setup  ## put mixed load on indus serve and check that nothing grows (MINUTES=30)
	@.venv/bin/python -m bench.soak $(if $(MINUTES),--minutes $(MINUTES))

gate-fuzz: setup  ## run 10,000 generated commands that the permissions allow, and check what they do (COUNT=, SEED=)
	@.venv/bin/python -m outside.permission_fuzz $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

host-fuzz: setup  ## send 100,000 random requests to indus serve --http --auth, and check that it lives (COUNT=, SEED=)
	@.venv/bin/python -m outside.host_fuzz $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

approval-attacks: setup  ## try 20,000 times to reuse, alter or outlive an approval, at one gateway and three nodes (COUNT=, SEED=)
	@.venv/bin/python -m outside.approvals $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

cluster-faults: setup  ## run 500 clusters with seeded faults, and check what clients saw (COUNT=, SEED=)
	@.venv/bin/python -m outside.cluster $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

mutants: setup  ## change one place of src at a time, and check that a test notices (COUNT=, SEED=, UNDER=)
	@.venv/bin/python -m outside.mutants $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED)) $(if $(UNDER),--under "$(UNDER)")

properties: setup  ## try the properties on many examples that no run had before (SEED=)
	@.venv/bin/python -m pytest -q -m hypothesis --timeout 900 --hypothesis-profile many $(if $(SEED),--hypothesis-seed $(SEED)) -n logical --maxprocesses 4 --dist worksteal

stalls: setup  ## run all tests while each is paused once, as on a busy machine (SEED=, CHILDREN=1: and all it has started)
	@.venv/bin/python -m pytest -q -p tests.support.stalls $(if $(SEED),--stall-seed $(SEED)) $(if $(CHILDREN),--stall-children) --timeout 180 -n 8 --dist worksteal

scoreboard: setup  ## probe the native tools, one by one
	@.venv/bin/python -m bench.tools

interop: setup  ## connect to other authors' servers (installs them into .outside)
	@.venv/bin/python -m outside.interop

conformance: setup  ## run the official suite against our client and servers (installs it into .outside)
	@.venv/bin/python -m outside.conformance

clients: setup  ## let other authors' clients use indus serve (installs them into .outside)
	@.venv/bin/python -m outside.clients

clients-search: setup  ## let three of them use indus serve --search (installs them into .outside)
	@.venv/bin/python -m outside.clients.search

adapters: setup  ## let other authors' frameworks use a toolbox, and run the examples (installs them into .outside)
	@.venv/bin/python -m outside.adapters

neighbours: setup  ## install the wheel alone, next to frameworks with mcp 1, and next to mcp 2
	@.venv/bin/python -m outside.neighbours

connectors: setup  ## judge connectors by a real OpenAPI document (fetches it into .outside)
	@.venv/bin/python -m outside.connectors

flow: setup  ## attack gateways in 240 scripted ways, and count questions about benign tasks (fetches them into .outside; SETS=directory)
	@.venv/bin/python -m outside.flow $(if $(SETS),--sets "$(SETS)")

search-bench: setup  ## judge the tool search by public sets, beside FastMCP (fetches them into .outside; SETS=directory)
	@.venv/bin/python -m outside.search_bench $(if $(SETS),--sets "$(SETS)")

review: setup  ## judge the review by public attacks and real servers, split in halves (fetches them into .outside; SETS=directory)
	@.venv/bin/python -m outside.review $(if $(SETS),--sets "$(SETS)")

signin: setup  ## sign in by Chromium, a device and a pasted address; races, kills, a keyring (installs into .outside)
	@.venv/bin/python -m outside.sign_in

resource-server: setup  ## let indus serve --auth check the tokens of another author's issuer (installs it into .outside)
	@.venv/bin/python -m outside.resource_server

page: setup  ## look at every view of the page in Chromium (needs chromium; installs axe into .outside)
	@.venv/bin/python -m outside.page

sandboxes: setup  ## start some 90 servers of other authors in each sandbox profile (installs them into .outside)
	@.venv/bin/python -m outside.sandboxes

coldstart: setup  ## start npx and uvx servers in an empty home, with and without a sandbox, and interrupt them (downloads)
	@.venv/bin/python -m outside.coldstart

floors: setup  ## test with the lowest and the newest versions of our dependencies (installs them into .floors)
	@sh scripts/floors

lock: setup  ## write the lock files (scripts/lock --upgrade takes newer versions)
	@sh scripts/lock

clean:  ## remove everything that make has created
	rm -rf .venv .docs .floors site .bench .outside .coverage .coverage.* .hypothesis .pytest_cache .mypy_cache .ruff_cache
	rm -rf .import_linter_cache build dist
	find src tests bench examples scripts outside -name __pycache__ -prune -exec rm -rf {} +
