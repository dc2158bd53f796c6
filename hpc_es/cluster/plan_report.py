"""The output of `hpc-es plan`: a table, JSON and a picture."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from hpc_es.cluster.measure import Cluster, MeasuredGeneration
from hpc_es.cluster.predict import DELAYED_TIMESTEPS, WORTH, Prediction
from hpc_es.core.data import JsonObject
from hpc_es.core.machine import bytes_text
from hpc_es.core.text_table import aligned
from hpc_es.report.plot import PALETTE, STYLE, UNDATED, check_picture
from hpc_es.report.ticks import label_log_axis
from hpc_es.storage.files import written

COLUMNS = (
    "ranks",
    "nodes",
    "generation",
    "efficiency",
    "without tail",
    "run",
    "core hours",
    "memory/node",
    "pays from",
    "better population",
    "delay",
)
GB = 1e9


def text(
    config_name: str, measured: MeasuredGeneration, predictions: Sequence[Prediction], sbatch: str
) -> str:
    """Return the measurements, the table, the bottlenecks, and the matching command.

    There is a bottleneck for each number of ranks.
    """
    costs = measured.costs
    lines = [
        f"{config_name}: {measured.generations} generations measured on one rank",
        *(_evaluations(measured) if measured.has_evaluations else _episodes(measured)),
        f"  update: every rank {_time(costs.prepare)}, shared {_time(costs.partial_update * measured.jobs)} in "
        f"{costs.blocks} blocks, rank 0 {_time(costs.tell)}",
        f"  theta {bytes_text(costs.theta)} to all, rows {costs.row} bytes per job, sums {bytes_text(costs.sums)} "
        f"to rank 0, memory {bytes_text(costs.memory)} per rank",
        "",
        *aligned(
            [COLUMNS, *(_row(prediction) for prediction in predictions)], right=range(len(COLUMNS))
        ),
        "",
        *(
            f"  {prediction.ranks} rank{'s' * (prediction.ranks > 1)}: {prediction.limit}"
            for prediction in predictions
        ),
    ]
    sizes = {
        prediction.ranks: prediction.chunk_size
        for prediction in predictions
        if prediction.chunk_size != "auto"
    }
    if sizes:
        best = ", ".join(f"{size} on {ranks}" for ranks, size in sizes.items())
        lines.append(
            f"  results depend on mpi.chunk_size here, so it does not follow the ranks; best: {best} ranks"
        )
    if any(prediction.recommended_delay for prediction in predictions):
        factors = " and ".join(f"{factor} ({delay})" for delay, factor in DELAYED_TIMESTEPS.items())
        counted = "evaluations" if measured.has_evaluations else "timesteps"
        lines.append(
            "  delay: algorithm.delay with the shortest time to a result, if learning needs "
            f"{factors} times the {counted}; compare short runs first"
        )
    return "\n".join([*lines, "", sbatch, ""])


def _episodes(measured: MeasuredGeneration) -> list[str]:
    """Return the measurements of episodes or programs."""
    costs = measured.costs
    lines = [
        f"  {measured.jobs:,.0f} jobs and {measured.timesteps:,.0f} steps per generation, "
        f"{_number(measured.steps_per_second)} steps/s, episodes of {_spread(costs.lengths)}",
        f"  per step {_time(costs.step)}, per step of a chunk {_time(costs.call)} more, per job {_time(costs.job)}, "
        f"per chunk {_time(costs.chunk)}",
    ]
    if measured.failed:
        lines.append(f"  {measured.failed:.2g} of the jobs failed; their seconds are counted")
    return lines


def _evaluations(measured: MeasuredGeneration) -> list[str]:
    """Return the measurements of a function or model, whose jobs have no steps."""
    costs = measured.costs
    seconds = np.sort(np.asarray(costs.extras or (0.0,)) + costs.job)
    middle, longest = float(np.median(seconds)), float(seconds[-1])
    failed = f", {measured.failed:.2g} of them failed" if measured.failed else ""
    return [
        f"  {measured.jobs:,.0f} evaluations per generation, {_number(measured.steps_per_second)} per second{failed}",
        f"  an evaluation takes {_time(float(seconds.mean()))} (median {_time(middle)}, longest {_time(longest)}), "
        f"a chunk {_time(costs.chunk)} more",
    ]


def _row(prediction: Prediction) -> tuple[str, ...]:
    delay = prediction.recommended_delay
    return (
        f"{prediction.ranks:,}",
        f"{prediction.nodes:,}",
        _time(prediction.seconds),
        f"{prediction.efficiency:.2f}",
        f"{prediction.without_tail:.2f}",
        "-" if prediction.hours is None else _time(3600 * prediction.hours),
        "-"
        if prediction.core_hours is None
        else _number(prediction.core_hours)
        if prediction.core_hours >= 0.01
        else "< 0.01",
        f"{prediction.memory_a_node / GB:,.1f} GB",
        "-" if prediction.paying_population is None else f"{prediction.paying_population:,}",
        "-"
        if prediction.fitting_population is None
        else f"{prediction.fitting_population:,} ({prediction.fitting_efficiency:.2f})",
        "-" if delay is None else f"{delay.delay} ({delay.efficiency:.2f})",
    )


def _spread(lengths: Sequence[int]) -> str:
    if not lengths:
        return "no length"
    ordered = sorted(lengths)
    low, middle, high = (ordered[int(share * (len(ordered) - 1))] for share in (0.1, 0.5, 1.0))
    return (
        f"{middle:,} steps (a tenth up to {low:,}, the longest {high:,})"
        if low != high
        else f"{high:,} steps"
    )


def _time(seconds: float) -> str:
    """Return a duration with three digits and a suitable unit."""
    for unit, size, least in (
        ("h", 3600.0, 3600.0),
        ("min", 60.0, 120.0),
        ("s", 1.0, 1.0),
        ("ms", 1e-3, 1e-3),
    ):
        if seconds >= least:
            return f"{_number(seconds / size)} {unit}"
    return f"{_number(seconds / 1e-6)} us"


def _number(value: float) -> str:
    """Return a number with three digits, or all digits of its integer part."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def chosen(predictions: Sequence[Prediction]) -> Prediction:
    """Return the prediction with the most ranks that are well used.

    Without any it is the one with the fewest ranks.
    """
    good = [prediction for prediction in predictions if prediction.efficiency >= WORTH]
    return (
        max(good, key=lambda prediction: prediction.ranks)
        if good
        else min(predictions, key=lambda prediction: prediction.ranks)
    )


