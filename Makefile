# Two commands do everything on a fresh machine: make demo, make test.
# Python >= 3.11, chosen with: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV := .venv
CLIENTS := .venv-clients
BIN := $(VENV)/bin

# What the tests need: the tools, and the kernels in C, if they can be compiled.
KERNELS := tensorstore_ds/native/_core.abi3.so
DEV := $(VENV)/dev.stamp $(KERNELS)

PIP := -m pip --disable-pip-version-check -q install
# The package with an extra, into an environment. uv takes a quarter of pip's time. If uv cannot, such as behind a mirror
# that only pip knows, pip does it, or says what is wrong.
define install
	@$(2)/bin/python $(PIP) uv || true
	$(2)/bin/uv pip install -q --python $(2)/bin/python -e '.[$(1)]' || $(2)/bin/python $(PIP) -e '.[$(1)]'
endef

# Python keeps what it has compiled: tests start it hundreds of times, and pytest compiles each of their files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo dev nightly test test-slow test-faults test-install test-arm64 test-remote test-cluster test-gpu-fake test-browser test-clients test-journeys test-lowest dist coverage check docs bench fuzz mutants clean help

help:
	@echo "make demo         install into $(VENV), convert, verify and draw two data sets of real digits, train on one"
	@echo "make test         install with the test tools, run the quick tests; TSDS_DRAW=all with all their variants"
	@echo "make test-slow    the tests that take a second or more, with all their variants"
	@echo "make test-faults  let operations on files fail, and the power; TSDS_FAULTS=full two of each kind, every all"
	@echo "make test-install  install the package with and without its kernels in C, and compile these with all warnings"
	@echo "make test-arm64   compare the kernels in C on arm64 with x86-64, where gcc for aarch64 and qemu-user are installed"
	@echo "make test-remote  copy stores from and to servers that fail: S3 by moto, and nginx where it is installed"
	@echo "make test-cluster convert on Dask, on Ray, in network namespaces and on Slurm, where they are installed"
	@echo "make test-gpu-fake  the tests that need a GPU, on a fake CUDA runtime whose streams run late: Linux with g++"
	@echo "make test-browser  tsds view in Chromium, where it is installed"
	@echo "make test-clients docs/clients.md: train with timm, Ultralytics, JAX and others; WRITE=1 writes its table"
	@echo "make test-journeys  a newcomer's way through all commands, with six data sets; training and other slow steps with two"
	@echo "make test-lowest  some tests with the oldest versions of the dependencies that pyproject.toml allows"
	@echo "make nightly      all of these with all variants and more faults; -k goes on after a step that fails"
	@echo "make dist         the files of a release in dist/, checked, and the wheel installed and used"
	@echo "make coverage     run all tests but the faults, and say which lines none of them runs; htmlcov/ shows them"
	@echo "make check        format, lint, types, direction of imports, documentation, words"
	@echo "make docs         build the documentation into docs/_build/html"
	@echo "make bench        measure the figures; MNIST=DIR with the real PNG files, VOC=DIR with boxes. On a GPU: python -m benchmarks gpu"
	@echo "make fuzz         damaged input at every door, CASES=50000 or MINUTES=30; what fails is kept as a file"
	@echo "make mutants      MODULE=tensorstore_ds/reading: small changes of the code that no test notices; COUNT=60 SEED=0 TESTS=FILES"
	@echo "make clean        remove what these made, $(VENV) and $(CLIENTS) too"

demo: $(VENV)/demo.stamp $(KERNELS)
	$(BIN)/tsds demo

# Few files have quiet or slow tests: pytest collects only these, since it imports what it collects.
TEST_FILES := tests/test_*.py tests/fuzz/test_*.py
# Modules whose examples train or measure: conftest.py marks these examples as slow.
SLOW_EXAMPLES := $$(grep -rlE --include=*.py '>>> .*tsds\.(bench|forecast|train)\(' tensorstore_ds)

dev: $(DEV)

test: $(DEV)
	TSDS_DRAW=$${TSDS_DRAW:-some} $(BIN)/python -m pytest --numprocesses auto --dist worksteal -m 'not quiet and not slow'
	$(BIN)/python -m pytest -m quiet $$(grep -l 'mark\.quiet' $(TEST_FILES))

test-slow: $(DEV)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m 'slow and not quiet' $$(grep -l 'mark\.slow' $(TEST_FILES)) $(SLOW_EXAMPLES)

# Some thousand conversions, on Linux alone: gcc compiles what stands between Python and the C library.
test-faults: $(DEV)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal tests/faults

# Wheels and sdists with and without a compiler, and some tests without the kernels. make test runs all with them.
test-install: $(DEV)
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile tests/install

# Some thousand crops and rows in a small program, under emulation. make test-install runs it, too.
test-arm64: $(DEV)
	$(BIN)/python -m pytest -rs -k arm64 tests/install/test_replay.py

# Servers of this machine's own: nothing is asked outside of it.
test-remote: $(DEV)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal tests/remote

