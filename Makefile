# Targets: see 'make help'. Each virtual environment has a stamp file for what
# is installed in it, so that nothing is installed twice; a change in
# pyproject.toml, constraints.txt or a C++ source installs again.
PYTHON ?= python3
VENV ?= .venv
PLAIN_VENV ?= .venv-plain
# Extra options of every 'pip install', of 'make train', and of pytest:
PIP_ARGS ?=
ARGS ?=
PYTEST_ARGS ?=
# Compile jobs for torch_scatter and torch_sparse, about 1.5 GB each:
MAX_JOBS ?= 2
export MAX_JOBS
# Threads that wait do not spin: a busy machine needs the core for the others.
OMP_WAIT_POLICY ?= passive
export OMP_WAIT_POLICY

BIN := $(abspath $(VENV))/bin
PLAIN_BIN := $(abspath $(PLAIN_VENV))/bin
INSTALL := -m pip install --disable-pip-version-check --no-input \
	-c constraints.txt $(PIP_ARGS)
CSRC := $(wildcard pyg_rankspmm/csrc/* pyg_rankspmm/csrc/*/*)
PROJECT := pyproject.toml constraints.txt $(CSRC)

.PHONY: help train test test-plain lint bench bench-quality clean
.DEFAULT_GOAL := help

help:  ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | \
		sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20
	@echo 'Variables: PYTHON VENV PIP_ARGS ARGS PYTEST_ARGS MAX_JOBS,'
	@echo "for example: make train ARGS='--loss mse --epochs 20'"

train: $(VENV)/.train  ## Set up, then train the MovieLens example
	$(BIN)/python examples/movielens_ranking.py $(ARGS)

test: $(VENV)/.test  ## Set up with all test tools, then run the tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-plain: $(PLAIN_VENV)/.test  ## The same without torch_scatter, torch_sparse
	@$(PLAIN_BIN)/python -c "import importlib.util as u, sys; sys.exit( \
		any(map(u.find_spec, ('torch_scatter', 'torch_sparse'))))" || \
		{ echo '$(PLAIN_VENV) holds torch_scatter or torch_sparse'; exit 1; }
	$(PLAIN_BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.lint  ## Run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.test  ## Run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

# The full comparison takes some three hours of one core; ARGS='--only MSE
# RankingLoss' a part of it. What is in the results file is not run again.
bench-quality: $(VENV)/.test  ## Compare how well losses train (ARGS=--help)
	$(BIN)/python -m benchmarks.ranking_quality $(ARGS)
	$(BIN)/python -m benchmarks.ranking_report

clean:  ## Remove the virtual environments and everything generated
	rm -rf $(VENV) $(PLAIN_VENV) build dist outputs *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Environments ################################################################

$(VENV)/.created $(PLAIN_VENV)/.created:
	$(PYTHON) -m venv $(@D)
	@touch $@

$(VENV)/.train: $(VENV)/.created $(PROJECT)
	$(BIN)/python $(INSTALL) -e '.[examples]'
	@touch $@

# The package is there by now: these add what its extras name, and do not
# compile it again.
$(VENV)/.lint: $(VENV)/.train
	$(BIN)/python $(INSTALL) 'pyg_rankspmm[dev,examples]'
	@touch $@

# torch_scatter and torch_sparse import torch when they are built: it must be
# there first, and so must what builds them. Without ninja they would compile
# one file at a time.
$(VENV)/.test: $(VENV)/.train
	$(BIN)/python $(INSTALL) 'pyg_rankspmm[test,examples]' \
		ninja setuptools wheel
	PATH="$(BIN):$$PATH" $(BIN)/python $(INSTALL) --no-build-isolation \
		torch_scatter torch_sparse
	@touch $@

$(PLAIN_VENV)/.test: $(PLAIN_VENV)/.created $(PROJECT)
	$(PLAIN_BIN)/python $(INSTALL) -e '.[test,examples]'
	@touch $@