def as_json(
    measured: MeasuredGeneration, predictions: Sequence[Prediction], cluster: Cluster, sbatch: str
) -> str:
    """Return the plan as JSON text."""
    costs: JsonObject = dataclasses.asdict(measured)
    plain = {"measured": costs, "cluster": dataclasses.asdict(cluster), "sbatch": sbatch}
    return (
        json.dumps(
            {**plain, "ranks": [dataclasses.asdict(prediction) for prediction in predictions]},
            indent=2,
        )
        + "\n"
    )


def draw(config_name: str, predictions: Sequence[Prediction], output: Path) -> None:
    """Plot seconds per generation and efficiency against ranks.

    Raise UserError unless PNG, PDF or SVG.
    """
    check_picture(output)
    kind = output.suffix.lower().removeprefix(".")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        with written(output) as temporary:
            _figure(config_name, predictions).savefig(
                temporary, format=kind, metadata=UNDATED[kind]
            )


def _figure(config_name: str, predictions: Sequence[Prediction]) -> Figure:
    figure = Figure(figsize=(7.0, 3.2), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    ranks = [prediction.ranks for prediction in predictions]
    left.loglog(
        ranks,
        [prediction.seconds for prediction in predictions],
        "o-",
        color=PALETTE[0],
        label="predicted",
    )
    first = predictions[0]
    ideal = [first.seconds * first.ranks * first.efficiency / number for number in ranks]
    left.loglog(ranks, ideal, "--", color=PALETTE[6], lw=1, label="nothing lost")
    left.set_ylabel("seconds per generation")
    label_log_axis(left.yaxis)
    right.semilogx(
        ranks,
        [prediction.efficiency for prediction in predictions],
        "o-",
        color=PALETTE[0],
        label="efficiency",
    )
    right.semilogx(
        ranks,
        [prediction.without_tail for prediction in predictions],
        "s--",
        color=PALETTE[1],
        label="without the tail",
    )
    right.set_ylim(0, 1.05)
    for ax in (left, right):
        ax.set_xlabel("ranks")
        ax.set_xticks(ranks, [f"{number:,}" for number in ranks])
        ax.minorticks_off()
        ax.legend(frameon=False)
    figure.suptitle(config_name)
    return figure
