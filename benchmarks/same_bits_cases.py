"""The cases of `same_bits`: all committed configs with a short budget, and variants for what they
do not cover.

Together the cases cover every kind of algorithm, task, policy and noise
(`tests/benchmarks/test_same_bits.py`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

COMMON = (
    "repetitions=1",
    "evaluation.interval=2",
    "evaluation.episodes=3",
    "report={plot_interval_seconds: 0}",
)
NORMALISED = "task.observation_normalization={enabled: true, probability: 0.3}"
LSTM = "policy={kind: lstm, hidden_dims: [8]}"
REPLICATED = "mpi.update=replicated"
BETWEEN = ("checkpoint={interval: 1, full_interval: 4}",)
DISTRIBUTIONS = ("cma_es", "sep_cma_es", "snes", "xnes", "cr_fm_nes")
LAST_STEP = "task.wrappers=['hpc_es.tasks.last_step:LastStep']"
MORE = {  # for configs that are still long
    "es_humanoid": (
        "algorithm.population_size=48",
        "algorithm.min_timesteps_per_generation=2_500",
        "task.observation_normalization.probability=0.3",
        "noise.table_size=1_000_000",
    ),
    "es_pong": (
        "algorithm.population_size=8",
        "task.max_frames=120",
        "noise.table_size=1_100_000",
    ),
    "es_pong_small": ("algorithm.population_size=8", "task.max_frames=120"),
    "rand-20M": ("algorithm.programs_per_generation=1_000",),
    "pgpe_humanoid": ("algorithm.population_size=16", "task.max_episode_steps=20"),
    "es_jax_brax_ant": ("algorithm.population_size=16", "task.max_episode_steps=10"),
}
# Cases with TensorFlow or a slow gradient that run on several ranks nevertheless.
SPREAD = {"ac_cartpole", "ac_bandit_independent", "tensorflow_lstm", "policy_gradient_spread"}


@dataclass(frozen=True)
class Case:
    """A run of both versions."""

    name: str
    config: str  # path in the older checkout; empty for programs
    words: tuple[str, ...] = ()  # overrides that make the case, shown in the table
    generations: int = 3
    stop: str = ""  # further limits, such as "timesteps: 5_000"
    begins_from: str | None = None  # case whose run by the older version is policy.init_from
    resumed_at: int | None = None  # generations by the older version, after which the newer resumes
    program: str | None = None  # one of `same_bits_programs.py`
    # Overrides of the newer version in place of `words`: the same run, with an option of a custom
    # kind that has the name of a built-in one.
    newer_words: tuple[str, ...] = ()

    def arguments(self, short: tuple[str, ...], generations: int) -> tuple[str, ...]:
        """Return the overrides of a run of this many generations; those of the case come last,
        so they prevail.
        """
        limits = f"generations: {generations}" + (f", {self.stop}" if self.stop else "")
        return (*COMMON, *short, *self.words, f"stop={{{limits}}}")


# name, config, overrides
VARIANTS = (
    ("lstm", "es_cartpole", LSTM),
    ("lstm_two_layers", "es_pendulum", "policy={kind: lstm, hidden_dims: [6, 5]}"),
    ("lstm_last_step", "es_cartpole", LSTM, LAST_STEP),
    ("last_step", "es_cartpole", LAST_STEP),
    ("counter_noise", "es_pendulum", "noise={kind: counter}"),
    ("normalised", "es_cartpole", NORMALISED),
    ("not_normalised", "es_pendulum", "task.observation_normalization.enabled=false"),
    ("chunk_7", "es_cartpole", "mpi.chunk_size=7"),
    ("chunk_7_normalised", "es_pendulum", "mpi.chunk_size=7", NORMALISED),
    ("not_mirrored", "es_pendulum", "algorithm.mirrored_sampling=false"),
    ("episodes_per_job_2", "es_cartpole", "task.episodes_per_job=2"),
    ("episodes_per_job_2_normalised", "es_pendulum", "task.episodes_per_job=2", NORMALISED),
    ("rounds", "es_cartpole", "algorithm.min_timesteps_per_generation=5_000"),
    ("rounds_chunk_7_normalised", "es_cartpole", "algorithm.min_timesteps_per_generation=5_000", "mpi.chunk_size=7",
     NORMALISED),
    ("action_noise", "es_halfcheetah", "policy.action_noise_std=0.1"),
    ("action_noise_lstm", "es_pendulum", "policy={kind: lstm, hidden_dims: [8], action_noise_std: 0.1}"),
    ("action_bins", "es_pendulum", "policy.action_bins=5"),
    ("shaping_sign", "es_pendulum", "algorithm.fitness_shaping=sign", "task.reward_offset=2.0"),
    ("shaping_centered_sign_rank", "es_pendulum", "algorithm.fitness_shaping=centered_sign_rank",
     "task.reward_offset=2.0"),
    ("shaping_none", "es_cartpole", "algorithm.fitness_shaping=none"),
    ("adam_annealed", "es_cartpole", "algorithm.optimizer={kind: adam, learning_rate: 0.05, anneal_updates: 2}"),
    ("rmsprop", "es_cartpole", "algorithm.optimizer={kind: rmsprop, learning_rate: 0.01}"),
    ("sgd", "es_cartpole", "algorithm.optimizer={kind: sgd, learning_rate: 0.01}"),
    ("no_optimizer", "es_cartpole", "algorithm.optimizer={kind: none, learning_rate: 0.01}"),
    ("weight_decay", "es_cartpole", "algorithm.weight_decay=0.01", "algorithm.divide_by_sigma=true"),
    ("relu", "es_pendulum", "policy.activation=relu"),
    ("leaky_relu", "es_pendulum", "policy.activation=leaky_relu"),
    ("elu", "es_pendulum", "policy.activation=elu"),
    ("static", "es_pendulum", "mpi.schedule=static", "mpi.master_evaluates=false"),
    ("fresh_environment", "es_cartpole", "task.fresh_environment=true"),
    ("failed_episodes", "es_cartpole", "task.wrappers=['same_bits_faults:Faults']", NORMALISED),
    ("failed_episodes_per_job_2", "es_cartpole", "task.wrappers=['same_bits_faults:Faults']",
     "task.episodes_per_job=2"),
    ("tensorflow", "es_pendulum", "policy.backend=tensorflow"),
    ("tensorflow_lstm", "es_cartpole", "policy={kind: lstm, hidden_dims: [8], backend: tensorflow}"),
    ("bandit_restless", "es_bandit_independent", "task.distribution=restless", "task.reward=one_hot",
     "noise={kind: table, table_size: 100_000}"),
    ("bandit_fixed_mlp", "es_bandit_independent", "task.meta=false", "policy={kind: mlp, hidden_dims: [8]}",
     "task.training_return=reward"),
    ("ga_repetitions", "ga-20M", "repetitions=2", "task.name=null", "task.cycle=[reverse-tune, remove-char-tune]",
     "algorithm.hall_of_fame_size=5"),
    ("ac_lstm_last_step", "ac_cartpole", "policy={kind: lstm, hidden_dims: [8]}", LAST_STEP, "algorithm.unroll=20",
     "algorithm.reward_clip=0.5"),
    ("ac_rmsprop", "ac_cartpole", "algorithm.optimizer={kind: rmsprop, learning_rate: 0.001}"),
    ("ac_sgd", "ac_bandit_rl2", "algorithm.optimizer={kind: sgd, learning_rate: 0.01}"),
    ("replicated", "es_pendulum", REPLICATED),
    ("replicated_adam_counter", "es_cartpole", REPLICATED, "noise={kind: counter}"),
    ("full_interval", "es_cartpole", *BETWEEN),
    ("full_interval_replicated", "es_pendulum", REPLICATED, *BETWEEN),
    *((f"{kind}_function", "cma_function", f"algorithm={{kind: {kind}, sigma: 0.5}}") for kind in DISTRIBUTIONS),
    *((f"{kind}_policy", "cma_lunarlander_continuous", f"algorithm={{kind: {kind}, sigma: 0.1, population_size: 12}}",
       "policy={kind: mlp, hidden_dims: [4]}") for kind in DISTRIBUTIONS if kind != "cma_es"),
    ("cma_es_batch", "cma_function", "task.function=same_bits_objectives:batch", "task.batch=4"),
    ("cma_es_failures", "cma_function", "task.function=same_bits_objectives:partial", "algorithm.population_size=12"),
    ("cma_es_bounds", "cma_function", "task.bounds={low: -1, high: 0.5, keep: penalty}"),
    ("cma_es_float32_policy", "cma_swimmer", "algorithm={kind: cma_es, sigma: 0.2, restarts: bipop}"),
    ("cma_es_replicated", "cma_function", REPLICATED),
    ("es_function", "cma_function", "algorithm={kind: es, sigma: 0.05, population_size: 10}"),
    ("es_function_table", "cma_function", "algorithm={kind: es, sigma: 0.05, population_size: 10}",
     "noise={kind: table, table_size: 10_000}"),
    ("pgpe_function", "cma_function", "algorithm={kind: pgpe, sigma: 0.3}"),
    ("pgpe_rounds", "es_cartpole", "algorithm={kind: pgpe, population_size: 8, max_population_size: 32, "
     "min_timesteps_per_generation: 600}"),
    ("pgpe_adam_lstm", "es_pendulum", LSTM, "algorithm={kind: pgpe, population_size: 8, fitness_shaping: none, "
     "optimizer: {kind: adam, learning_rate: 0.05}}"),
    ("ars_top_directions", "es_pendulum", "algorithm={kind: ars, population_size: 8, top_directions: 2}",
     "policy={kind: mlp, hidden_dims: []}"),
    ("ars_function", "cma_function", "algorithm={kind: ars, sigma: 0.1}"),
    ("deep_ga_function", "cma_function", "algorithm={kind: deep_ga, population_size: 20, sigma: 0.1}"),
    ("deep_ga_lstm", "deep_ga_cartpole", LSTM, "algorithm.population_size=16", "algorithm.validation_episodes=3"),
    ("novelty_ns", "novelty_maze", "algorithm.mode=ns", "algorithm.parents=2", "algorithm.archive_size=4"),
    ("novelty_nsra", "novelty_maze", "algorithm.mode=nsra", "algorithm.patience=1", "algorithm.rollouts=3"),
    ("novelty_function", "cma_function", "task.vector_behaviour=true",
     "algorithm={kind: novelty, sigma: 0.1, population_size: 8, parents: 2}"),
    ("behaviour_final_observation", "novelty_maze", "task.behaviour={final_observation: true}"),
    ("stepping_gymnasium", "es_halfcheetah", "task.stepping=gymnasium"),
    ("random_function", "cma_function", "algorithm={kind: random}", "task.initial=random", "task.bounds={low: -2, high: 2}"),
    ("random_search_length", "rand-20M", "task.max_code_length=20"),
    ("policy_gradient_spread", "pg_topk_hello", "algorithm.batch_size=16", "mpi.chunk_size=8"),
    ("policy_gradient_adam", "pg-20M", "algorithm.optimizer={kind: adam, learning_rate: 0.001}"),
)  # fmt: skip
EXAMPLES = (  # what no committed config covers
    ("function", "examples/function/fit.yaml"),
    ("function_snes", "examples/function/fit.yaml", "algorithm={kind: snes, sigma: 0.2}"),
    ("command", "examples/command/search.yaml"),
    ("command_xnes", "examples/command/search.yaml", "algorithm={kind: xnes, sigma: 0.2}"),
)
PROGRAMS = ("ask_and_tell", "minimize")
LIMITED = (  # stopped by another limit than the number of generations
    Case("stop_timesteps", "configs/es_cartpole.yaml", (), 20, "timesteps: 7_000"),
    Case("stop_target", "configs/es_cartpole.yaml", (), 20, "target_return: 60"),
    Case("stop_episodes", "configs/rand-20M.yaml", (), 20, "episodes: 3_000"),
    Case("stop_value", "configs/cma_function.yaml", (), 40, "target_value: 8.0"),
)
MARKET = "task={kind: 'same_bits_kinds:MarketTask', %s}"
CLIMBER = "algorithm={kind: 'same_bits_kinds:Climber', %s}"
RENAMED = (  # name, overrides of the older version, of the newer one
    (
        "option_close_at",
        (MARKET % "price: 0.5", CLIMBER % "half: false"),
        (MARKET % "close_at: 0.5", CLIMBER % "half: false"),
    ),
    (
        "option_updates",
        (MARKET % "price: 1.0", CLIMBER % "half: false"),
        (MARKET % "price: 1.0", CLIMBER % "updates: asynchronous"),
    ),
    (
        "option_side_by_side",
        (MARKET % "price: 1.0", CLIMBER % "half: true"),
        (MARKET % "price: 1.0", CLIMBER % "side_by_side: true"),
    ),
)
RESUMED = (
    ("resumed_normalised", "es_pendulum", NORMALISED),
    ("resumed_chunk_7_normalised", "es_pendulum", "mpi.chunk_size=7", NORMALISED),
    ("resumed_lstm", "es_cartpole", LSTM),
    ("resumed_rounds", "es_cartpole", "algorithm.min_timesteps_per_generation=5_000", NORMALISED),
    (
        "resumed_sgd",
        "es_cartpole",
        "algorithm.optimizer={kind: sgd, learning_rate: 0.01}",
        "mpi.chunk_size=24",
    ),
    ("resumed_ga", "ga-20M"),
    ("resumed_random_search", "rand-20M"),
    ("resumed_actor_critic", "ac_bandit_independent"),
    ("resumed_policy_gradient", "pg_topk_hello"),
    ("resumed_full_interval", "es_pendulum", NORMALISED, *BETWEEN),
    ("resumed_replicated", "es_pendulum", REPLICATED, *BETWEEN),
    *(
        (f"resumed_{kind}", "cma_function", f"algorithm={{kind: {kind}, sigma: 0.5}}")
        for kind in DISTRIBUTIONS
    ),
    ("resumed_pgpe", "pgpe_lunarlander_continuous", "algorithm.population_size=16"),
    ("resumed_ars", "ars_pendulum"),
    ("resumed_deep_ga", "deep_ga_cartpole"),
    ("resumed_novelty", "novelty_maze"),
)


def all_cases(checkout: Path) -> tuple[list[Case], Mapping[str, str]]:
    """Return the cases, and the reason for each config of `checkout` that is skipped."""
    cases, skipped = [], {}
    for path in sorted((checkout / "configs").glob("*.yaml")):
        if _kind(path)[1] == "jax_episodes" and importlib.util.find_spec("jax") is None:
            skipped[path.stem] = "JAX is not installed"
        elif path.stem.startswith("tune_"):
            cases.append(_tuning(path))
        else:
            cases.append(_committed(path))
    cases += [
        Case(name, f"configs/{config}.yaml", tuple(words)) for name, config, *words in VARIANTS
    ]
    cases += [Case(f"example_{name}", config, tuple(words)) for name, config, *words in EXAMPLES]
    cases += [
        Case(name, f"configs/{config}.yaml", tuple(w), 4, resumed_at=2)
        for name, config, *w in RESUMED
    ]
    cases += [
        Case(name, "configs/cma_function.yaml", older, newer_words=newer)
        for name, older, newer in RENAMED
    ]
    cases += [Case(name, "", program=name) for name in PROGRAMS]
    return [*cases, *LIMITED], skipped


def short_words(config: Path) -> tuple[str, ...]:
    """Return overrides with which a generation of the config takes about a second."""
    data, words = read(config), []
    kind = data["algorithm"].get("kind", "es")
    if kind == "es" and data.get("noise", {}).get("kind", "table") == "table":
        words.append("noise.table_size=500_000")
    if data["task"].get("kind", "episodes") in ("episodes", "jax_episodes"):
        words.append(
            f"task.max_episode_steps={200 if 'CartPole' in data['task']['env_id'] else 60}"
        )
    return (*words, *MORE.get(config.stem, ()))


def on_one_rank(case: Case, config: Path) -> bool:
    """Return whether a case is too slow on several ranks."""
    slow = not case.program and _kind(config)[0] in ("actor_critic", "policy_gradient")
    return (slow or any("tensorflow" in word for word in case.words)) and case.name not in SPREAD


def _kind(path: Path) -> tuple[str, str]:
    """Return the kinds of algorithm and task of a config, or of the base of a tuning."""
    data = read(path)
    base = path.parent / data.get("base", "")
    data = read(base) if base.is_file() else data
    return str(data.get("algorithm", {}).get("kind", "es")), str(
        data["task"].get("kind", "episodes")
    )


def read(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file."""
    data: dict[str, Any] = yaml.safe_load(path.read_text())
    return data


def _committed(path: Path) -> Case:
    begins_from = read(path).get("policy", {}).get("init_from")
    return Case(
        path.stem,
        f"configs/{path.name}",
        begins_from=Path(begins_from).name if begins_from else None,
    )


def _tuning(path: Path) -> Case:
    """Return the base config of a tuning at the first point of its space."""
    data = read(path)
    space = {key: values for key, values in data["space"].items() if not key.startswith("stop.")}
    return Case(
        path.stem,
        f"configs/{data['base']}",
        tuple(f"{key}={_first(values)}" for key, values in space.items()),
    )


def _first(values: Any) -> str:
    """Return the first of a list or of {choice: list}, or the lower end of {log_uniform:
    [low, high]}, as YAML.
    """
    listed = values if isinstance(values, list) else next(iter(values.values()))
    return yaml.safe_dump(listed[0], default_flow_style=True).removesuffix("...\n").strip()
