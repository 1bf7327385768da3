# The commands of this project. Each builds .venv by itself.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo quick test coverage check format

demo: .venv/demo          ## train on real captchas, score on held-out ones, read them
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

# Two processes test at a time: more threads of torch in each would wait for one another, spinning.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

quick: .venv/ready        ## the daily loop: every test that neither trains, exports, compiles nor kills; about three minutes
	$(PYTEST) -m "not slow" tests

test: check               ## every check and every test
	$(PYTEST) $(PYTEST_ARGS) tests

coverage: PYTEST_ARGS := --cov --cov-report=term
coverage: test            ## the same, and which lines they ran; takes a third longer

check: .venv/ready        ## style, types, who-may-import-whom
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

# Two steps, so that the demo waits for nothing that only the tests need.
.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] <= (3, 12) else "inkmill needs Python 3.11 or 3.12; this is %d.%d: call make with PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[train]'
	touch $@

.venv/ready: .venv/demo
	$(BIN)/pip install --quiet -c constraints.txt -e '.[train,albumentations,dali-cuda13,pdf,serve,dev]'
	touch $@
