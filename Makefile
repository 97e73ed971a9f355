# make demo and make test do all their own set-up in .venv; PYTHON names the interpreter to build it from.

PYTHON ?= python3
BIN := .venv/bin
DEMO := build/demo
WHEEL := build/wheel
MLX_LM := build/engines/mlx-lm
CPU_LIMIT ?= 2
# llama.cpp as a library alone
LLAMA := $(foreach part,LLAMA_CURL LLAMA_OPENSSL LLAMA_BUILD_TESTS LLAMA_BUILD_SERVER LLAMA_BUILD_TOOLS \
	LLAMA_BUILD_EXAMPLES LLAVA_BUILD,-D$(part)=OFF)
# a worker for each processor, each of one thread (tests/conftest.py)
PARALLEL := -n logical --maxprocesses 8

.PHONY: demo demo-in systems test test-slow test-wheel faults lint bench browser-test report-pictures gguf engines
.PHONY: engines-mlx engines-openvino docs release clean

demo: .venv/ready
	@$(MAKE) --no-print-directory demo-in

# the same with the treeopt of another environment, BIN, into another folder, DEMO
demo-in:
	mkdir -p $(DEMO)
	$(BIN)/treeopt profile --output $(DEMO)/profile.yaml
	$(BIN)/treeopt solve --profile $(DEMO)/profile.yaml --budget 512 --output $(DEMO)/tree.json
	$(BIN)/treeopt show $(DEMO)/tree.json --output $(DEMO)/tree.svg
	$(BIN)/treeopt run $(DEMO)/tree.json --max-new-tokens 200 --prompt "$$(printf 'class Parser:\n    \042\042\042')"
	$(BIN)/treeopt bench $(DEMO)/tree.json --profile $(DEMO)/profile.yaml --output $(DEMO)/bench.json
	$(BIN)/treeopt report $(DEMO)/profile.yaml $(DEMO)/tree.json $(DEMO)/bench.json --output $(DEMO)/report.html

systems: .venv/ready
	mkdir -p build
	$(BIN)/treeopt bench --systems all --output build/systems.json --plot build/systems.svg

# compiled once: by numba for all workers, and as bytecode for all processes that tests start
test test-slow test-wheel: export NUMBA_CACHE_DIR := $(CURDIR)/.venv/numba
test test-slow test-wheel: export PYTHONDONTWRITEBYTECODE :=

# the fast tests; more CPU seconds than CPU_LIMIT are an error, so that they stay fast
test: .venv/ready-to-test
	$(BIN)/python -m tests.support.warm
	$(BIN)/python -m pytest $(PARALLEL) --dist worksteal -m "not slow" --cpu-limit=$(CPU_LIMIT)

# the others; with test-wheel every test
test-slow: export HYPOTHESIS_PROFILE := ci
test-slow: .venv/ready-to-test
	$(BIN)/python -m tests.support.warm
	$(BIN)/python -m pytest $(PARALLEL) --dist loadfile -m "slow or source"

# the fast tests with all their examples, on the built wheel, where no source can be imported
test-wheel: export HYPOTHESIS_PROFILE := ci
test-wheel: .venv/ready-to-test
	.ci/wheel $(BIN)/python
	cd $(WHEEL)/checkout && ../venv/bin/python -m tests.support.warm
	cd $(WHEEL)/checkout && ../venv/bin/python -m pytest $(PARALLEL) --dist worksteal -m "not slow and not source" \
		--treeopt-in=../venv

# the page of treeopt report in a real Chromium, which has to be there: apt-get install chromium
browser-test: .venv/ready-browser
	$(BIN)/python -m pytest tests/browser

