# Needs make and Python 3.11 or newer; everything else is set up in .venv on first use.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
BIN := .venv/bin
comma := ,
READY := .venv/.ready

# pyenv shows one version under its names; tox shall find all of them.
PYENVS := $(shell command -v pyenv >/dev/null && ls -d "$$(pyenv root)"/versions/3.1[1-3].*/bin 2>/dev/null | paste -sd:)
TOX := $(if $(PYENVS),PATH="$(PYENVS):$$PATH") $(BIN)/tox -q

OTHERS := $(shell for v in 3.12 3.13; do PATH="$(PYENVS):$$PATH" python$$v -c "" >/dev/null 2>&1 && echo py$$v-render; done | tr -d .)
RENDER_ENVS := $(if $(OTHERS),$(subst $(eval) ,$(comma),$(OTHERS)),py311-render)

.PHONY: demo serve-demo test models engine-test render-test lint format bench clean

demo: $(READY)
	@$(BIN)/scaleout demo

serve-demo: $(READY)
	@$(BIN)/scaleout demo --serve

# The suite with the engine comes last, so that the run ends with its summary.
test: lint models render-test engine-test

models: $(READY)
	@$(BIN)/python -m tests.fetch_models

engine-test: $(READY)
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not peer"

# Without torch, on the other Pythons that are here; the whole suite runs on the one of .venv.
render-test: $(READY)
	@$(TOX) run-parallel -p 2 --parallel-no-spinner -e $(RENDER_ENVS)

lint: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(READY)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(READY)
	@$(BIN)/python -m bench $(BENCH)

clean:
	rm -rf .venv .tox .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv: this happens once and takes a while"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[engine,dev]'
	@touch $@
