# Two ways in: `make demo` and `make test`. Each sets up what it needs in .venv, quickly the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SAMPLE := sample_traces/slow_operator

.PHONY: demo test test-oldest benchmark clean

demo: $(VENV)/.run
	$(BIN)/kair triage $(SAMPLE)

test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

# The recorder's test trains a real model, so the tests need torch; the pinned version's CPU build.
$(VENV)/.test: $(VENV)/.run
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,record]'
	touch $@

# With the oldest dependencies that pyproject.toml admits.
test-oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet --disable-pip-version-check -c constraints-oldest.txt --editable '.[test,record]'
	.venv-oldest/bin/pytest

benchmark: $(VENV)/.test
	$(BIN)/python benchmarks/start_up.py
	$(BIN)/python benchmarks/tui_speed.py
	$(BIN)/python benchmarks/localize_scale.py
	$(BIN)/python benchmarks/big_table.py

clean:
	rm -rf $(VENV) .venv-oldest .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
