# Overridable: VENV=DIR (an environment of your own, e.g. a conda one), PROFILE=demo|cpu|writeup,
# RUN=NAME (the folder under runs/), PYTEST_ARGS='-k gateway'.
VENV ?= .venv
PROFILE ?= demo
RUN ?=
RESULTS ?= docs/results/cpu-pi
PYTEST_ARGS ?=
PY := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup demo pipeline test check bench reproduce corpus warm-start lab lock clean

help:  ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Any Python can report what is missing; the environment itself is made with Python 3.11.
setup:  ## Make .venv and .node from the lock files (quick where all is there)
	@for p in python3.11 python3 python; do \
	  if $$p -c '' 2>/dev/null; then exec $$p scripts/setup.py --venv '$(VENV)'; fi; \
	done; echo 'set-up: there is no Python on PATH; install python3.11 with its venv module' >&2; exit 1

demo: setup  ## From seed trajectories to a report on two CPU cores
	$(PY) notebooks/pipeline.py demo $(if $(RUN),--run $(RUN))

pipeline: setup  ## The notebooks of a profile: make pipeline PROFILE=cpu RUN=name
	$(PY) notebooks/pipeline.py $(PROFILE) $(if $(RUN),--run $(RUN))

test: setup  ## Every test: unit, integration, notebooks
	$(PY) -m pytest $(PYTEST_ARGS)

check: setup  ## Lint, format, types, layers, parameters, unit tests
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest tests/unit $(PYTEST_ARGS)

bench: setup  ## Measure session overhead, gateway time and memory
	$(PY) -m tests.bench

reproduce: setup  ## Recompute the shipped interval, without a model
	$(PY) -m agentkit.reproduce $(RESULTS)

corpus: setup  ## Record the seed trajectories again
	$(PY) -m agentkit.record_corpus --out agentkit/data/seed_trajectories

warm-start: PROFILE = cpu
warm-start: setup  ## Train the warm-start adapter again (RUN), from tasks made anew
	$(PY) notebooks/pipeline.py $(PROFILE) --only 01_synthesise $(if $(RUN),--run $(RUN))
	$(PY) -m agentkit.training.warm_start_cli params/$(PROFILE)/warm_start.yaml $(if $(RUN),--run $(RUN))

lab: setup  ## Open the notebooks
	$(PY) -m jupyterlab notebooks

lock: setup  ## Write requirements-cpu.lock from the environment
	$(PY) scripts/lock.py

clean:  ## Remove what set-up and the tools made here; never runs/
	rm -rf .venv .node/node_modules .setup.log agentkit.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find agentkit notebooks scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
