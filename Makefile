# make run    set up, then execute the collection with the paper preset
# make quick  the same in seconds, at reduced resolution
# make test   set up, then lint and test
# make lab    set up, then open JupyterLab
# make fuzz   set up, then run the notebooks with 200 odd parameters and see how each ends (tests/fuzz.py)
# make mutants  set up, then plant faults in lib and see which test catches each (an hour; tests/mutants.py)
# make setup  set up only;  make clean  remove what was set up and cached (never outputs/)
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: run quick test lab fuzz mutants setup clean
run: $(READY)
	$(BIN)/python run_all.py --preset paper
quick: $(READY)
	$(BIN)/python run_all.py --preset quick
test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n auto --dist loadfile
lab: $(READY)
	$(BIN)/jupyter lab notebooks
fuzz: $(READY)
	$(BIN)/python tests/fuzz.py
mutants: $(READY)
	$(BIN)/python tests/mutants.py
setup: $(READY)

# The marker is written last, so an interrupted setup starts again and a finished one is never repeated.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -type d -prune -exec rm -rf {} +
