"""A study of three parameters by CMA-ES, in study.journal; the same command adds 100 trials."""

import math

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from hpc_es.api.optuna_sampler import Sampler

SPACE = {
    "rate": FloatDistribution(1e-5, 1, log=True),
    "layers": IntDistribution(1, 8),
    "activation": CategoricalDistribution(["tanh", "relu", "elu"]),
}


def objective(trial: optuna.Trial) -> float:
    rate = trial.suggest_float("rate", 1e-5, 1, log=True)
    layers = trial.suggest_int("layers", 1, 8)
    activation = trial.suggest_categorical("activation", ["tanh", "relu", "elu"])
    return (
        math.log10(rate / 1e-3) ** 2
        + (layers - 3) ** 2
        + {"tanh": 1.0, "relu": 0.0, "elu": 0.5}[activation]
    )


optuna.logging.set_verbosity(optuna.logging.WARNING)
storage = JournalStorage(JournalFileBackend("study.journal"))
study = optuna.create_study(
    storage=storage, study_name="demo", load_if_exists=True, sampler=Sampler(SPACE, seed=1)
)
study.optimize(objective, n_trials=100)
print(f"{len(study.trials)} trials, best {study.best_value:.6f} with {study.best_params}")
