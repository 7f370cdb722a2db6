# Everything runs in .venv, which `make setup` creates from requirements.lock; `make help` lists the targets.
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
SERVICES := spark or broker or dagster or browser
PARALLEL := -n 2 --dist worksteal
# In the order of the files: modules with few tests take longest here, so they must not come last.
BY_MODULE := -n 2 --dist loadscope --no-loadscope-reorder
# If this were set, each of the tests' hundreds of Python processes would compile everything that it imports: Dagster
# with Weir's definitions would take 3.3 s of CPU instead of 1.7.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo cluster-demo check quick test faults fuzz simulate bench wheels lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Create .venv with the locked packages, this project and the Java jars; quick if all is there
	@tools/setup.sh

demo: setup ## Load 336,776 flights, run the flights application, serve the Dagster UI
	.venv/bin/weir demo $(ARGS)

cluster-demo: setup ## Run the flights on a Spark cluster: a master and two workers, each with state of its own
	.venv/bin/weir demo --workers 2 $(ARGS)

check: setup ## Formatter, linter and type checker
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy

quick: setup ## Tests that need neither Spark nor a broker, and no slow ones: about a minute
	$(PYTEST) $(PARALLEL) -m "not ($(SERVICES) or faults or slow or long)"

test: check ## All tests but the long ones: two at a time, then those with services by module, then the timed ones alone
	@tools/setup.sh --browser
	$(PYTEST) $(PARALLEL) -m "not ($(SERVICES) or long)"
	$(PYTEST) $(BY_MODULE) -m "($(SERVICES)) and not (timed or long)" --durations=12
	$(PYTEST) -m timed

faults: setup ## Soak 20 minutes (SOAK=1200), operate for an hour (HOUR=3600), kill 300 times, and all that test only samples
	@tools/setup.sh --browser
	FAULT_KILLS=300 SOAK_SECONDS=$(or $(SOAK),1200) OPERATE_SECONDS=$(or $(HOUR),3600) SIMULATE_MUTANTS=all \
		$(PYTEST) -m "faults or long"
	ORDER_EXAMPLES=300 $(PYTEST) $(PARALLEL) tests/pipelines/order tests/pipelines/evolution_random
	ALL_EXAMPLES=1 $(PYTEST) $(PARALLEL) -m "hypothesis or combined" --ignore=tests/pipelines/order

fuzz: setup ## Fuzz serdes and C by coverage, and keep new inputs; SECONDS=60 for each target, ARGS="json columns"
	$(PYTHON) -m tests.fuzz --seconds $(or $(SECONDS),60) $(ARGS)

simulate: setup ## Live through SEEDS=1000 simulated worlds with faults; SEED=n replays one, ARGS="--mutant NAME" breaks a rule
	$(PYTHON) -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000)) $(ARGS)

bench: setup ## Measure beside Kafka Streams, Flink and others; ARGS="--quick" for a short run, "--peers NAME,..." to choose
	$(PYTHON) -m bench $(ARGS)

wheels: setup ## Build what is published into dist: the sdist, and wheels for x86_64 and aarch64
	@tools/wheels.sh

lock: setup ## Resolve requirements.lock from pyproject.toml
	.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes \
		--no-emit-index-url --no-annotate --custom-compile-command "make lock" -o requirements.lock pyproject.toml

clean: ## Remove .venv, caches and the folder of runs
	rm -rf .venv .weir build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis infra/kafka/_columns*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
