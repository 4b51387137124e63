# Every target sets up what it needs (tools/bootstrap: .venv, pinned versions) and says so while
# it does. Nothing has to be prepared but a Python of 3.11 or newer.

# Extras that `make up` and the tests need.
EXTRAS ?= lake
# Processes that `make test` runs at once. Tests wait more than they compute.
JOBS ?= 4
# 1: tests fork their roles from a process that has imported the package (tests/kit/forked.py).
FORKED_ROLES ?= 1
# The form of `make faults`: long, or short as in `.ci/run`.
FAULTS ?= long
# How many seeds of the campaign `make faults` draws and runs instead of all fault runs.
SEEDS ?=
# More arguments for the command behind a target: make test ARGS="-k lease -x"
ARGS ?=

BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help up demo test check bench faults fuzz docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# exec: the signal that make passes on must reach angarium, not a shell in between.
up: ## start everything in the foreground; Ctrl-C stops it
	@tools/bootstrap --extras "$(EXTRAS)"
	@exec $(BIN)/angarium up $(ARGS)

demo: ## a support chat through every module, with kills, and the balance at its end
	@tools/bootstrap --extras "$(EXTRAS)"
	@exec $(BIN)/angarium demo $(ARGS)

# Roles and test processes start faster from compiled files, so they are written here even where
# the environment forbids it elsewhere.
test: export PYTHONDONTWRITEBYTECODE =
test: export FORKED_ROLES := $(FORKED_ROLES)
test: ## all tests but the fault runs, on servers they start themselves; ARGS="-k word" picks some
	@tools/bootstrap --extras "$(EXTRAS)" --groups dev --browser
	@$(BIN)/python -m pytest -n $(JOBS) --max-worker-restart=2 --ignore=tests/faults $(ARGS)

# Runs every step even when one fails, so that one run shows everything there is to mend.
check: ## lint, format, types, import layers, generated docs, security
	@tools/bootstrap --extras "$(EXTRAS)" --groups dev
	@failed=; \
	step() { echo "· $$*"; "$(BIN)/$$@" || failed="$$failed [$$*]"; }; \
	step ruff check .; \
	step ruff format --check .; \
	step mypy; \
	step lint-imports; \
	step python tools/reference.py --check; \
	step bandit -q -ll -c pyproject.toml -r src; \
	step python tools/audit.py; \
	if [ -n "$$failed" ]; then echo "check failed:$$failed" >&2; exit 1; fi

bench: ## the benchmarks, half an hour; writes docs/benchmarks.md; ONLY=name,name runs some
	@tools/bootstrap --extras "$(EXTRAS)" --groups bench
	@ONLY="$(ONLY)" $(BIN)/python -m benchmarks $(ARGS)

# The long runs outlast the time limit that pytest gives a test elsewhere. They also search for new
# examples of the properties, one test at a time; the short ones run beside each other.
ifneq ($(SEEDS),)
fault_runs := tests/faults/test_campaign.py -k nothing_is_lost --timeout=3600 -s
else ifeq ($(FAULTS),long)
fault_runs := tests/faults tests/properties tests/pickup/test_order.py tests/findings/test_f26.py \
  tests/cli/test_ctrl_c.py --timeout=3600 -s
else
fault_runs := tests/faults -n 2
endif
faults: export PYTHONDONTWRITEBYTECODE =
faults: ## processes killed and paused under load, for hours; FAULTS=short takes minutes, SEEDS=20 runs campaigns only
	@tools/bootstrap --extras "$(EXTRAS)" --groups dev
	@FAULTS=$(FAULTS) CAMPAIGN_SEEDS=$(SEEDS) $(BIN)/python -m pytest $(fault_runs) $(ARGS)

fuzz: ## every parser of foreign bytes under a fuzzer; ARGS="--seconds 600 frames" for one
	@tools/bootstrap --extras "$(EXTRAS)" --groups dev,fuzz
	@$(BIN)/python -m tests.fuzz $(ARGS)

docs: ## the documentation as a site, into site/
	@tools/bootstrap --groups docs
	@$(BIN)/zensical build --strict -f mkdocs.yml $(ARGS)

lock: ## resolve requirements.lock anew from pyproject.toml; UPGRADE=1 takes the newest versions
	@tools/bootstrap --lock $(if $(UPGRADE),--upgrade)

clean: ## remove the environment, caches and built files; data in .angarium stays
	@rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build site
	@find . -path ./.angarium -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
