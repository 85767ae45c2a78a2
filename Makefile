# Every target makes the environment that it needs first; a machine needs only Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
# Not compiled: most modules of these packages are never imported, and the others are compiled then.
PIP := python -m pip install --quiet --disable-pip-version-check --no-compile
INSTALL := $(BIN)/$(PIP) --constraint constraints.txt --editable
export PYTORCH_ENABLE_MPS_FALLBACK := 1
# Many container images set it; then every process compiles torch and PennyLane again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test slow colab lint format type lab docs torture bench address clean

help:  ## what each target does
	@grep -E '^[a-z]+: .*##' Makefile | sed -E 's/^([a-z]+):[^#]*## */  make \1\t/' | expand -t 16

# What running needs. The stamp is older than what it was made from: install again.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "qnnkit needs Python 3.11, 3.12 or 3.13, but this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv --clear .venv
	$(INSTALL) .
	@touch $@

# What an extra of pyproject.toml adds to it: `dev` is what testing needs.
.venv/with-%: .venv/installed
	$(INSTALL) '.[$*]'
	@touch $@

run: .venv/installed  ## the main job: digits, a hybrid net with its controls, a report
	$(BIN)/qnnkit run --recipe digits_quanv --run-dir runs/first

# Two files of tests at a time, the longest first (tests/conftest.py), each on one thread: on two cores, more
# threads only wait for each other.
test: .venv/with-dev  ## every test but the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

slow: .venv/with-dev  ## the tests that take long or ask a package registry
	$(BIN)/python -m pytest -m slow -o faulthandler_timeout=1200
	QNNKIT_EXAMPLES=all $(BIN)/python -m pytest tests/simulator/test_random_circuits.py

# A Python with the versions of Colab's image. Name another interpreter: make colab IMAGE_PYTHON=/path/to/python3.13
IMAGE_PYTHON ?= $(firstword $(foreach each,python3.13 python3.12 $(wildcard $(HOME)/.pyenv/versions/3.13*/bin/python) $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python) $(shell uv python find 3.13 2>/dev/null),$(shell $(each) -c 'import sys; print(sys.executable)' 2>/dev/null)))
.colab-image/installed: pyproject.toml constraints.txt tests/notebooks/colab_image.txt
	$(IMAGE_PYTHON) -m venv --clear .colab-image
	.colab-image/bin/$(PIP) --constraint tests/notebooks/colab_image.txt "$$(grep ^torch== constraints.txt)" '.[music,cluster,sweep,track]'
	.colab-image/bin/python -m pip uninstall --quiet --yes qnnkit
	@touch $@

colab: .venv/with-dev  ## a day on Colab, on its Python and versions: restarts, crashes, a lost machine, a Drive that drops
	@if [ -z "$(IMAGE_PYTHON)" ]; then \
	  echo "There is no Python 3.13 or 3.12 here, so nothing was run. Name one: make colab IMAGE_PYTHON=/path/to/python3.13"; \
	else \
	  $(MAKE) --no-print-directory .colab-image/installed && QNNKIT_COLAB_IMAGE=$(CURDIR)/.colab-image/bin/python \
	  $(BIN)/python -m pytest -s -m "slow or not slow" -o faulthandler_timeout=1200 tests/notebooks/test_colab_image.py; \
	fi

lint: .venv/with-dev  ## style, common mistakes and which part imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

format: .venv/with-dev  ## mend what lint can mend by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: .venv/with-dev  ## types, by pyright
	$(BIN)/pyright

lab: .venv/with-lab  ## JupyterLab with the notebooks and the runs
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks

docs: .venv/with-docs  ## the documentation site, in docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

torture: .venv/with-dev  ## kill trainings (mirrored ones too), notebook chains and batches at random moments, and compare
	QNNKIT_KILLS=50 $(BIN)/python -m pytest -m slow -v -o faulthandler_timeout=0 tests/runs/test_torture.py

bench: .venv/with-bench  ## time and memory of PennyLane's simulators, JAX and qnnkit, as a table
	$(BIN)/python -m benchmarks.run

# Needs no environment.
address:  ## write the repository's address into badges and notebooks: make address REPO=owner/name
	@$(PYTHON) docs/address.py '$(REPO)'

clean:  ## remove the environment and caches, keep runs
	rm -rf .venv .colab-image .pytest_cache .ruff_cache docs/_build docs/api docs/notebooks *.egg-info
