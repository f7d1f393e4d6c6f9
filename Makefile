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

.PHONY: help train test test-plain lint bench bench-quality docs notebooks \
	fuzz sanitize soak coverage clean
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

# The full comparison takes some two hours of one core; ARGS='--only MSE
# RankingLoss' a part of it. What is in the results file is not run again.
bench-quality: $(VENV)/.test  ## Compare how well losses train (ARGS=--help)
	$(BIN)/python -m benchmarks.ranking_quality $(ARGS)
	$(BIN)/python -m benchmarks.ranking_report

docs: $(VENV)/.docs  ## Build the documentation into build/docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

notebooks: $(VENV)/.test  ## Run the notebooks and keep their outputs
	$(BIN)/jupyter-execute --inplace notebooks/*.ipynb

fuzz: $(VENV)/.test  ## The random tests with 20 times as many examples
	TEST_STRUCTURES=100000 TEST_LARGE=1 $(BIN)/python -m pytest \
		--hypothesis-profile=fuzz tests/test_fuzz_native.py \
		tests/test_properties.py tests/test_precision.py $(PYTEST_ARGS)

# Both need GCC, whose runtime must be there before Python is. ThreadSanitizer
# knows nothing of what it has not compiled, such as PyTorch.
sanitize: $(VENV)/.test  ## Kernel tests under ASan, UBSan and TSan
	$(BIN)/python $(INSTALL) cmake nanobind
	$(call sanitized,address,libasan.so libstdc++.so, \
		ASAN_OPTIONS=detect_leaks=0, tests/test_fuzz_native.py \
		tests/test_native.py tests/test_properties.py)
	$(call sanitized,thread,libtsan.so, \
		TSAN_OPTIONS=ignore_noninstrumented_modules=1, \
		tests/test_native.py tests/test_concurrency.py \
		-k 'threads or bits or between')

define sanitized
$(BIN)/cmake -S pyg_rankspmm/csrc -B build/$(1) -DRANKSPMM_SANITIZE=$(1) \
	-DPython_EXECUTABLE=$(BIN)/python
$(BIN)/cmake --build build/$(1) -j $(MAX_JOBS)
$(BIN)/cmake --install build/$(1) --prefix build/$(1)
LD_PRELOAD="$(foreach lib,$(2),$(shell $(CXX) -print-file-name=$(lib)))" \
	TEST_EXTENSION=$$(echo build/$(1)/pyg_rankspmm/_C*.so) $(3) \
	$(BIN)/python -m pytest -s -p no:cacheprovider $(4) $(PYTEST_ARGS)
endef

soak: $(VENV)/.test  ## 2,000 training steps: memory and speed stay
	$(BIN)/python -m benchmarks.soak $(ARGS)

coverage: $(VENV)/.test  ## Which lines the tests run
	$(BIN)/python -m pytest --cov --cov-report=term-missing \
		--cov-fail-under=95 $(PYTEST_ARGS)

clean:  ## Remove the virtual environments and everything generated
	rm -rf $(VENV) $(PLAIN_VENV) build dist outputs *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
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

$(VENV)/.docs: $(VENV)/.train
	$(BIN)/python $(INSTALL) 'pyg_rankspmm[docs]'
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