# pictures of the documentation: the page of the demo, and one of several conditions, drafters, batches, streams and an
# engine's race
REPORT := build/report
report-pictures: demo .venv/ready-browser
	mkdir -p $(REPORT)
	$(BIN)/python tools/report_pictures.py $(DEMO)/report.html docs/images/report
	$(BIN)/treeopt report docs/profiles/bundled-2-cores-surface.yaml --output $(REPORT)/conditions.html
	$(BIN)/python tools/report_pictures.py $(REPORT)/conditions.html docs/images/report-conditions --only 1280-light --height 4800
	$(BIN)/treeopt report docs/profiles/nvidia-h100-80gb-hbm3-7b-68m-bfloat16-graphs.yaml --output $(REPORT)/h100.html
	$(BIN)/python tools/report_pictures.py $(REPORT)/h100.html docs/images/report-h100 --only 1280-light --height 4200
	$(BIN)/treeopt profile --drafter medusa --drafter redrafter --drafter lookahead --drafter prompt-lookup \
		--context-tokens 64,256 --batch-sizes 1,4 --rules sequoia,target --temperature 0,0.6 --max-tokens 64 \
		--rounds 9 --positions 1024 --output $(REPORT)/profile.yaml
	$(BIN)/treeopt solve --profile $(REPORT)/profile.yaml --output $(REPORT)/tree.json
	$(BIN)/treeopt bench $(REPORT)/tree.json --profile $(REPORT)/profile.yaml --output $(REPORT)/bench.json
	$(BIN)/treeopt bench --batch-size 1,4 --profile $(REPORT)/profile.yaml --output $(REPORT)/batches.json
	$(BIN)/treeopt bench --drift --streams "draft spoilt,draft mended" --output $(REPORT)/drift.json
	$(BIN)/treeopt probe transformers --target treeopt/bundled/target --draft treeopt/bundled/draft --output $(REPORT)/engine.yaml
	$(BIN)/treeopt bench --engine transformers --profile $(REPORT)/engine.yaml --output $(REPORT)/engine.json
	$(BIN)/treeopt report $(REPORT)/profile.yaml $(REPORT)/tree.json $(REPORT)/bench.json $(REPORT)/engine.json \
		$(REPORT)/batches.json $(REPORT)/drift.json --output $(REPORT)/report.html
	$(BIN)/python tools/report_pictures.py $(REPORT)/report.html docs/images/report-everything --only 1280-dark --height 11000

faults: .venv/ready-to-test
	$(BIN)/python tools/faults.py

lint: .venv/ready-to-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/ready-to-test
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

# what the tests of GGUF models want: compiled in minutes, unless pip's cache holds the wheel from an earlier time
gguf: .venv/ready-gguf

# engines that are probed, each in an environment of its own, since what they want need not agree
engines: engines-mlx engines-openvino

engines-mlx: $(MLX_LM)/ready
	@echo "Run: $(MLX_LM)/bin/treeopt probe mlx-lm --target treeopt/bundled/target --draft treeopt/bundled/draft"

$(MLX_LM)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(MLX_LM)
	$(MLX_LM)/bin/python -m pip install --quiet --constraint constraints.txt --editable . "mlx-lm[cpu]==0.32.2" \
		pytest hypothesis  # for its own test
	touch $@

ENGINES := build/engines

OPENVINO := $(ENGINES)/openvino
engines-openvino: $(OPENVINO)/ready
	@echo "$(OPENVINO)/venv/bin/treeopt probe openvino --target $(OPENVINO)/target --draft $(OPENVINO)/draft"

$(OPENVINO)/ready: tools/openvino_requirements.txt tools/make_ir.py
	rm -rf $(OPENVINO)
	$(PYTHON) -m venv $(OPENVINO)/venv
	$(OPENVINO)/venv/bin/python -m pip install --quiet --requirement $< --editable .
	$(OPENVINO)/venv/bin/python -m pip install --quiet --no-deps optimum-intel==2.2.0 "optimum~=2.3.0"
	$(OPENVINO)/venv/bin/python tools/make_ir.py $(OPENVINO)
	touch $@

DOCS := build/docs
docs: $(DOCS)/ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/venv/bin/python -m mkdocs --quiet build --strict
	$(DOCS)/venv/bin/python tools/check_site.py build/site

$(DOCS)/ready: tools/docs_requirements.txt
	rm -rf $(DOCS)
	$(PYTHON) -m venv $(DOCS)/venv
	$(DOCS)/venv/bin/python -m pip install --quiet --requirement $<
	touch $@

# minutes for each Python that is found; RELEASE="--only 3.11" tries one, and --tests tests runs all tests
RELEASE ?=
RELEASE_TOOLS := build/release-tools
release: $(RELEASE_TOOLS)/ready
	$(RELEASE_TOOLS)/venv/bin/python tools/release.py $(RELEASE)

$(RELEASE_TOOLS)/ready: tools/release_requirements.txt
	rm -rf $(RELEASE_TOOLS)
	$(PYTHON) -m venv $(RELEASE_TOOLS)/venv
	$(RELEASE_TOOLS)/venv/bin/python -m pip install --quiet --requirement $<
	touch $@

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

.venv/ready-browser: .venv/ready-to-test
	$(BIN)/python -m pip install --quiet "playwright>=1.49"
	touch $@

.venv/ready-gguf: .venv/ready-to-test
	@mkdir -p build
	CMAKE_ARGS="$(LLAMA)" $(BIN)/python -m pip install --constraint constraints.txt --editable ".[gguf]" >build/gguf.log 2>&1 && \
		$(BIN)/python -c "import llama_cpp" >>build/gguf.log 2>&1 || \
		{ echo "make gguf: expected llama.cpp to compile. It did not, see build/gguf.log: is there a C++ compiler?" >&2; exit 1; }
	touch $@
