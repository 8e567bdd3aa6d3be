# Each of `make demo` and `make test` sets up everything it needs on a fresh machine: environment, dependencies, jars, servers.
# Needed beforehand: make, Python 3.11 or newer, Java 17 or newer, and a way to the package registries.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Processes that run tests, each with servers of its own; the tests of one file stay together.
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: store-costs scale redos help setup demo test test-all lint types unit integration coverage acceptance bench bench-long chaos simulator evidence upgrade mutants mutants-generated compat docs release recipes chaos-cluster chaos-chains lock clean

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed to develop; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# The lock is whole: where pip resolves again, a newer release of what a package wants with an extra ends it (coverage[toml]).
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	@touch $(READY)

setup: $(READY)  ## the environment in .venv, from the lock

demo: $(READY)  ## a real pipeline on a real broker, killed again and again; then the same with Spark's own sink
	$(BIN)/onceforall demo

test: $(READY) lint types  ## what guards a commit, in less than 25 minutes
	$(BIN)/python -m pytest -m "not long" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-all: $(READY) lint types  ## that, and what takes longer
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(READY)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## strict mypy
	$(BIN)/mypy

unit: $(READY)  ## the tests that start neither Spark nor a server
	$(BIN)/python -m pytest -m "not spark and not kafka and not postgres"

integration: $(READY)  ## the tests that do
	$(BIN)/python -m pytest -m "spark or kafka or postgres"

coverage: $(READY)  ## names what is untested (TESTS=tests/protocol for a part)
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

acceptance: $(READY)  ## two figures that a reader of the output feels, in build/bench/acceptance.json
	$(BIN)/python benchmarks/acceptance.py

bench: $(READY)  ## everything side by side, for BENCH_MINUTES (240); goes on where it ended; writes build/bench/performance.md
	$(BIN)/python -m benchmarks $(BENCH)

store-costs: $(READY)  ## requests that a batch sends to S3 for its checkpoint; writes docs/store-costs.md
	PYTHONPATH=tests:. $(BIN)/python -m benchmarks.stores.requests

scale: $(READY)  ## what many Kafka transactions cost the driver; writes docs/scale.md
	$(BIN)/python -m benchmarks.scale.transactions --page docs/scale.md

bench-long: $(READY)  ## a query at steady load for BENCH_LONG_MINUTES (60): nothing may grow
	$(BIN)/python -m benchmarks.long_run --minutes $(or $(BENCH_LONG_MINUTES),60)

chaos: $(READY)  ## the crash campaign: kills, freezes and broken networks, for CHAOS_MINUTES (60); goes on where it ended, and from what is published
	PYTHONPATH=tests:. $(BIN)/python -m chaos $(CHAOS)

chaos-cluster: $(READY)  ## four jobs on a cluster of two machines under 200 faults (CHAOS_CLUSTER='--faults 20'); takes root, for namespaces
	PYTHONPATH=tests:. $(BIN)/python -m cluster $(CHAOS_CLUSTER)

chaos-chains: $(READY)  ## the chains over Kinesis and Pravega: kills, freezes, scaling, for an hour (CHAINS='--minutes 5')
	PYTHONPATH=tests:. $(BIN)/python -m chains $(CHAINS)

recipes: $(READY)  ## the recipes of examples/cluster, on a standalone cluster
	./tests/recipes.sh

redos: $(READY)  ## a hundred lost batches of Kafka sources of all shapes (REDOS=100, REDOS_SEED=1), each healed by restarts alone
	REDOS=$(or $(REDOS),100) $(BIN)/python -m pytest -s -q tests/integration/test_many_redos.py

simulator: $(READY)  ## three million simulated schedules with five faults or more, every schedule of small worlds, the Kafka sink over simulated brokers, and the PostgreSQL sink on a real server; goes on from what is published
	mkdir -p build/simulator && test -e build/simulator/state.json || cp docs/simulator-state.json build/simulator/state.json
	$(BIN)/python -m simulator --schedules 3000000 --workers 2
	$(BIN)/python -m simulator.exhaustive --generations 3 --batches 2 --participants 2 --timeouts 2
	$(BIN)/python -m simulator.brokers --schedules 100000 --workers 2
	$(BIN)/python -m simulator.database --schedules 5000 --workers 2
	$(BIN)/python -m simulator.page

evidence: $(READY)  ## which published results are of the code that is checked out, and what would have to run again
	$(BIN)/python -m evidence

upgrade: $(READY)  ## a query of an earlier commit (FROM=…), killed in each state, goes on with today's code
	FROM=$(FROM) $(BIN)/python -m pytest -q tests/upgrade

mutants: $(READY)  ## planted bugs, each of which a test must catch, for MINUTES (240); goes on where it ended, and from what is published
	$(BIN)/python tests/mutants/run.py --resume --minutes $(or $(MINUTES),240)

GENERATED ?= protocol commit_log driver
mutants-generated: $(READY)  ## bugs that operators make of whole folders (GENERATED=…), which the tests that run their lines must catch; goes on where it ended
	test -e build/mutants/lines.json || $(BIN)/python tests/mutants/generated/choosing.py $(foreach folder,$(GENERATED),$(wildcard tests/$(folder))) \
	  -m "not long and not spark and not kafka and not postgres and not s3 and not hdfs and not pravega"
	$(BIN)/python tests/mutants/generated/run.py $(GENERATED) --resume --minutes $(or $(MINUTES),600)

COMPAT ?= 4.0.0 4.1.1 4.3.0
compat: $(READY)  ## the tests of all that touches Spark, and the kills at every step, on other versions of pyspark; writes docs/versions.md
	for version in $(COMPAT); do ./tests/compat.sh $$version || exit 1; done
	$(BIN)/python -m evidence.versions

docs: $(READY)  ## draw the protocol's states from its transition table, what FileSink does with each type, and peers' bugs; then the site, in build/site
	$(BIN)/python docs/draw_protocol.py
	$(BIN)/python docs/draw_files_types.py
	$(BIN)/python docs/draw_peers.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/uvx $(SITE) --from mkdocs==1.6.1 mkdocs build

SITE := --with mkdocs-material==9.8.2 --with mkdocstrings==1.0.8 --with mkdocstrings-python==2.0.11 --with pymdown-extensions==13.1.2 --with ruff

release: $(READY)  ## wheel and sdist in dist/, built twice and compared, checked, and tried in a fresh environment; with an SBOM
	./tests/release.sh

lock:  ## resolve requirements.lock again
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --extra kafka --extra postgres --extra operators --extra stores --extra hdfs --extra s3 --extra azure --extra gcs --extra kinesis --extra pravega --extra connect --extra demo --group dev \
	  --custom-compile-command "make lock" -o requirements.lock pyproject.toml

clean:  ## remove what was built, but not the jars in the cache folder
	rm -rf build dist $(VENV) .venv-compat-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*
