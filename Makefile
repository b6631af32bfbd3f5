# `make demo` and `make test` are all that a fresh checkout needs; each installs what it lacks into .venv.
PORT ?= 8080
RESULTS ?= docs/results
PYTHON_IN_VENV := .venv/bin/python

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help install demo test lint format typecheck pytest slow faults java gate instructions docs image bench lock clean

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

install: ## Install what the service needs into .venv
	@scripts/install runtime

demo: install ## Serve the demo bundle on 127.0.0.1:8080 (PORT=8081 make demo for another port)
	@$(PYTHON_IN_VENV) scripts/demo.py --port $(PORT)
	.venv/bin/lightretriever serve demo/bundle --host 127.0.0.1 --port $(PORT)

test: ## Install everything the tests need, then run all checks and tests
	@scripts/install dev
	@scripts/install-system
	@$(MAKE) --no-print-directory lint typecheck java pytest gate

lint: ## Check style and formatting
	.venv/bin/ruff check
	.venv/bin/ruff format --check

format: ## Apply the formatting
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

typecheck: ## Check the types
	.venv/bin/mypy

java: ## Check that the committed Java classes are those of the committed source
	$(PYTHON_IN_VENV) -m lightretriever.artifacts.sparse.compile --check

gate: ## Check that no stage of a search became slower than at the baseline
	@$(PYTHON_IN_VENV) scripts/demo.py --unpack
	$(PYTHON_IN_VENV) -m lightretriever.loadtest.gate

instructions: ## Compare the instructions that the stages take with those of the baseline, in valgrind
	@command -v valgrind >/dev/null || scripts/apt-get-install valgrind
	@$(PYTHON_IN_VENV) scripts/demo.py --unpack
	$(PYTHON_IN_VENV) -m lightretriever.loadtest.instructions demo/bundle --baseline $$(cat loadtest/baseline)

pytest: ## Run the tests only
	.venv/bin/pytest --numprocesses logical --maxprocesses 4 --dist loadfile

slow: ## Run the slow tests, which `make test` leaves out: the container image, instruction counts, long builds
	@scripts/install dev
	@scripts/install-system
	.venv/bin/pytest --slow -m slow --numprocesses logical --maxprocesses 4 --dist loadfile

faults: ## Break the service and the pipeline on purpose, at full length (about an hour), and record the figures
	@scripts/install dev
	.venv/bin/pytest tests/faults --slow --full-faults --record-faults $(RESULTS)/reliability.json
	$(PYTHON_IN_VENV) -m scripts.results

docs: ## Make a site of the documentation in build/docs
	@scripts/install docs
	$(PYTHON_IN_VENV) -m sphinx --quiet --fail-on-warning --keep-going --jobs auto -c docs . build/docs
	@echo "The site begins at build/docs/index.html"

image: install ## Build the container image without a container engine: as root on Debian
	@command -v buildah >/dev/null && command -v mmdebstrap >/dev/null || scripts/apt-get-install buildah mmdebstrap
	$(PYTHON_IN_VENV) -m scripts.image

bench: ## Load test against other systems: BUNDLE=… QUERIES=… [MODEL=… ADAPTER=… OPTIONS=…], see docs/speed.md
	$(if $(and $(BUNDLE),$(QUERIES)),,$(error Give BUNDLE=path/to/bundle and QUERIES=path/to/queries, see docs/speed.md))
	@scripts/install pipeline
	@scripts/install loadtest
	$(PYTHON_IN_VENV) -m lightretriever.loadtest.bench $(BUNDLE) --queries $(QUERIES) --output $(RESULTS) \
		$(if $(MODEL),--model $(MODEL)) $(if $(ADAPTER),--adapter $(ADAPTER)) $(OPTIONS)

lock: ## Pin the newest versions that pyproject.toml allows, in requirements/
	$(PYTHON_IN_VENV) scripts/lock.py

clean: ## Remove .venv, caches and the unpacked demo bundle
	rm -rf .venv artifacts/*.so build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis demo/bundle demo/.bundle.sha256
