# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE =  # a test starts hundreds of processes: none should compile the package again

.PHONY: demo test test-fast test-breaks test-floors lint bench stress docs dist readme clean

demo: .venv/.demo
	$(BIN)/peppermill demo

test: .venv/.dev lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not breaks"

# Break the code on purpose, a dozen times, and see a test fail each time.
test-breaks: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m breaks

# Without torchrun, browser, export and other libraries: under four minutes on two cores.
test-fast: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not breaks"

# With the oldest version of everything that pyproject.toml allows; old libraries may warn.
test-floors:
	$(PYTHON) -m venv .venv-floors
	$(PYTHON) scripts/floors.py > .venv-floors/floors.txt
	.venv-floors/bin/pip install -q -r .venv-floors/floors.txt -e .
	OMP_NUM_THREADS=1 .venv-floors/bin/python -m pytest -n 2 --dist worksteal -W default tests/cli tests/sources tests/export tests/integrations

lint: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/.bench
	$(BIN)/python -m benchmarks

# Hostile tests, an hour or more: `python -m stress --only zoo,threads --count 500` runs some.
stress: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m stress

# The site, in site/: the generated parts of docs/, the gallery, then every page. It opens from disk: site/index.html.
docs: .venv/.dev
	$(BIN)/python scripts/update_docs.py
	OMP_NUM_THREADS=1 $(BIN)/python scripts/build_gallery.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Source archive and wheel in dist/, checked. With REPOSITORY=https://..., links of the README lead there.
dist: .venv/.dev
	rm -rf dist build/release
	$(BIN)/python scripts/release_files.py build/release $(REPOSITORY)
	$(BIN)/python -m build --no-isolation --outdir dist build/release
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

# The README's table and pictures, from a fresh run of the demo.
readme: .venv/.demo
	$(BIN)/python scripts/update_readme.py

.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "peppermill needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml constraints.txt | .venv
	$(BIN)/pip install -q -c constraints.txt -e ".[plots,report]"
	touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	touch $@

.venv/.bench: .venv/.dev
	$(BIN)/pip install -q -c constraints.txt -e ".[dev,bench]"
	touch $@

clean:
	rm -rf .venv .venv-floors peppermill-demo dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
