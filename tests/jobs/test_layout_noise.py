"""A custom noise whose blocks are the parts of the policy's layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.helpers.harness import mpiexec
from tests.helpers.runs import newest

NOISE = """
import numpy as np
from hpc_es.extend import BlockNoise, Purpose, option, options

@options
class Options:
    kind: str = option("this class", "by_part:ByPart")

class ByPart(BlockNoise):
    \"\"\"Each part of the layout has a generator of its own.\"\"\"

    def __init__(self, keys, layout):
        super().__init__(layout.size, [start for start, _ in layout.spans.values()])
        self.keys = keys

    def direction(self, generation, pair, start, stop):
        ends = [*self.edges[1:], self.size]
        parts = [
            self.keys.generator(Purpose.PERTURBATION, generation, pair, first).standard_normal(end - first, np.float32)
            for first, end in zip(self.edges, ends)
            if start <= first < stop
        ]
        return np.concatenate(parts)[: stop - start]

    Options = Options

    @staticmethod
    def build(options, keys, layout, shared):
        return ByPart(keys, layout)
"""
CONFIG = {
    "task": {"env_id": "CartPole-v1", "max_episode_steps": 50},
    "policy": {"kind": "mlp", "hidden_dims": [7]},
    "algorithm": {"kind": "es", "population_size": 8, "sigma": 0.1},
    "noise": {"kind": "by_part:ByPart"},
    "stop": {"generations": 3},
}


@pytest.mark.long
def test_noise_with_blocks_of_the_layout_is_identical_on_any_ranks(tmp_path: Path) -> None:
    (tmp_path / "by_part.py").write_text(NOISE)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    thetas = []
    for ranks in (1, 3):
        output = tmp_path / f"on_{ranks}"
        words = ["-m", "hpc_es.main", str(tmp_path / "config.yaml"), "--output", str(output)]
        done = mpiexec(ranks, words, timeout_seconds=60)
        assert done.status == 0, str(done)
        thetas.append(newest(output).state.theta.tobytes())
    assert thetas[0] == thetas[1]
