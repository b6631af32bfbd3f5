# A fresh checkout needs only `make demo` and `make test`; each installs what it lacks into .venv.
PORT ?= 8080
RESULTS ?= docs/results
PYTHON_IN_VENV := .venv/bin/python
# Two processes more than there are cores: many tests wait for a server.
PROCESSES = $(shell cores=$$(nproc); echo $$((cores < 4 ? cores + 2 : 4)))
PYTEST = .venv/bin/pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 15 --durations-min 5
SHELL := /bin/bash

# Without bytecode every process compiles what it imports, and pytest rewrites the modules of its plugins each time.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help install demo wheel release test lint format typecheck java pytest slow faults docs bench bench-floor lock clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

install: ## Install what the service needs into .venv
	@deploy/install/install runtime

demo: install ## Serve the demo bundle on 127.0.0.1:8080 (PORT=8081 make demo for another port)
	@.venv/bin/lightretriever demo --folder demo/bundle --port $(PORT)

wheel: ## Build the wheels of the program and of its demo in dist/: pip install both, then lightretriever demo
	@deploy/install/install runtime
	@$(PYTHON_IN_VENV) deploy/wheel/build.py

release: ## Build dist/ anew: both wheels, what the program is made of as CycloneDX JSON, and checksums
	@rm -rf dist
	@$(MAKE) --no-print-directory wheel
	@deploy/install/install release
	@.venv/bin/cyclonedx-py requirements deploy/requirements/runtime.txt --pyproject pyproject.toml --of JSON --output-file dist/sbom.cdx.json
	@cd dist && sha256sum -- * >SHA256SUMS && cat SHA256SUMS

test: ## Install everything the tests need, then run all checks and tests; prints how long each part took
	@began=$$SECONDS; took=; \
	deploy/install/install dev && deploy/install/install-system || exit; \
	took="installation $$((SECONDS - began)) s"; \
	for part in lint typecheck java pytest; do \
		began=$$SECONDS; \
		$(MAKE) --no-print-directory $$part || exit; \
		took="$$took, $$part $$((SECONDS - began)) s"; \
	done; \
	echo "Took: $$took"

lint: ## Check style and formatting
	.venv/bin/ruff check
	.venv/bin/ruff format --check

format: ## Apply the formatting
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

typecheck: ## Check the types
	.venv/bin/mypy --num-workers 2

java: ## Check that the committed Java classes are those of the committed source
	deploy/java --check

pytest: ## Run the tests only
	$(PYTEST)

slow: ## Run the tests that `make test` leaves out: the image, the chart, proxies, other clients, framework adapters, the wheel, the site, the page in full, the how-tos, Ray, long faults and builds
	@deploy/install/install slow
	@deploy/install/install-system slow
	$(PYTEST) --slow -m slow

faults: ## Break the service and the pipeline on purpose, at full length (about an hour), and record the figures
	@deploy/install/install dev
	.venv/bin/pytest tests/faults --slow --full-faults --record-faults $(RESULTS)/reliability.json
	$(PYTHON_IN_VENV) -m research.pages.results

docs: ## Make a site of the documentation in build/docs
	@deploy/install/install docs
	$(PYTHON_IN_VENV) -m sphinx --quiet --fail-on-warning --keep-going --jobs auto -c docs . build/docs
	@echo "The site begins at build/docs/index.html"

bench: ## Compare the service with other systems under load: BUNDLE=… QUERIES=… OUTPUT=… [OPTIONS=…], see docs/lab/method.md
	$(if $(and $(BUNDLE),$(QUERIES),$(OUTPUT)),,$(error Give BUNDLE, QUERIES and OUTPUT, see docs/lab/method.md))
	@deploy/install/install pipeline
	@deploy/install/install loadtest
	$(PYTHON_IN_VENV) -m research.servers $(BUNDLE) --queries $(QUERIES) --output $(OUTPUT) $(OPTIONS)

bench-floor: ## Measure what a search costs above the libraries that answer it: BUNDLE=… QUERIES=… [OPTIONS=…], see docs/speed.md
	$(if $(and $(BUNDLE),$(QUERIES)),,$(error Give BUNDLE and QUERIES, see docs/speed.md))
	@deploy/install/install dev
	$(PYTHON_IN_VENV) -m research.floor $(BUNDLE) --queries $(QUERIES) $(OPTIONS)
	$(PYTHON_IN_VENV) -m research.pages.results

lock: ## Pin the newest versions that pyproject.toml allows, in deploy/requirements/
	$(PYTHON_IN_VENV) deploy/install/lock.py

clean: ## Remove .venv, caches and the unpacked demo bundle
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis demo/bundle demo/.bundle.sha256
