# make demo: build and look at the demo logs. make test: the quick tests on both kernels.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
IN_VENV := VIRTUAL_ENV="$(CURDIR)/$(VENV)" PATH="$(CURDIR)/$(BIN):$$PATH"
WHEELHOUSE := build/wheelhouse
RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

.PHONY: demo env build test test-full bench faults lint format types wheels smoke clean

demo: build
	@echo; echo "== dsh-codec list tests/data/demo"
	@$(BIN)/dsh-codec list tests/data/demo
	@echo; echo "== dsh-codec check tests/data/demo"
	@$(BIN)/dsh-codec check tests/data/demo
	@echo; echo "== dsh-codec info tests/data/demo/v4/session.v4.jsonl.zstd"
	@$(BIN)/dsh-codec info tests/data/demo/v4/session.v4.jsonl.zstd
	@echo; echo "== dsh-codec cat --expand --type text-delta tests/data/demo/v0-packed | head -n 5"
	@$(BIN)/dsh-codec cat --expand --type text-delta tests/data/demo/v0-packed | head -n 5

env: $(VENV)/.packages

$(VENV)/.packages: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python .ci/requirements.py dev > $(VENV)/.requirements
	$(BIN)/python -m pip install --quiet --requirement $(VENV)/.requirements
	touch $@

build: $(VENV)/.native

$(VENV)/.native: $(VENV)/.packages $(RUST_SOURCES)
	$(IN_VENV) maturin develop --release --quiet
	touch $@

test: build
	$(BIN)/python -m pytest -q -m "not slow and not crash and not interop"

test-full: build
	DSH_FAULT_KILLS=200 DSH_LIVE_KILLS=40 DSH_LIVE_TABLE_RUNS=5000 $(BIN)/python -m pytest -q -m "not interop"

# Every fault of the plan on both kernels; the counts go into docs/reliability.md.
faults: build
	rm -f build/faults.json
	for kernel in native pure; do \
	  DSH_CODEC_BACKEND=$$kernel DSH_FAULT_KILLS=200 DSH_FAULTS_REPORT=docs/reliability.md PYTHONPATH=tests \
	  $(BIN)/python -m pytest -q -p fault_tally tests/faults || exit 1; \
	done

bench: build
	$(BIN)/python -m pytest -q benches --full --results benches/RESULTS.md --benchmark-quiet --benchmark-timer=time.process_time

lint: env
	cargo fmt --check
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	cargo clippy --workspace --all-targets --quiet -- -D warnings

format: env
	cargo fmt
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: build
	$(BIN)/mypy
	$(IN_VENV) stubtest dsh_codec._native

# The native wheel fits this machine; the pure one fits all others.
wheels: env
	rm -rf dist
	$(IN_VENV) maturin build --release --quiet --out dist
	$(BIN)/python .ci/pure_wheel.py dist
	ls -l dist

# Installs each wheel into an environment of its own and uses it there.
smoke: $(WHEELHOUSE)/.packages
	.ci/smoke native dist/*-cp*.whl $(WHEELHOUSE)
	.ci/smoke pure dist/*-none-any.whl $(WHEELHOUSE)

$(WHEELHOUSE)/.packages: $(VENV)/.packages
	$(BIN)/python .ci/requirements.py cli pure > $(VENV)/.runtime
	$(BIN)/python -m pip download --quiet --dest $(WHEELHOUSE) --requirement $(VENV)/.runtime
	touch $@

clean:
	rm -rf build dist target $(VENV)/.native
	find python tests benches -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/dsh_codec/_native*.so

# The tests that drive the real runtime (Linux x86-64), which has an environment of its own.
DSH_RUNTIME ?= $(CURDIR)/build/runtime/bin/dsh

.PHONY: interop
interop: build $(DSH_RUNTIME)
	DSH_RUNTIME="$(DSH_RUNTIME)" $(BIN)/python -m pytest -q -m interop

$(CURDIR)/build/runtime/bin/dsh:
	$(PYTHON) -m venv build/runtime
	build/runtime/bin/python -m pip install --quiet deepseek-harness-runtime-bin==0.2.1rc2

# The full run takes them in.
test-full: interop
