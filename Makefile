# make demo and make test do all their own set-up in .venv; PYTHON names the interpreter to build it from.

PYTHON ?= python3
BIN := .venv/bin
DEMO := build/demo

.PHONY: demo systems test faults lint bench clean

demo: .venv/ready
	mkdir -p $(DEMO)
	$(BIN)/treeopt profile --output $(DEMO)/profile.yaml
	$(BIN)/treeopt solve --profile $(DEMO)/profile.yaml --budget 512 --output $(DEMO)/tree.json
	$(BIN)/treeopt show $(DEMO)/tree.json --output $(DEMO)/tree.svg
	$(BIN)/treeopt run $(DEMO)/tree.json --max-new-tokens 200 --prompt "$$(printf 'class Parser:\n    \042\042\042')"
	$(BIN)/treeopt bench $(DEMO)/tree.json --profile $(DEMO)/profile.yaml --output $(DEMO)/bench.json

systems: .venv/ready
	mkdir -p build
	$(BIN)/treeopt bench --systems all --output build/systems.json --plot build/systems.svg

test: .venv/ready-to-test
	$(BIN)/python -m pytest

faults: .venv/ready-to-test
	$(BIN)/python tools/faults.py

lint: .venv/ready-to-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/ready-to-test
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv build

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/ready: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/ready-to-test: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[hf,test]"
	touch $@