# Clusters on this machine, two at a time; Slurm and namespaces need root. Those of one kind run one after the other.
test-cluster: $(DEV)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/cluster

# torch's own CUDA code without a GPU: tests/fake_cuda is the runtime below it. A real GPU is not touched.
test-gpu-fake: $(DEV)
	$(BIN)/python -m pytest --numprocesses auto tests/fake_cuda

# Chromium of the system, driven by playwright: nothing is downloaded.
test-browser: $(DEV)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal tests/browser

# From the first folder to a shared store, through the command. TSDS_DRAW=SEED repeats a run, TSDS_DRAW=all makes all; JOURNEY_DATA=DIR adds real data.
test-journeys: $(DEV)
	TSDS_DRAW=$${TSDS_DRAW:-some} $(BIN)/python -m pytest --numprocesses auto --dist loadscope tests/journeys

# The frameworks that a data set goes into, some gigabytes: an environment of their own.
test-clients: $(CLIENTS)/stamp
	$(CLIENTS)/bin/python -m pytest tests/clients $(if $(WRITE),--write)

# The floors of pyproject.toml, in an environment of their own; uv finds them. Some files with other than ordinary needs
# of torch, NumPy, zarr and Pillow; TESTS=FILES runs others.
LOWEST := .venv-lowest
LOWEST_TESTS := $(addprefix tests/test_,store.py feed.py writer.py convert.py augment_compiled.py augment_geometry.py crops.py zarr_store.py train.py)
test-lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python $(PIP) uv
	$(LOWEST)/bin/uv pip install -q --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[dev]'
	$(LOWEST)/bin/python -m pytest --numprocesses auto --dist worksteal -m 'not quiet and not slow' $(or $(TESTS),$(LOWEST_TESTS))

# What is published, as RELEASING.md uses it. Nothing of this checkout is seen where the wheel is tried.
dist:
	rm -rf dist .venv-dist
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python $(PIP) build twine
	.venv-dist/bin/python -m build --outdir dist
	.venv-dist/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv --clear .venv-dist
	.venv-dist/bin/python $(PIP) dist/*.whl
	.venv-dist/bin/tensorstore-ds --version
	.venv-dist/bin/tsds verify formats/v1/conformance/valid/minimal.tsds
	rm -rf .venv-dist

# What CI leaves out, too: variants that it draws some of, more faults, and the clients.
nightly: export TSDS_DRAW := all
nightly: export TSDS_FAULTS := full
nightly: export TSDS_ORACLE := 400
nightly: export TSDS_FUZZED := 300
nightly: check test test-slow test-install test-faults test-remote test-cluster test-gpu-fake test-browser test-journeys test-clients test-lowest demo

coverage: $(DEV)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m 'not quiet' --cov --cov-report=
	$(BIN)/coverage html -q
	$(BIN)/coverage report --skip-covered

check: $(DEV) docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/lint

docs: $(DEV)
	$(BIN)/sphinx-build -q -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html

bench: $(DEV)
	$(BIN)/python -m benchmarks $(if $(MNIST),--mnist '$(MNIST)') $(if $(VOC),--voc '$(VOC)')

fuzz: $(DEV)
	PYTHONPATH=tests $(BIN)/python -m fuzz $(if $(MINUTES),--minutes $(MINUTES),--cases $(or $(CASES),50000))

mutants: $(DEV)
	$(BIN)/python tests/mutants.py $(MODULE) --count $(or $(COUNT),60) --seed $(or $(SEED),0) $(if $(TESTS),--only $(TESTS))

$(CLIENTS)/stamp: $(VENV)/dev.stamp
	$(BIN)/python -m venv --clear $(CLIENTS)
	$(call install,clients,$(CLIENTS))
	@if command -v npm >/dev/null; then npm install --silent --no-save --prefix $(CLIENTS) zarrita@0.7; \
		else echo "npm is not here: the tests of zarrita, in JavaScript, will be skipped"; fi
	@touch $@

# An editable install: it is made again only when the list of what is needed changes.
$(VENV)/demo.stamp: pyproject.toml | $(BIN)/python
	$(call install,demo,$(VENV))
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | $(BIN)/python
	$(call install,dev,$(VENV))
	@touch $@ $(VENV)/demo.stamp

# An editable install compiles the kernels, too: this is for later changes of them.
$(KERNELS): $(wildcard tensorstore_ds/native/*.[ch]) tensorstore_ds/native/compile.py | $(BIN)/python
	@$(BIN)/python tensorstore_ds/native/compile.py if-possible

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed, $(PYTHON) is not: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

clean:
	rm -rf $(KERNELS) tensorstore_ds/native/_not_compiled.txt $(VENV) $(CLIENTS) $(LOWEST) .venv-dist demo dist htmlcov docs/_build docs/formats docs/examples .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find cli tensorstore_ds tests benchmarks formats -name __pycache__ -prune -exec rm -rf {} +
