# `make` lists the commands.

# The Python of the virtual environment: 3.10 or 3.11. Another one: make PYTHON=/path/to/python3.10
FITTING = import sys; sys.exit(sys.version_info[:2] not in ((3, 10), (3, 11)))
PYTHON ?= $(shell for name in python3.11 python3.10 python3; do \
	$$name -c '$(FITTING)' 2>/dev/null && command -v $$name && exit; done; echo python3)

# Three test files at a time: many tests wait for processes, and leave two cores idle.
PYTEST = $(BIN)/python -m pytest -n 3 --dist loadfile

DEMO_ARGS = --data digits --network digits --epochs 15 --batch-size 16
DEMO_FOLDER = runs/demo

BIN = .venv/bin
INSTALLED = .venv/.installed
COMPILED = .venv/.compiled

define CHECK_PYTHON
@$(PYTHON) -c '$(FITTING)' || { \
	echo "hybridps: $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there): MXNet 1.9.1 does not run on it."; \
	echo "It needs NumPy < 1.24, which has wheels for Python 3.10 and 3.11: make PYTHON=/path/to/python3.11"; \
	exit 1; } >&2
endef

.DEFAULT_GOAL := help
.PHONY: help demo check test test-mpich test-impi-rt lint docs bench clean

help:
	@echo 'make demo    train on the digits with two groups of two workers and a server (about a minute)'
	@echo 'make check   after a change: lint, types, unit and contract tests (under three minutes)'
	@echo 'make test    run all tests'
	@echo 'make test-mpich, make test-impi-rt'
	@echo '             run all tests with MPICH or Intel MPI, in an environment of its own (.venv-mpich, .venv-impi-rt)'
	@echo 'make lint    ruff and mypy'
	@echo 'make docs    build the documentation as a site; broken links are errors'
	@echo 'make bench   measure allreduce with 2 and 4 ranks (some minutes); runs/bench has tables and plots'
	@echo 'make clean   remove .venv, runs and caches'
	@echo
	@echo 'The first of them makes .venv with $(PYTHON); MXNet needs Python 3.10 or 3.11:'
	@echo 'make PYTHON=/path/to/python3.11 demo'

demo: $(INSTALLED)
	rm -rf $(DEMO_FOLDER)
	$(BIN)/hybridps run -n 4 --groups 2 --servers 1 --algorithm elastic --run $(DEMO_FOLDER) -- \
		$(BIN)/python examples/imagenet/train.py $(DEMO_ARGS)

check: lint $(COMPILED)
	$(PYTEST) tests/unit tests/contract -m 'not nightly and not slow' --durations=5

test: $(INSTALLED) $(COMPILED)
	$(PYTEST)

# As the modules of these libraries on a cluster do, this names the library on PATH and LD_LIBRARY_PATH.
test-mpich test-impi-rt: test-%: .venv-%/.installed .venv-%/.compiled
	PATH=$(CURDIR)/.venv-$*/bin:$$PATH LD_LIBRARY_PATH=$(CURDIR)/.venv-$*/lib I_MPI_ROOT=$(CURDIR)/.venv-$* \
		I_MPI_FABRICS=shm .venv-$*/bin/python -m pytest -n 3 --dist loadfile

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	$(BIN)/python docs/pictures/draw.py
	$(BIN)/python docs/reference/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'open build/site/index.html; with the search: python3 -m http.server --bind 127.0.0.1 --directory build/site'

bench: $(INSTALLED) $(COMPILED)
	mkdir -p runs/bench
	for ranks in 2 4; do $(BIN)/python -m benchmarks.allreduce --ranks $$ranks \
		--json runs/bench/allreduce-$$ranks.json --plot runs/bench/allreduce-$$ranks.png || exit 1; done
	for workers in 2 4; do $(BIN)/python -m benchmarks.push_pull --workers $$workers --peer mxnet \
		--json runs/bench/push_pull-$$workers.json || exit 1; done
	$(BIN)/python -m benchmarks.ablation --json runs/bench/ablation.json --plot runs/bench/ablation.png
	$(BIN)/python -m benchmarks.rules --json runs/bench/rules.json

clean:
	rm -rf .venv .venv-* runs build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# numba keeps what it compiled as long as a function's own file stays, also where compiled functions that it calls change.
$(COMPILED) .venv-mpich/.compiled .venv-impi-rt/.compiled: %/.compiled: \
		$(shell grep -rl --include='*.py' '^@compiled\|^    @compiled' hybridps) | %/.installed
	@find hybridps -name '*.nb[ic]' -delete
	@touch $@

$(INSTALLED): setup.cfg pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -e '.[mpi,mxnet,demo,test,dev,docs]'
	@touch $@

.venv-mpich/.installed .venv-impi-rt/.installed: .venv-%/.installed: setup.cfg pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet $* -e '.[mxnet,demo,test,dev,docs]'
	@touch $@
