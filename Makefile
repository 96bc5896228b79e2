# Every target sets itself up in .venv; it needs Python 3.11 or newer and a package index.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS ?=
STEPS ?= 100000
SEED ?=
SECONDS ?= 1200
AT_ONCE := -n 6 --dist worksteal

.PHONY: demo cluster-demo routes lab docs test test-redis test-docs test-whole test-apps slow conformance mutants million instructions bench bench-quick chaos soak parity matrix release-check upgrade-check check format clean
unexport PYTHONDONTWRITEBYTECODE # the tests start some hundred interpreters: each would compile the package anew
.NOTPARALLEL: # pip must not run twice in one .venv

demo: $(VENV)/.demo
	@$(BIN)/python -m examples.pipeline $(if $(DOCS),--docs "$(DOCS)")

# The pipeline on a cluster of six nodes, whose primary with the jobs is killed in the middle. A minute.
cluster-demo: $(VENV)/.demo
	@$(BIN)/python -m examples.cluster $(if $(DOCS),--docs "$(DOCS)")

routes: $(VENV)/.demo
	@$(BIN)/python -m examples.routes

# A fleet is recorded, a change is computed, made, and measured. Some three minutes.
lab: $(VENV)/.demo $(VENV)/.lab
	@$(BIN)/python -m examples.lab $(if $(DOCS),--docs "$(DOCS)")

# The site of the docs, in build/docs; first what the code says of itself is written into docs/reference.
docs: $(VENV)/.docs
	$(BIN)/python -m docs.pages
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs build/docs
	@echo "The site is in build/docs: open build/docs/index.html"

# What every change needs: some seven minutes on two cores. Six tests at a time, since most of them wait. A part,
# ARGS=tests/policy, runs in one process, which starts at once, with its tests of all tiers but `slow`; ARGS="-n 3
# tests/worker" where it is long.
test: $(VENV)/.test
	$(BIN)/python -m pytest $(if $(ARGS),-n 0 --dist worksteal $(ARGS),--tier=test $(AT_ONCE))

# The same rules on Redis, where `make test` has Valkey.
test-redis: $(VENV)/.test
	$(BIN)/python -m pytest --tier=redis $(AT_ONCE) $(ARGS)

# The docs: every example, page and picture, the site, and the page of the fleet in a browser.
test-docs: $(VENV)/.test
	$(BIN)/python -m pytest --tier=docs $(AT_ONCE) $(ARGS)

# Whole fleets: clusters, cohorts, chaos for seconds, upgrades, migration, and further deaths of real workers.
test-whole: $(VENV)/.test
	$(BIN)/python -m pytest --tier=whole $(AT_ONCE) $(ARGS)

# Airflow, Superset and plugins on stock Celery's transport and on ours, compared. They are installed under build/apps, once.
# Some 15 minutes; ARGS="-k airflow" runs a part.
test-apps: $(VENV)/.apps
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { echo "PostgreSQL is missing: on Debian, apt-get install postgresql"; exit 1; }
	$(BIN)/python -m pytest --tier=apps $(ARGS)

# Further pools, further moments of a death, and much random damage. Some 20 to 30 minutes.
slow: $(VENV)/.test
	$(BIN)/python -m pytest --tier=slow -n 4 --dist worksteal $(ARGS)

# Random steps from a seed that it prints: SEED=... makes the same again. `make test` always makes the same 3,600.
# Some 600 a second, on each server; more of them with `python -m tests.conformance.alone`, which has no server
# and checks only what must hold of any state.
conformance: $(VENV)/.test
	CONFORMANCE_STEPS=$(STEPS) CONFORMANCE_SEED=$(SEED) $(BIN)/python -m pytest tests/conformance/test_conformance.py -s -o timeout=0 $(ARGS)

# Whether the tests would notice a change of the Lua library: N=60 judges that many mutants, a sample that SEED repeats, and
# without N all of them, for many hours, of which an ended run is continued; ARGS=placing/lanes judges those of a part.
mutants: $(VENV)/.test
	$(BIN)/python -m tests.conformance.mutation $(if $(N),--number $(N)) $(if $(SEED),--seed $(SEED)) $(ARGS)

# What each script and each report costs with a million jobs pending, and merged calls. Some 40 minutes.
million: $(VENV)/.test
	$(BIN)/python -m tests.whole.large $(ARGS)

# What each call costs the server in instructions, beside what is recorded: with valgrind, some two minutes. ARGS=--record
# keeps the new numbers, which tests/scheduler/test_instructions.py compares with; some four minutes.
instructions: $(VENV)/.test
	$(BIN)/python -m tests.scheduler.instructions $(ARGS)

# How fast it is beside stock Celery and dramatiq, in turn. Some 40 minutes, or some 5 for the short of it;
# ARGS='drain --only "solo late" --rounds 5' repeats a part.
bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ARGS)

bench-quick: $(VENV)/.bench
	$(BIN)/python -m benchmarks --quick $(ARGS)

# Faults while jobs run, for SECONDS; `make chaos SEED=...` has the same storms again, in another weather: time differs.
chaos: $(VENV)/.test
	$(BIN)/python -m tests.whole.chaos --seconds $(SECONDS) --seed "$(SEED)" --output build/chaos $(ARGS)

# Whether memory, latency and open files stay flat under the highest steady load; SECONDS=600 for ten minutes.
soak: SECONDS = 600
soak: $(VENV)/.test
	$(BIN)/python -m tests.whole.soak --seconds $(SECONDS) $(ARGS)

# Celery's own integration tests on stock Celery and on ours, compared. Some 35 minutes.
parity: $(VENV)/.parity
	$(BIN)/python -m tests.whole.parity $(ARGS)

# The oldest and the newest packages and Pythons that are supported, each in an environment of its own under build/matrix.
# One corner has pre-releases, and may fail. Some seven minutes each; ARGS=oldest runs one, ARGS="--server PATH" the newest
# on another server, ARGS="all --server PATH --write-docs" all of them, for the docs.
matrix: $(VENV)/.test
	$(BIN)/python -m tests.whole.matrix $(ARGS)

# A release as far as it goes without uploading: the packages of a git ref are built and checked, and the README's example
# runs from the wheel on each supported Python that is here. About a minute; ARGS="--ref v1.0.0", else the last commit.
# A wheel that is ready is kept in dist, where upgrade-check finds it.
release-check: $(VENV)/.test
	$(BIN)/python -m tests.whole.release $(ARGS)

# The wheel that was kept last, or the newest release, beside the tree on one server, forth and back, with jobs in all
# states; or another one, ARGS="--from v1.0.0", a commit, or a wheel. A minute and a half.
upgrade-check: $(VENV)/.test
	$(BIN)/python -m tests.whole.upgrade $(ARGS)

check: $(VENV)/.test $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.variable_names celery_affinity
	@command -v luacheck >/dev/null || { echo "luacheck is missing: on Debian, apt-get install lua-check"; exit 1; }
	$(BIN)/python -c "from pathlib import Path; from celery_affinity.lua.library import write_library; write_library(Path('build/lua/library.lua'))"
	luacheck --quiet build/lua/library.lua

format: $(VENV)/.check
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist demo-output .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# One stamp for each set of packages, so that the second run starts at once.
$(VENV)/.%: pyproject.toml tests/without_dependencies.txt | $(BIN)/python
	@echo "Installing what 'make $*' needs into $(VENV), this once ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@$(if $(filter test bench parity apps,$*),$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/without_dependencies.txt)
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "celery_affinity needs Python 3.11 or newer, got " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "no virtual environment: on Debian, apt-get install python3-venv"; exit 1; }
