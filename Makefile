# Every target sets up what it needs; a second run finds it done.
BIN := .venv/bin
READY := .venv/.ready
STUBS := proto/octavo/v1/engine_pb2.py
PYTHON ?= python3
# Of `make serve` and `make test`: more arguments, as in ARGS="--replicas 2".
ARGS ?=
# Of `make sim`: the seeds to run.
SEEDS ?= 0-199
# Of `make test`: how many run at once.
WORKERS ?= 2
# Of `make cluster-up` and `make cluster-down`: control-plane or node.
SIZE ?= control-plane

# Some machines forbid it: then each of the hundreds of processes of a test run compiles torch anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup serve chat test sim sim-operator sim-mutants faults e2e check fmt bench docs lock cluster-up cluster-down clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): requirements.txt requirements-model.txt pyproject.toml tools/setup.py tools/hatch_build.py
	@$(PYTHON) tools/setup.py

$(STUBS): $(READY) $(wildcard proto/octavo/v1/*.proto) tools/gen_proto.py
	@$(BIN)/python tools/gen_proto.py && touch $(STUBS)

setup: $(READY) $(STUBS)  ## make .venv with all that is pinned (TORCH_BACKEND=cpu: without CUDA)

serve: setup  ## serve SmolLM2 here: API on http://127.0.0.1:8000/v1
	@$(BIN)/octavo serve --model smollm2 $(ARGS)

chat: setup  ## talk to what `make serve` serves
	@$(BIN)/octavo chat $(ARGS)

test: setup  ## run all tests (ARGS="tests/cli -k chat": some)
	@$(BIN)/pytest --numprocesses $(WORKERS) --no-loadscope-reorder $(ARGS)

faults: setup  ## break processes for minutes (OCTAVO_FAULT_RUNS=20 OCTAVO_FAULT_SOAK_S=1800: longer)
	@$(BIN)/pytest -m faults tests/faults tests/operator $(ARGS)

sim: setup  ## simulate the platform with faults (SEEDS=0-999; ARGS="--seed 17 --trace": one)
	@$(BIN)/python -m tests.sim --seeds $(SEEDS) $(ARGS)

sim-operator: setup  ## simulate operators on a model of the API server (SEEDS=0-999)
	@$(BIN)/python -m tests.sim.kube --seeds $(SEEDS) $(ARGS)

sim-mutants: setup  ## prove that both simulations find each planted bug
	@$(BIN)/python -m tests.sim.mutants $(ARGS)

e2e: setup  ## build the images and run them on a real Kubernetes of our own (Linux, root)
	@$(BIN)/pytest -m e2e $(ARGS)

check: setup  ## format, lint, types, import rules, generated docs, house rules
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports --no-cache && $(BIN)/mypy && $(BIN)/python tools/gen_docs.py --check && $(BIN)/python -m tools.gen_chart --check && $(BIN)/pytest -q tests/test_layout.py

fmt: setup  ## format and fix what can be fixed
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: setup  ## measure the running server (ARGS="--help" says what)
	@$(BIN)/python -m bench $(ARGS)

docs: setup  ## write the generated parts of docs/ and charts/
	@$(BIN)/python tools/gen_docs.py && $(BIN)/python -m tools.gen_chart

lock: setup  ## pin the newest versions that pyproject.toml allows (ARGS=--upgrade)
	@$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --generate-hashes --no-emit-index-url --universal --python-version 3.11 -o requirements.txt --quiet $(ARGS)

cluster-up: setup  ## a Kubernetes to play with (SIZE=node: with pods that run)
	@$(BIN)/python -m tests.cluster up --size $(SIZE)

cluster-down: setup  ## end it, and what a killed one left
	@$(BIN)/python -m tests.cluster down --size $(SIZE)

clean:  ## remove .venv, stubs and caches
	@rm -rf .venv .ruff_cache .pytest_cache .hypothesis build dist && find proto -name '*_pb2*' -delete && find . -name __pycache__ -type d -prune -exec rm -rf {} +
