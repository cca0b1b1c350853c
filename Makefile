# Every target creates the environment in .venv first, if it is not there.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup reproduce test test-gpu check-kernels sanitize docs lint type format clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@echo "Installing into .venv, which takes a minute or two."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

reproduce: setup
	$(BIN)/python -m hyla.demo

test: setup
	$(BIN)/pytest

# Where there is no GPU, no test is skipped silently.
test-gpu: setup
	@$(BIN)/python -c "import torch; torch.cuda.is_available() or exit('no GPU: PyTorch finds none')"
	$(BIN)/pytest -m gpu -n 0

check-kernels: setup
	$(BIN)/python benchmarks/registers.py

# Accesses out of bounds in the libraries for CPUs.
sanitize: setup
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=tests $(BIN)/python tests/sanitized.py

# The site in build/docs. Tutorials are run; a warning is an error.
docs: setup
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs
	@echo "The site: build/docs/index.html"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
