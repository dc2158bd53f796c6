"""Say what a run will cost on more ranks, before it is in the queue.

Some generations are run here, on one rank, and each part of them is timed; a simulation of the schedule then tells, for
each number of ranks, seconds a generation, efficiency (the share of all ranks' time spent evaluating), core hours until
`stop`, memory a node, and what limits it. Nothing is written but what --json and --plot name.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpc_es.core.arguments import whole_number

RANKS = (8, 64, 512, 1440)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The config, the ranks, and the constants of the cluster."""
    parser.add_argument("config", metavar="CONFIG", help="the experiment, a YAML file or config string")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as algorithm.population_size=1440")
    parser.add_argument("--ranks", type=_ranks, default=RANKS, metavar="N,N", help="default: 8,64,512,1440")
    parser.add_argument("--seconds", type=_positive, default=60.0, metavar="S", help="to measure (default: 60)")
    parser.add_argument("--length", type=whole_number, metavar="STEPS", help="of all episodes, as they may be later")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw seconds and efficiency: .png, .pdf, .svg")
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument(
        "--cores-per-node", type=whole_number, default=48, metavar="N", help="ranks of a node (default: 48)"
    )
    cluster.add_argument("--latency", type=_positive, default=2e-6, metavar="S", help="of a small message (2e-6)")
    cluster.add_argument("--bandwidth", type=_positive, default=12e9, metavar="B", help="bytes a second (12e9)")
    cluster.add_argument("--dispatch", type=_positive, default=15e-6, metavar="S", help="rank 0's for a chunk (15e-6)")
    cluster.add_argument("--speed", type=_positive, default=1.0, metavar="X", help="of its cores over this one's (1)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, simulate, print; UserError."""
    from hpc_es.bandits.regret import check
    from hpc_es.cluster import plan_report
    from hpc_es.cluster.measure import Cluster, measure
    from hpc_es.cluster.predict import predictions
    from hpc_es.config.loading import read
    from hpc_es.training.build import valid_config
    from hpc_es.training.compatibility import needs

    if arguments.plot is not None:
        check(arguments.plot)
    config = valid_config(read(arguments.config, arguments.overrides))
    sys.stderr.write(f"measuring for {arguments.seconds:g} s on one rank: other load on this machine spoils it\n")
    measured = measure(config, arguments.seconds).faster(arguments.speed)
    if arguments.length is not None:
        measured = measured.with_length(arguments.length)
    cluster = Cluster(arguments.latency, arguments.bandwidth, arguments.cores_per_node, arguments.dispatch)
    table = needs(config).noise and config.noise.kind == "table"
    found = predictions(measured, config.stop, arguments.ranks, cluster, 4 * config.noise.table_size if table else 0)
    best = plan_report.chosen(found)
    sbatch = f"hpc-es sbatch {arguments.config} {' '.join(arguments.overrides)}".rstrip()
    sbatch += f" --nodes {best.nodes} --ntasks-per-node {-(-best.ranks // best.nodes)}"
    if arguments.json:
        sys.stdout.write(plan_report.as_json(measured, found, cluster, sbatch))
    else:
        sys.stdout.write(plan_report.text(str(config.name), measured, found, sbatch))
    if arguments.plot is not None:
        plan_report.draw(str(config.name), found, arguments.plot)
        sys.stderr.write(f"{arguments.plot} written\n")
    return 0


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(whole_number(each) for each in text.split(","))


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return value
