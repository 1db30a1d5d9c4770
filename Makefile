PYTHON ?= python3
VENV ?= .venv
OLDEST ?= .venv-oldest
BIN = $(VENV)/bin
DATA ?=
# How often `make crash` lets a directory be killed, damaged and looked at; with SECONDS=3600 it goes on for so long.
ROUNDS ?= 300
SECONDS ?=
# CuPy's build for the driver's CUDA, and what `make gpu` checks.
CUDA ?= 13
DATASETS ?= ../shared/data
NATIVE = setup.py $(wildcard native/*.cpp native/*.hpp)
# What `make sanitize` runs on an extension built with sanitizers, and with which of them.
CORE ?= tests/index/test_postings.py tests/cpu_fallback/test_native.py tests/text/test_native_text.py
SANITIZERS ?= address thread
# The folders of tests/extended that pytest runs, and all that CI takes by turns.
FOLDERS = $(patsubst tests/extended/%/requirements.txt,%,$(wildcard tests/extended/*/requirements.txt))
SHARES = $(addprefix share-,$(filter-out planted,$(FOLDERS)))
TURNS = extended types $(addprefix planted-,1 2 3 4 5 6 7 8) $(SHARES) oldest sanitize
GPU_CORPORA = $(addprefix $(DATASETS)/,scifact cranfield locomo/locomo10.json)

# By two workers. mypy ends with 2 where one does not start within 3 s, as on a busy machine; it runs alone then.
mypy = $(BIN)/mypy -n 2 $(1) || { test $$? -eq 2 && $(BIN)/mypy $(1); }

# Tests start many processes. Where nothing may write bytecode, each compiles the 200 modules of a search anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all turn lint types extended $(SHARES) figures fanout growth session writes dense hybrid quality building serve shards work instructions report docs site docs-check crash soak shardkills fuzz wheel native sanitize mutants oldest gpu clean

demo: $(VENV)/.core
	$(BIN)/fanrank demo $(if $(DATA),"$(DATA)")

test: lint
	$(BIN)/pytest -q -n auto --dist loadfile

# Types of the rooms that stand on no framework; `make types` checks all.
lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(call mypy,--follow-imports silent --exclude '/(integrations|shards/processes)/|/server/mcp')

# Everything: what CI takes by turns, after `make test`.
test-all: test $(TURNS)

# One share of the tests that ask for more packages: a folder of tests/extended. What cannot run here is named.
$(SHARES): share-%: $(VENV)/.test
	$(BIN)/pip install -q -r tests/extended/$*/requirements.txt
	$(BIN)/pytest -q -rs -n auto --dist loadfile tests/extended/$* $(ARGS)

# The turn of this commit.
turn:
	@set -- $(TURNS); count=$$#; number=$$(($$($(PYTHON) .ci/commits.py) % count)); \
	shift $$number; echo "make $$1: turn $$((number + 1)) of $$count"; $(MAKE) $$1

# What the rooms mark as many alike: every case of the kernels in Triton's interpreter, and in other orders of threads.
extended: $(VENV)/.test
	$(BIN)/pytest -q -n auto --dist worksteal -m extended

types: $(VENV)/.dev
	$(call mypy)

figures fanout growth session writes dense hybrid building serve shards work instructions: $(VENV)/.dev
	$(BIN)/python -m bench.$@ $(ARGS)

quality: $(VENV)/.dev
	$(BIN)/python -m bench.quality
	$(BIN)/python -m bench.strategies $(ARGS)

report: $(VENV)/.dev
	$(BIN)/python -m bench.report $(ARGS)

docs: $(VENV)/.core
	$(BIN)/python docs/make_cli.py

# The pages and the reference of all public names in build/site/, which git ignores. A broken link fails.
site: $(VENV)/.test
	$(BIN)/pip install -q 'mkdocs-material>=9.7' 'mkdocstrings[python]>=1'
	$(BIN)/python docs/make_site.py

