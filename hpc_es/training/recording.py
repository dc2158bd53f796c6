"""Recording a finished generation, on rank 0: its metrics, and what follows from them."""

from __future__ import annotations

import time

import numpy as np

from hpc_es.core.interfaces import GradientAlgorithm
from hpc_es.training.finished import AfterTrainStep, FinishedGeneration
from hpc_es.training.generation import MetricsRow
from hpc_es.training.metrics import counters_after, metrics_row
from hpc_es.training.outcomes import StoredOutcomes
from hpc_es.training.recorder import Notices, Recorder
from hpc_es.training.this_rank import ThisRank


class Recording:
    """Computes the metrics of finished generations and passes both to the recorder."""

    def __init__(
        self, rank: ThisRank, recorder: Recorder, after_train_step: AfterTrainStep | None
    ) -> None:
        self._rank, self._recorder, self._after_train_step = rank, recorder, after_train_step
        self._info = list(rank.config.report.reductions())
        self._vocabulary = rank.config.setup.vocabulary
        self._notices = Notices()

    def add(self, finished: FinishedGeneration) -> MetricsRow:
        """Record a generation with its update, plan the next one, and return the metrics.

        They have the names and signs that users see, as in metrics.jsonl.
        """
        before, evaluated, planner = finished.before, finished.evaluated, self._rank.planner
        algorithm, results = self._rank.parts.algorithm, evaluated.results
        self._call_after_train_step(finished)
        row = self._row(finished)
        self._recorder.standing.count(
            row, counters_after(self._recorder.standing.counters, row, results.rows)
        )
        public = self._vocabulary.public(row)
        self._recorder.add(finished, public, algorithm.solutions(before, results))
        planner.update(evaluated.training_evaluations, evaluated.evaluation, evaluated.chunk_times)
        planner.order(finished.state)
        notices = algorithm.notices(before, results, finished.update.after)
        for line in self._notices.new(before.generation, notices):
            self._recorder.message(line)
        return public

    def add_cut(self, finished: FinishedGeneration, stored: StoredOutcomes | None) -> MetricsRow:
        """Record a generation that a budget has cut short, and return its metrics.

        `stored` are the outcomes that a checkpoint had of it.
        """
        before, outcomes, recorder = finished.before, finished.evaluated.outcomes, self._recorder
        assert outcomes is not None
        results, standing = finished.evaluated.results, recorder.standing
        is_new = stored is None or list(stored.chunks) != list(outcomes.chunks)
        failed = int(standing.counters["failed_generations"])
        has_succeeded = bool(np.isfinite(results.rows["return_"]).any())
        nothing_succeeded = (
            len(results.rows) > 0 and not has_succeeded and failed >= before.generation
        )
        row, counters_before = self._row(finished), dict(standing.counters)
        counters = counters_after(standing.counters, row, results.rows)
        if not (has_succeeded or nothing_succeeded):  # the few jobs that are left say little
            counters["failed_generations"] = failed
        standing.count(row, counters)
        public = self._vocabulary.public(row)
        recorder.add_cut(
            finished,
            public,
            self._rank.parts.algorithm.solutions(before, results) if len(results.rows) else (),
            # Failures that end the run are repeated by the same command.
            outcomes=StoredOutcomes([]) if nothing_succeeded else outcomes,
            counters=counters_before,
            is_new=is_new,
        )
        if is_new:
            recorder.message(
                f"generation {before.generation + 1}: stop.episodes: {self._rank.config.stop.episodes} leaves "
                f"{row['episodes_this_generation']} {standing.jobs_name}, so it makes no update"
            )
        return public

    def _call_after_train_step(self, finished: FinishedGeneration) -> None:
        algorithm, before, since = self._rank.parts.algorithm, finished.before, time.perf_counter()
        if self._after_train_step is not None and isinstance(algorithm, GradientAlgorithm):
            results = finished.evaluated.results
            sample = {**algorithm.sample(results), "gradient": algorithm.gradient(before, results)}
            self._after_train_step(sample, algorithm.losses(before, results))
            self._rank.executor.clock.add("update", since)

    def _row(self, finished: FinishedGeneration) -> MetricsRow:
        seconds, counters = time.perf_counter() - finished.started, self._recorder.standing.counters
        return metrics_row(
            finished, self._rank.parts.problem, counters, seconds=seconds, info=self._info
        )
