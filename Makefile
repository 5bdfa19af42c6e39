# Everything runs in a virtual environment of its own, .venv, that these targets create. Needs python3 >= 3.11 and gcc.
PYTHON ?= python3
BIN := .venv/bin
KERNELS := setup.py $(wildcard npusim/*.pyx npusim/*.pxd npusim/kernels/*.h)

.DEFAULT_GOAL := help
.PHONY: help demo run test slow acceptance bench lint build clean

help:  ## this list
	@grep -hE '^[a-z]+:.*  ## ' $(MAKEFILE_LIST) | awk -F ':.*  ## ' '{printf "make %-12s %s\n", $$1, $$2}'

demo: .venv/core  ## build everything, then compute and time a small network on the simulated device
	$(BIN)/npusim demo

run: .venv/onnx  ## run a model: make run MODEL=resnet50.onnx [CONFIG=edge] [ARGS="--json run.json"]
	@test -n "$(MODEL)" || { echo "make run: say which model: make run MODEL=resnet50.onnx"; exit 2; }
	$(BIN)/npusim run $(MODEL) --config $(or $(CONFIG),edge) $(ARGS)

test: .venv/test  ## the tests, in minutes
	$(BIN)/pytest

slow: .venv/test  ## the tests that the default run leaves out
	$(BIN)/pytest -m slow

acceptance: .venv/test  ## real networks, compared with onnxruntime; long
	$(BIN)/pytest -m acceptance

bench: .venv/test  ## speed and memory on real networks, as ratios
	$(BIN)/python -m bench.run_models

lint: .venv/dev  ## style, types, import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint npusim
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml npusim._core
	$(BIN)/lint-imports --no-cache

build: .venv/dev  ## wheel and sdist, in dist/
	$(BIN)/python -m build --outdir dist .

clean:  ## remove the environment and everything built
	rm -rf .venv build dist *.egg-info npusim/*.so

# The stamps: the package itself is installed once, editable; what the extras list is added without building it again.
.venv/core: pyproject.toml $(KERNELS)
	@echo "setting up .venv: packages are downloaded and the kernels compiled, which takes a minute or two"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/%: .venv/core
	$(BIN)/python .ci/extra.py $* > .venv/$*.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement .venv/$*.txt
	@touch $@

.venv/dev: .venv/test
