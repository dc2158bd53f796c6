"""What `same_bits` runs: every committed config with a short budget, and variants of what those leave out."""

from __future__ import annotations

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
NORMALISED = "algorithm.observation_normalization={enabled: true, probability: 0.3}"
LSTM = "policy={kind: lstm, hidden_dims: [8]}"
LAST_STEP = "task.wrappers=['hpc_es.tasks.last_step:LastStep']"
MORE = {  # for configs that are long even so
    "es_humanoid": (
        "algorithm.population_size=48",
        "algorithm.min_timesteps_per_generation=2_500",
        "algorithm.observation_normalization.probability=0.3",
        "noise.table_size=1_000_000",
    ),
    "rand-20M": ("algorithm.programs_per_generation=1_000",),
}
# Of the cases that need TensorFlow, whose start costs each rank seconds, those that run on more than one rank.
SPREAD = {"ac_cartpole", "ac_bandit_independent", "tensorflow_lstm"}

# Kinds of algorithm whose bits are no longer those of 0.1, and why.
OTHER_BITS = {"policy_gradient": "the network and its gradient are computed by NumPy since 0.2, in another order"}


@dataclass(frozen=True)
class Case:
    """A run that both versions make."""

    name: str
    config: str  # a file in configs/ of the version before
    words: tuple[str, ...] = ()  # overrides that make the case, shown in the table
    generations: int = 3
    stop: str = ""  # further limits, such as "timesteps: 5_000"
    begins_from: str | None = None  # policy.init_from is the run that the version before made of this case
    resumed_at: int | None = None  # the version before makes so many generations, the other one goes on

    def arguments(self, short: tuple[str, ...], generations: int) -> tuple[str, ...]:
        """The overrides of a run of so many generations; what makes the case comes last and wins."""
        limits = f"generations: {generations}" + (f", {self.stop}" if self.stop else "")
        return (*COMMON, *short, *self.words, f"stop={{{limits}}}")

    def unit(self, config: Path) -> tuple[str, ...]:
        """Return the override by which the version after sums observations as 0.1 did, whose chunks say of how many.

        Since then that is 16, whatever the chunks.
        """
        data = yaml.safe_load(config.read_text())
        size = data.get("mpi", {}).get("chunk_size", 16)
        enabled = data.get("algorithm", {}).get("observation_normalization", {}).get("enabled", False)
        for word in self.words:
            size = int(word.partition("=")[2]) if word.startswith("mpi.chunk_size=") else size
            enabled = enabled or word == NORMALISED
        return (f"task.observation_normalization.unit={size}",) if enabled and size != 16 else ()


# name, config, overrides
VARIANTS = (
    ("lstm", "es_cartpole", LSTM),
    ("lstm_two_layers", "es_pendulum", "policy={kind: lstm, hidden_dims: [6, 5]}"),
    ("lstm_last_step", "es_cartpole", LSTM, LAST_STEP),
    ("last_step", "es_cartpole", LAST_STEP),
    ("counter_noise", "es_pendulum", "noise={kind: counter}"),
    ("normalised", "es_cartpole", NORMALISED),
    ("not_normalised", "es_pendulum", "algorithm.observation_normalization.enabled=false"),
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
)  # fmt: skip
LIMITED = (  # stopped by something else than generations
    Case("stop_timesteps", "es_cartpole.yaml", (), 20, "timesteps: 7_000"),
    Case("stop_target", "es_cartpole.yaml", (), 20, "target_return: 60"),
    Case("stop_episodes", "ga-20M.yaml", (), 20, "episodes: 450"),
)
RESUMED = (
    ("resumed_normalised", "es_pendulum", NORMALISED),
    ("resumed_chunk_7_normalised", "es_pendulum", "mpi.chunk_size=7", NORMALISED),
    ("resumed_lstm", "es_cartpole", LSTM),
    ("resumed_rounds", "es_cartpole", "algorithm.min_timesteps_per_generation=5_000", NORMALISED),
    ("resumed_sgd", "es_cartpole", "algorithm.optimizer={kind: sgd, learning_rate: 0.01}", "mpi.chunk_size=24"),
    ("resumed_ga", "ga-20M"),
    ("resumed_random_search", "rand-20M"),
    ("resumed_actor_critic", "ac_bandit_independent"),
)


def all_cases(configs: Path) -> tuple[list[Case], dict[str, str]]:
    """Return the cases, and for each file in `configs` that gives none the reason."""
    cases, skipped = [], {}
    for path in sorted(configs.glob("*.yaml")):
        if _kind(path) in OTHER_BITS:
            skipped[path.stem] = OTHER_BITS[_kind(path)]
        elif not path.stem.startswith("tune_"):
            cases.append(_committed(path))
        elif (path.parent / read(path)["base"]).exists():
            cases.append(_tuning(path))
        else:
            skipped[path.stem] = f"its base {read(path)['base']} is not in configs/"
    cases += [Case(name, f"{config}.yaml", tuple(words)) for name, config, *words in VARIANTS]
    resumed = [Case(name, f"{config}.yaml", tuple(w), 4, resumed_at=2) for name, config, *w in RESUMED]
    return [*cases, *LIMITED, *resumed], skipped


def short_words(config: Path) -> tuple[str, ...]:
    """Return the overrides that make a config's generations take a second or so."""
    data, words = read(config), []
    kind = data["algorithm"].get("kind", "es")
    if kind == "es" and data.get("noise", {}).get("kind", "table") == "table":
        words.append("noise.table_size=500_000")
    if data["task"].get("kind", "episodes") == "episodes":
        words.append(f"task.max_episode_steps={200 if 'CartPole' in data['task']['env_id'] else 60}")
    return (*words, *MORE.get(config.stem, ()))


def on_one_rank(case: Case, config: Path) -> bool:
    """Return whether a case costs too much on more than one rank."""
    slow = _kind(config) == "actor_critic"
    return (slow or any("tensorflow" in word for word in case.words)) and case.name not in SPREAD


def _kind(path: Path) -> str:
    """Return the kind of the algorithm of a config, or of the base of a tuning."""
    data = read(path)
    base = path.parent / data.get("base", "")
    data = read(base) if base.is_file() else data
    return str(data.get("algorithm", {}).get("kind", "es"))


def read(path: Path) -> dict[str, Any]:
    """Return what stands in a YAML file."""
    data: dict[str, Any] = yaml.safe_load(path.read_text())
    return data


def _committed(path: Path) -> Case:
    begins_from = read(path).get("policy", {}).get("init_from")
    return Case(path.stem, path.name, begins_from=Path(begins_from).name if begins_from else None)


def _tuning(path: Path) -> Case:
    """Return the base of a tuning at the first point of its space."""
    data = read(path)
    space = {key: values for key, values in data["space"].items() if not key.startswith("stop.")}
    return Case(path.stem, data["base"], tuple(f"{key}={_first(values)}" for key, values in space.items()))


def _first(values: Any) -> str:
    """Return the first of a list or of {choice: list}, or the lower end of {log_uniform: [low, high]}, as YAML."""
    listed = values if isinstance(values, list) else next(iter(values.values()))
    return yaml.safe_dump(listed[0], default_flow_style=True).removesuffix("...\n").strip()
