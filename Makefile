# Two commands for a newcomer: `make demo` and `make test`. Each sets itself up; a second time that costs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# the environment of vLLM (3.4 GB) for the tests that start it; VLLM=no leaves them out
VLLM ?= yes
LMGYM_VLLM ?= $(CURDIR)/build/vllm
# two ranks on two cores: one thread each
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# tests at a time: more than cores, since some wait
WORKERS ?= 4
# file by file, as they are collected (those that launch come first): what the tests of a file share is made once
# a worker that dies ends its file with a named failure: one in its place can leave pytest-xdist 3.8 waiting for ever
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0

.PHONY: demo test test-times test-full lint docs bench clean

$(VENV)/.installed: requirements.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

demo: $(VENV)/.installed  ## world, SFT, scorer, PPO, and an A/B test of them in the app
	$(BIN)/lmgym demo

test: $(VENV)/.installed-dev  ## what CI runs
	$(PYTEST) --durations=10 -m "not slow"

test-times: $(VENV)/.installed-dev  ## the same, and where its time goes: tests, fixtures, imports
	PYTHONPATH=tests $(PYTEST) -p times -m "not slow"

test-full: export LMGYM_FAMILIES_TABLE = docs/families.md
ifneq ($(VLLM),no)
test-full: export LMGYM_VLLM := $(LMGYM_VLLM)
endif
test-full: $(VENV)/.installed-dev  ## everything, slow launches, quantised weights and vLLM too; writes docs/families.md
	$(BIN)/python -m pip install --quiet --disable-pip-version-check bitsandbytes==0.50.2 trackio==0.43.0
	test -x build/schemathesis/bin/schemathesis || (python3 -m venv build/schemathesis && build/schemathesis/bin/pip install --quiet schemathesis==4.32.5)
	PYTHONPATH=tests/experiments $(BIN)/python tests/openenv_package.py
	test "$(VLLM)" = no || $(BIN)/lmgym engine setup --yes --folder "$(LMGYM_VLLM)"
	$(PYTEST) -rap --durations=15 -m "not slow"; quick=$$?; $(PYTEST) -rap --durations=15 -m slow; exit $$((quick + $$?))

lint: $(VENV)/.installed-dev  ## style, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev  ## the site in build/site; a broken link, a missing name, a figure that its file does not have fails
	$(BIN)/python benchmarks/pages.py --check
	$(BIN)/zensical build --strict
	$(BIN)/python -m pytest tests/docs/test_families_page.py

bench: $(VENV)/.installed-dev  ## speed side by side with TRL; see benchmarks/README.md
	$(BIN)/python benchmarks/reward_training.py --shape S --dtype bf16

clean:  ## everything that can be made again
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache
