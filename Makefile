# `make demo` shows the product, `make check` is for every change, `make test` for what is to be kept, `make test-live`
# for what touches running jobs.
# Each sets up what it needs in .venv, quickly the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SAMPLE := sample_traces/slow_operator
JOB := job123

.PHONY: demo check test test-live test-oldest benchmark board clean

demo: $(VENV)/.run
	$(BIN)/kair triage $(SAMPLE)
	@# A job of that name that is there already stays as it is.
	@$(BIN)/kair info $(JOB) > /dev/null 2>&1 || $(BIN)/kair import sample_traces/$(JOB) --job $(JOB)
	@$(BIN)/kair use $(JOB)
	@echo "Try: $(BIN)/kair blame --step 40 --json | jq .data.root_causes[0]   and   $(BIN)/kair-tui $(JOB)"

# Files go to one process each, in the order of tests/conftest.py: what a file's tests share is made once.
PYTEST := -n auto --dist loadfile --no-loadscope-reorder

# Where this is set, every process would compile every module again: three seconds in each that runs tests.
unexport PYTHONDONTWRITEBYTECODE

# Lint, types, import contracts and tests; `check` leaves out those marked slow, both those of live jobs.
check: PYTEST += -m "not slow and not live"
test: PYTEST += -m "not live"
check test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# mypy takes 25 seconds of one core the first time: contracts and types run beside the tests, and speak after them.
	($(BIN)/lint-imports && $(BIN)/mypy) > $(VENV)/.types 2>&1 & types=$$!; \
	$(BIN)/pytest $(PYTEST); tests=$$?; \
	wait $$types; types=$$?; \
	cat $(VENV)/.types; \
	exit $$((tests | types))

$(VENV)/.run: pyproject.toml hatch_build.py engine/kair_engine/readers/kineto/compiled/scan.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

# The recorder's test trains a real model, so the tests need torch; the pinned version's CPU build.
$(VENV)/.test: $(VENV)/.run
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,record]'
	@# What is compiled the first time is compiled here, and not by each of the processes that run tests.
	$(BIN)/pytest --collect-only -q > /dev/null
	touch $@

# Real training jobs of several processes, captured, slowed down, killed and mitigated: minutes of waiting. On a machine
# whose cores others take, a healthy rank is really slow: what failed is run once more, alone, and must pass then.
test-live: $(VENV)/.test
	$(BIN)/pytest $(PYTEST) -m live || $(BIN)/pytest -m live --last-failed --last-failed-no-failures none

# With the oldest dependencies that pyproject.toml admits.
test-oldest:
	$(PYTHON) -m venv .venv-oldest .venv-build dist
	.venv-oldest/bin/pip install --quiet --disable-pip-version-check -c constraints-oldest.txt --editable '.[test,record]'
	.venv-oldest/bin/pytest $(PYTEST)

# Figures of a chosen set of scripts, into benchmarks/RESULTS.md, beside those of the last three runs; CHECK=1 fails where
# one is more than 15 % worse. HTA; TRACELENS, TRACES and PATTERN: peers (python benchmarks/suite.py --help).
benchmark: $(VENV)/.test
	$(BIN)/python benchmarks/suite.py $(if $(CHECK),--check) $(if $(HTA),--hta-python $(HTA)) \
		$(if $(TRACELENS),--tracelens $(TRACELENS) --traces $(TRACES) --pattern '$(PATTERN)')

# What each tool says of recordings whose truth others told: COPIES holds them fetched, at COPIES/OWNER/NAME (what is not
# there is skipped); HTA and TRACELENS are the pythons of environments that have these installed (without: not run).
COPIES ?= $(KAIR_BOARD_COPIES)
board: $(VENV)/.run
	$(BIN)/python -m validation.board --write $(if $(COPIES),--copies $(COPIES)) \
		$(if $(HTA),--hta-python $(HTA)) $(if $(TRACELENS),--tracelens-python $(TRACELENS))

clean:
	rm -rf $(VENV) .venv-oldest .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# What can be handed out, in dist/: the source and a wheel for this host (`wheels`: for those that are released, `none` for
# all others), checked; one executable file; wheels for a host without a network. PLATFORM and TARGET_PYTHON name that host's.
TARGETS ?= native
RELEASED := x86_64-linux-gnu.2.17 aarch64-linux-gnu.2.17 none
PLATFORM ?= manylinux_2_28_x86_64
TARGET_PYTHON ?= 3.11
BUILD := .venv-build
WHEELHOUSE := dist/kair-wheelhouse-$(TARGET_PYTHON)-$(PLATFORM)

.PHONY: dist wheel wheels pex wheelhouse release

$(BUILD)/.done: Makefile
	$(PYTHON) -m venv $(BUILD)
	$(BUILD)/bin/pip install --quiet --disable-pip-version-check build 'hatchling>=1.26' shiv twine
	touch $@

# It compiles for other hosts: 100 MB.
$(BUILD)/.zig: $(BUILD)/.done
	$(BUILD)/bin/pip install --quiet --disable-pip-version-check ziglang
	touch $@

dist: $(BUILD)/.done
	rm -rf dist/kair-*.whl dist/kair-*.tar.gz
	$(BUILD)/bin/python -m build --no-isolation --sdist --outdir dist . > /dev/null
	for target in $(TARGETS); do \
		KAIR_TARGET=$$target $(BUILD)/bin/python -m build --no-isolation --wheel --outdir dist . > /dev/null || exit; \
	done
	$(BUILD)/bin/twine check --strict dist/kair-*.whl dist/kair-*.tar.gz

wheel: dist

wheels: TARGETS := $(RELEASED)
wheels: $(BUILD)/.zig dist

# One file that any Python of that version starts, without pip; it unpacks itself the first time, to ~/.shiv.
pex: wheelhouse
	$(BUILD)/bin/shiv --quiet --compressed --reproducible --console-script kair --python '/usr/bin/env python3' \
		--output-file dist/kair.pyz --no-index --find-links $(WHEELHOUSE) kair

wheelhouse: $(BUILD)/.zig
	rm -rf $(WHEELHOUSE)
	KAIR_TARGET=$$(echo $(PLATFORM) | sed -E 's/manylinux_([0-9]+)_([0-9]+)_(.+)/\3-linux-gnu.\1.\2/') \
		$(BUILD)/bin/python -m build --no-isolation --wheel --outdir $(WHEELHOUSE) . > /dev/null
	$(BUILD)/bin/pip download --quiet --disable-pip-version-check --only-binary :all: --platform $(PLATFORM) \
		--platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		--python-version $(TARGET_PYTHON) --dest $(WHEELHOUSE) $(WHEELHOUSE)/kair-*.whl
	cp deploy/offline/install.sh $(WHEELHOUSE)
	cd $(WHEELHOUSE) && sha256sum *.whl > SHA256SUMS
	tar -cf $(WHEELHOUSE).tar -C dist $(notdir $(WHEELHOUSE))

# Everything of a release but the upload, which pushing the tag does (.github/workflows/release.yml).
release: export KAIR_TEST_RELEASE := 1
release: test test-live test-oldest wheels pex wheelhouse
	@echo "Built in dist/. Tag it: git tag v$$($(BIN)/kair --version | cut -d' ' -f2) && git push --tags"