# Whether what is committed is current: docs/cli.md, and what bench.report makes of the recorded rows. A release asks for
# ARGS=--fresh: every quoted row is of its code.
docs-check: $(VENV)/.dev
	$(BIN)/python docs/make_cli.py --check
	$(BIN)/python -m bench.report --check $(ARGS)

# 10,000 random requests to the server.
fuzz: $(VENV)/.test
	$(BIN)/pip install -q -r tests/extended/service/requirements.txt
	FANRANK_FUZZ=270 $(BIN)/pytest -q tests/extended/service/test_fuzz.py

crash: $(VENV)/.test
	$(BIN)/python -m tests.extended.histories.kills --rounds $(ROUNDS) $(addprefix --seconds=,$(SECONDS)) \
		--results bench/results/crash.jsonl

# A memory of each kind that is written, searched, backed up, renumbered, moved, restarted and killed.
soak: $(VENV)/.test
	$(BIN)/python -m tests.extended.histories.soak --results bench/results/soak.jsonl $(addprefix --seconds=,$(SECONDS))

# Kills shards, and the owner of a sharded memory, with SIGKILL in the middle of writes and searches.
shardkills: $(VENV)/.dev
	$(BIN)/python -m bench.shard_kills $(ARGS)

# The sdist, and the wheel that is built from it for this machine. Wheels for all: .github/workflows/wheels.yml.
wheel: $(VENV)/.core
	$(BIN)/pip install -q build twine
	FANRANK_NATIVE=required $(BIN)/python -m build .
	$(BIN)/twine check --strict dist/*

native: $(VENV)/.core
	$(BIN)/python setup.py -q build_ext --inplace

sanitize: $(VENV)/.test
	for kind in $(SANITIZERS); do PYTHON=$(BIN)/python tests/extended/sanitizers/sanitize.sh $$kind $(CORE) || exit 1; done

# All of them take half an hour. ARGS="--part 3/20" plants a part, ARGS=select.cu those whose file or name holds this.
mutants: $(VENV)/.test
	$(BIN)/pip install -q -r tests/extended/planted/requirements.txt
	$(BIN)/pytest -q tests/extended/planted
	$(BIN)/python -m tests.extended.planted $(ARGS)

# An eighth of them.
planted-%:
	$(MAKE) mutants ARGS="--part $*/8"

# The adapters' tests on the oldest versions of their frameworks.
oldest: $(VENV)/.core
	test -e $(OLDEST)/.made || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install -q numpy regex click tqdm hypothesis jsonschema langchain-tests pytest pytest-asyncio \
		pytest-randomly -r tests/extended/frameworks/oldest.txt
	touch $(OLDEST)/.made
	PYTHONPATH=src $(OLDEST)/bin/python -m pytest -q -rs tests/extended/frameworks

gpu: $(VENV)/.gpu
	$(BIN)/fanrank doctor
	for block in tests devices memcheck racecheck writes; do \
		PYTHON=$(BIN)/python bench/gpu/first_hour.sh $$block build/gpu || exit 1; done
	for family in cuda triton; do for corpus in $(GPU_CORPORA); do \
		$(BIN)/fanrank check $$corpus --backend $$family || exit 1; done; done
	$(BIN)/python -m bench.gpu.run

# An editable install builds the extension in place, in native/.
$(VENV)/.core: pyproject.toml $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e .
	touch $@

# Python compiles a module when it is first imported. Pip would compile all of torch's: 24 s of CPU, for a tenth of them.
$(VENV)/.test: $(VENV)/.core
	$(BIN)/pip install -q --no-compile 'fanrank[test]'
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(BIN)/pip install -q 'fanrank[dev]'
	touch $@

$(VENV)/.gpu: $(VENV)/.dev
	$(BIN)/pip install -q 'fanrank[gpu-cuda$(CUDA)]'
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) build dist *.egg-info native/*.so
