# Targets: `make help`.
PY ?= python3
VENV := .venv
BIN := $(VENV)/bin/python
READY := $(VENV)/.ready
LABS := .venv-labs
LABS_BIN := $(LABS)/bin/python
LABS_READY := $(LABS)/.ready
SITE := .venv-site
SITE_BIN := $(SITE)/bin/python
SITE_READY := $(SITE)/.ready
CORE := .venv-core
CORE_BIN := $(CORE)/bin/python
CORE_READY := $(CORE)/.ready
MILES_RL := build/miles-rl
MILES_RL_READY := $(MILES_RL)/.ready
# another build of the same version, for example a wheel's path, or with --index-url ADDRESS
TORCH ?= torch==2.13.0
PIP_QUIET := --quiet --disable-pip-version-check --no-input
export PYTHONPYCACHEPREFIX = $(CURDIR)/build/pycache
export NO_MKDOCS_2_WARNING = 1

.DEFAULT_GOAL := help
.PHONY: help env env-core site screenshot pdf check check-claims check-slow check-labs check-site check-core check-containers test format outputs labs badges kit bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

env: $(READY) ## make the Python environment from the lock file

$(READY): requirements.lock
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PY=/path/to/python3" >&2; exit 2; }
	@test -x $(BIN) || $(PY) -m venv $(VENV)
	$(BIN) -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r requirements.lock
	@touch $(READY)

$(LABS_READY): requirements-labs.lock
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PY=/path/to/python3" >&2; exit 2; }
	@test -x $(LABS_BIN) || $(PY) -m venv $(LABS)
	$(LABS_BIN) -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r requirements-labs.lock
	@touch $(LABS_READY)

site: $(READY) ## build the manual into site/
	@$(BIN) -m scripts.render --site site

check: $(READY) ## recompute every number and test everything
	@$(BIN) -m scripts.check

check-claims: $(READY) ## check only evidence, claims, listings and commands
	@$(BIN) -m scripts.check --only evidence,claims,listings,commands

check-slow: $(READY) ## the tests that start many programs, wait for them, or read long logs
	@$(BIN) -m pytest -m slow --numprocesses=5

check-labs: $(LABS_READY) ## execute the notebooks and compare what they print (own environment)
	@$(LABS_BIN) -m pytest -p no:cacheprovider tests/labs
	@$(LABS_BIN) -m scripts.run_labs

$(SITE_READY): requirements-site.lock
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PY=/path/to/python3" >&2; exit 2; }
	@test -x $(SITE_BIN) || $(PY) -m venv $(SITE)
	$(SITE_BIN) -m pip install $(PIP_QUIET) --require-hashes -r requirements-site.lock
	@touch $(SITE_READY)

check-site: site $(SITE_READY) ## open every page of the site in Chromium, and test it (own environment)
	@$(SITE_BIN) -m pytest -p no:cacheprovider tests/site

screenshot: site $(SITE_READY) ## take the picture of the README anew
	@$(SITE_BIN) -m scripts.screenshot

pdf: site $(SITE_READY) ## print each manual as one PDF into dist/
	@$(SITE_BIN) -m scripts.make_pdf

$(CORE_READY): capture/core/requirements.lock
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PY=/path/to/python3" >&2; exit 2; }
	@test -x $(CORE_BIN) || $(PY) -m venv $(CORE)
	$(CORE_BIN) -m pip install $(PIP_QUIET) --no-deps --require-hashes -r capture/core/requirements.lock
	$(CORE_BIN) -m pip install $(PIP_QUIET) $(TORCH)
	@touch $(CORE_READY)

$(MILES_RL_READY): capture/core/requirements-miles.lock $(CORE_READY)
	@rm -rf $(MILES_RL)
	$(CORE_BIN) -m pip install $(PIP_QUIET) --no-deps --require-hashes --target $(MILES_RL) -r capture/core/requirements-miles.lock
	@touch $(MILES_RL_READY)

env-core: $(CORE_READY) ## make the environment of the OLMo-core trainer (torch)

check-core: $(CORE_READY) $(MILES_RL_READY) ## test the OLMo-core trainer (own environment)
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false MILES_RL=$(CURDIR)/$(MILES_RL) $(CORE_BIN) -m pytest -p no:cacheprovider --numprocesses=2 --dist=loadfile -m "slow or not slow" tests/core

check-containers: $(READY) ## test the kit against a real container engine (needs root)
	@$(BIN) -m pytest tests/containers

test: $(READY) ## run the tests alone
	@$(BIN) -m pytest

format: $(READY) ## format the code
	@$(BIN) -m ruff format .
	@$(BIN) -m ruff check --fix .

outputs: $(READY) ## write the command outputs that the chapters print anew
	@$(BIN) -m scripts.outputs

labs: $(LABS_READY) ## execute the notebooks and store what they print
	@$(LABS_BIN) -m scripts.run_labs --store

badges: $(READY) ## write the badges of the README anew
	@$(BIN) -m scripts.badges

kit: $(READY) ## pack the capture kit into dist/miles-kit.pyz
	@$(BIN) -m scripts.make_kit

bench: $(READY) ## measure the log parser beside grep, a guard's check, and the site beside a plain one
	@status=0; for part in bench bench_guard bench_site; do $(BIN) -m scripts.$$part || status=$$?; done; exit $$status

clean: ## remove everything that a target has made, but not the environment
	rm -rf build site dist .pytest_cache .ruff_cache .hypothesis
