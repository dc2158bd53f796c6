"""Hyperparameters with two objectives, the return and the seconds of a run: the front of a study.

python return_and_time.py hpc_es       NSGA-II of hpc_es
python return_and_time.py optuna       NSGAIISampler of Optuna
"""

import json
import sys
import tempfile
from pathlib import Path

import optuna
from optuna.distributions import FloatDistribution, IntDistribution

import hpc_es
from hpc_es.api.optuna_sampler import Sampler

SPACE = {
    "sigma": FloatDistribution(0.01, 1, log=True),
    "population": IntDistribution(4, 64, step=4),
    "generations": IntDistribution(1, 8),
}


def objectives(trial: optuna.Trial) -> tuple[float, float]:
    config = {
        "task": {"env_id": "CartPole-v1", "max_episode_steps": 200},
        "policy": {"hidden_dims": []},
        "algorithm": {
            "kind": "es",
            "sigma": trial.suggest_float("sigma", 0.01, 1, log=True),
            "population_size": trial.suggest_int("population", 4, 64, step=4),
        },
        "report": {"plot_interval_seconds": 0},
        "stop": {"generations": trial.suggest_int("generations", 1, 8)},
    }
    with tempfile.TemporaryDirectory() as directory:
        with hpc_es.train(config, directory) as run:
            for _ in run:
                pass
        result = json.loads((Path(directory) / "result.json").read_text())
    return result["answer"]["value"], result["seconds"]


own = Sampler(SPACE, seed=1, objectives=2, population_size=10)
samplers = {"hpc_es": own, "optuna": optuna.samplers.NSGAIISampler(seed=1, population_size=10)}
optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    directions=["maximize", "minimize"], sampler=samplers[sys.argv[1] if sys.argv[1:] else "hpc_es"]
)
study.optimize(objectives, n_trials=int(sys.argv[2]) if sys.argv[2:] else 60)
print("return  seconds  parameters")
for trial in sorted(study.best_trials, key=lambda trial: trial.values[1]):
    print(f"{trial.values[0]:6.1f}  {trial.values[1]:7.2f}  {trial.params}")
