# `make demo` and `make test` do all their own set-up, in .venv; the second time they are quick.
PYTHON ?= python3
PYTHON310 ?= python3.10
PYTHON311 ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOURCES := $(shell find src -type f -not -name '*.pyc' -not -path '*/__pycache__/*') pyproject.toml hatch_build.py README.md LICENSE

.PHONY: demo test fuzz lint types wheel bench-cpu bench-footprint bench-peers bench-prepare bench-train intrinsic \
    reproduce-quick test-peers test-ray bench-ray bench-serve clean

demo: $(VENV)/.installed
	@$(BIN)/python examples/demo.py

test: $(VENV)/.dev $(VENV)/.installed lint types
	ELMO_TEST_INSTALLED=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# 2,000 damaged files for each reader of models and place of the damage: each loads or is refused, and nothing else happens.
fuzz: $(VENV)/.dev $(VENV)/.installed
	ELMO_FUZZ=2000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/test_formats_hostile.py

# Old code, run by AllenNLP and simple_elmo and by this library: the same numbers?
test-peers: $(VENV)/.dev $(VENV)/.installed .peers/.made .peers-allennlp-0.9/.made
	$(BIN)/python tests/peers/compare.py

# A corpus embedded under a real Ray: workers and the driver killed, everything there once?
test-ray: $(VENV)/.dev $(VENV)/.installed $(VENV)/.ray
	ELMO_TEST_RAY=1 ELMO_TEST_INSTALLED=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_ray.py

# 200,000 sentences over two workers, one of which is killed; beside one process.
bench-ray: $(VENV)/.dev $(VENV)/.installed $(VENV)/.ray
	$(BIN)/python benchmarks/ray_embed.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

wheel: dist/.built

bench-footprint: $(VENV)/.installed
	$(BIN)/python benchmarks/footprint.py

bench-peers: $(VENV)/.dev $(VENV)/.installed .peers/.made
	$(BIN)/python benchmarks/cpu_peers.py

bench-cpu: $(VENV)/.dev $(VENV)/.installed
	$(BIN)/python benchmarks/cpu_engine.py

bench-train: $(VENV)/.dev $(VENV)/.installed .peers/.made
	$(BIN)/python benchmarks/train_peers.py

bench-prepare: $(VENV)/.dev $(VENV)/.installed
	$(BIN)/python benchmarks/prepare.py $(TEXT)

bench-serve: $(VENV)/.dev $(VENV)/.installed
	$(BIN)/python benchmarks/serve.py

# AllenNLP's torch 1.12 needs numpy below 2, which it does not say.
.peers/.made:
	$(PYTHON310) -m venv .peers/allennlp
	.peers/allennlp/bin/python -m pip --quiet install allennlp==2.10.1 'numpy<2'
	$(PYTHON311) -m venv .peers/simple_elmo
	.peers/simple_elmo/bin/python -m pip --quiet install simple_elmo==0.9.2 tensorflow-cpu==2.15.1
	$(PYTHON311) -m venv .peers/bert
	.peers/bert/bin/python -m pip --quiet install -c constraints.txt torch transformers numpy
	@touch $@

# Only its file of the command is used, on the modules of 2.10.1.
.peers-allennlp-0.9/.made: | $(VENV)/.made
	$(PIP) install --no-deps --target .peers-allennlp-0.9 allennlp==0.9.0
	@touch $@

# Tags, senses and the first words of sentences by layer and state: make intrinsic MODEL=folder DATA=../shared/data
intrinsic: $(VENV)/.dev $(VENV)/.installed
	$(BIN)/python scripts/intrinsic.py $(if $(MODEL),--model $(MODEL)) --data $(or $(DATA),../shared/data)

# All of the paper's evaluation at toy size, in minutes: make reproduce-quick DATA=../shared/data/tasks
reproduce-quick: $(VENV)/.dev $(VENV)/.installed
	$(BIN)/elmo reproduce --quick --seeds 1 --data $(or $(DATA),../shared/data/tasks) --runs build/runs -o build/results

clean:
	rm -rf $(VENV) dist build

# The wheel is what is tested and shown, not the source folder.
dist/.built: $(SOURCES) | $(VENV)/.made
	rm -rf dist
	$(PIP) wheel --no-deps --wheel-dir dist .
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "elmo needs Python 3.11 or newer; say which with: make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: constraints.txt | $(VENV)/.made dist/.built
	$(PIP) install -c constraints.txt dist/*.whl
	@touch $@

$(VENV)/.dev: constraints.txt pyproject.toml | $(VENV)/.core
	$(PIP) install -c constraints.txt "$$(ls dist/*.whl)[dev]"
	@touch $@

$(VENV)/.ray: constraints.txt pyproject.toml | $(VENV)/.dev
	$(PIP) install -c constraints.txt "$$(ls dist/*.whl)[ray]"
	@touch $@

$(VENV)/.installed: dist/.built | $(VENV)/.core
	$(PIP) install --no-deps --force-reinstall dist/*.whl
	@touch $@
