"""An Optuna sampler that replays a study with a strategy of hpc_es (extra `tune`)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
    json_to_distribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import intersection_search_space
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hpc_es.api.strategy import Strategy
from hpc_es.core.errors import ConfigError

# attributes: [round, job] of a trial; the search space of a study
JOB, SPACE = "hpc_es:job", "hpc_es:space"
SearchSpace: TypeAlias = dict[str, BaseDistribution]
Result: TypeAlias = tuple[list[float], list[float]]  # costs and constraint values


class Sampler(BaseSampler):
    """Samples the trials of an Optuna study with a strategy for vectors, by default CMA-ES, or
    NSGA-II if the study has several directions.

    The sampler stores the candidate of each trial in the study, and computes the search again from
    the finished trials, so that any process can continue a study. The vectors depend on the seed
    and on the results, not on their order.

    A pruned trial counts as the worst of its generation, with several objectives as the worst in
    each of them, a failed one as a failed evaluation.
    Trials beyond the candidates of a generation are random until its trials are finished, so run at
    most as many at once as the population has candidates. A killed process leaves a running trial,
    for which the next generation waits: use a storage with a heartbeat. If two processes take the
    same candidate at the same time, the trial with the lower number counts.

    Args:
        space: distributions by name; None: those of the first finished trial, whose parameters are
            random. Integers and floats with a step are integers of the search, categorical
            parameters are choices. Other parameters are random.
        algorithm: as in `hpc_es.Strategy`.
        seed: of all random numbers.
        sigma0: the initial step size.
        constraints: names of constraints that the objective sets with `trial.set_constraint`, at
            most 0 if feasible; Optuna 5 or later only.
        objectives: number of directions of the study.
        **options: those of the algorithm.

    Raises:
        ValueError: a space or options that are not supported.

    Examples:
        >>> import optuna
        >>> from hpc_es.api.optuna_sampler import Sampler
        >>> space = {"x": optuna.distributions.FloatDistribution(-5, 5)}
        >>> study = optuna.create_study(sampler=Sampler(space, seed=1))
        >>> study.optimize(lambda trial: trial.suggest_float("x", -5, 5) ** 2, n_trials=40)
        >>> study.best_value < 0.1
        True
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution] | None = None,
        *,
        algorithm: str | None = None,
        seed: int = 0,
        sigma0: float | None = None,
        constraints: Sequence[str] = (),
        objectives: int = 1,
        **options: object,
    ) -> None:
        self._space = None if space is None else _searched(space)
        self._seed, self._constraints = seed, tuple(constraints)
        if self._constraints and int(optuna.__version__.split(".")[0]) < 5:
            raise ValueError(
                "constraints: expected Optuna 5 or later, whose trials have constraints, found "
                f"{optuna.__version__}: pip install 'optuna>=5'"
            )
        limits = {"constraints": self._constraints} if self._constraints else {}
        self._objectives = objectives
        several = {"objectives": objectives} if objectives > 1 else {}
        self._options: dict[str, Any] = {
            "algorithm": algorithm,
            "sigma0": sigma0,
            **limits,
            **several,
            **options,
        }
        self._replay: tuple[str, Replay] | None = None  # with the name of its study
        if self._space:
            self._new_replay(self._space)  # finds errors

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> SearchSpace:
        """Return the parameters of the search.

        {} before the first finished trial if no space was given.
        """
        if self._space is not None:
            return self._space
        stored = study._storage.get_study_system_attrs(study._study_id).get(SPACE)
        if stored is not None:
            return {name: json_to_distribution(text) for name, text in json.loads(stored).items()}
        space = _searched(intersection_search_space(study.get_trials(deepcopy=False)))
        if space:
            texts = {
                name: distribution_to_json(distribution) for name, distribution in space.items()
            }
            study._storage.set_study_system_attr(study._study_id, SPACE, json.dumps(texts))
        return space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: SearchSpace
    ) -> dict[str, Any]:
        """Return the parameters of the generation's first candidate that no trial has.

        {} if there is none.
        """
        if len(study.directions) != self._objectives:
            raise ValueError(
                f"objectives is {self._objectives}, but the study has {len(study.directions)} "
                f"directions: expected Sampler(objectives={len(study.directions)})"
            )
        if not search_space or "fixed_params" in trial.system_attrs:  # enqueued
            return {}
        if self._replay is None or self._replay[0] != study.study_name:
            self._replay = study.study_name, self._new_replay(search_space)
        replay = self._replay[1]
        trials = study.get_trials(deepcopy=False)
        own = next(
            (item.system_attrs.get(JOB) for item in trials if item.number == trial.number), None
        )
        signs = [-1.0 if goal == StudyDirection.MAXIMIZE else 1.0 for goal in study.directions]
        owners = replay.advance(trials, signs)
        # the trial of a process that was killed before it stored its parameters
        if own is not None:
            return replay.parameters(int(own[1])) if own[0] == replay.round else {}
        free = next((job for job, trials_of_job in enumerate(owners) if not trials_of_job), None)
        if free is None:
            return {}
        study._storage.set_trial_system_attr(trial._trial_id, JOB, [replay.round, free])
        return replay.parameters(free)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value.

        It depends on the seed, the number of the trial and the name of the parameter.
        """
        text = json.dumps([self._seed, trial.number, param_name])
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
        return RandomSampler(seed).sample_independent(study, trial, param_name, param_distribution)

    def _new_replay(self, space: SearchSpace) -> Replay:
        parameters = {name: _parameter(distribution) for name, distribution in space.items()}
        try:
            strategy = Strategy(parameters=parameters, seed=self._seed, **self._options)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return Replay(space, strategy, self._constraints)


class Replay:
    """A search that follows the finished trials of a study."""

    def __init__(self, space: SearchSpace, strategy: Strategy, constraints: Sequence[str]) -> None:
        self._space, self._strategy, self._constraints = space, strategy, constraints
        self.round = 0  # number of times that the search was updated
        self._candidates = strategy.named(strategy.ask())

    def advance(
        self, trials: Sequence[FrozenTrial], signs: Sequence[float]
    ) -> list[list[FrozenTrial]]:
        """Update the search with all complete rounds.

        `signs` are those of the values in the costs.

        Returns:
            The trials of each candidate of the next round.
        """
        while True:
            owners: list[list[FrozenTrial]] = [[] for _ in self._candidates]
            for trial in trials:
                number, job = trial.system_attrs.get(JOB, (-1, 0))
                if number == self.round:
                    owners[job].append(trial)
            if not all(
                owner and all(trial.state.is_finished() for trial in owner) for owner in owners
            ):
                return owners
            results = [self._result(owner, signs) for owner in owners]
            worst = self._worst([result for result in results if result is not None], len(signs))
            ranked = [worst if result is None else result for result in results]
            limits = [limits for _, limits in ranked] if self._constraints else None
            costs = [costs for costs, _ in ranked]
            self._strategy.tell(costs if len(signs) > 1 else [cost for (cost,) in costs], limits)
            self._candidates = self._strategy.named(self._strategy.ask())
            self.round += 1

    def _worst(self, results: Sequence[Result], objectives: int) -> Result:
        """Return the worst result; with several objectives the worst in each of them."""
        complete = [result for result in results if not math.isnan(result[0][0])]
        if not complete:
            return self._failed(objectives)
        if objectives > 1:
            costs, limits = zip(*complete, strict=True)
            return [max(column) for column in zip(*costs, strict=True)], [
                max(column) for column in zip(*limits, strict=True)
            ]
        # violation, then cost
        return max(
            complete, key=lambda result: (sum(max(0.0, limit) for limit in result[1]), result[0])
        )

    def _result(self, owners: Sequence[FrozenTrial], signs: Sequence[float]) -> Result | None:
        """Return the result of a candidate, of its first complete trial.

        None if it was pruned, NaN if it failed.
        """
        complete = [trial for trial in owners if trial.state == TrialState.COMPLETE]
        if not complete:
            return (
                None
                if any(trial.state == TrialState.PRUNED for trial in owners)
                else self._failed(len(signs))
            )
        limits = complete[0].constraints if self._constraints else {}
        costs = [sign * value for sign, value in zip(signs, complete[0].values, strict=True)]
        return costs, [limits.get(name, math.nan) for name in self._constraints]

    def _failed(self, objectives: int) -> Result:
        return [math.nan] * objectives, [math.nan] * len(self._constraints)

    def parameters(self, job: int) -> dict[str, Any]:
        """Return the parameters of a candidate as Optuna represents them."""
        values: dict[str, Any] = {}
        for name, value in self._candidates[job].items():
            distribution = self._space[name]
            match distribution:
                case CategoricalDistribution():
                    values[name] = distribution.choices[int(value)]
                case FloatDistribution(step=float(step)):
                    values[name] = min(distribution.low + int(value) * step, distribution.high)
                case IntDistribution(step=step, log=False):
                    values[name] = distribution.low + int(value) * step
                case _:
                    values[name] = value
        return values


def _searched(space: Mapping[str, BaseDistribution]) -> SearchSpace:
    """Return the parameters that have more than one value, by name in alphabetical order."""
    return {name: space[name] for name in sorted(space) if not space[name].single()}


def _parameter(distribution: BaseDistribution) -> dict[str, Any]:
    """Return the options of a parameter of `hpc_es.Strategy`.

    Raises:
        ValueError: the distribution is none of Optuna's own.
    """
    match distribution:
        case CategoricalDistribution(choices=choices):
            return {"choices": list(range(len(choices)))}
        case FloatDistribution(step=float(step)):
            return {
                "integer": True,
                "low": 0,
                "high": round((distribution.high - distribution.low) / step),
            }
        case IntDistribution(log=False):
            return {
                "integer": True,
                "low": 0,
                "high": (distribution.high - distribution.low) // distribution.step,
            }
        case IntDistribution():
            return {
                "integer": True,
                "low": distribution.low,
                "high": distribution.high,
                "scale": "log",
            }
        case FloatDistribution():
            scale = "log" if distribution.log else "linear"
            return {"low": distribution.low, "high": distribution.high, "scale": scale}
    raise ValueError(
        f"expected a float, integer or categorical distribution, found {distribution!r}"
    )
