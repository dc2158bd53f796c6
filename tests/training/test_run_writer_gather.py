"""What ranks have beside their rows is brought to rank 0, and where they have nothing no message is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.harness import ROOT, mpiexec, script

COUNTED = """
    import json, sys
    from pathlib import Path
    import hpc_es
    from hpc_es.mpi.world import World

    calls, gather = [], World.gather
    World.gather = lambda self, mine: (calls.append(len(mine)), gather(self, mine))[1]
    config = json.loads(sys.argv[1])
    with hpc_es.train(config, Path(sys.argv[2])) as run:
        for row in run:
            pass
    if run.state.generation:
        print("gathered", len(calls), flush=True)
"""
FUNCTION = {
    "task": {"kind": "function", "function": "tests.helpers.toys:valley", "dimension": 6},
    "algorithm": {"kind": "cma_es"},
    "stop": {"generations": 3},
}
POLICY = {
    "task": {"env_id": "CartPole-v1", "max_episode_steps": 20},
    "policy": {"hidden_dims": [4]},
    "algorithm": {"population_size": 8},
    "noise": {"table_size": 20_000},
    "stop": {"generations": 3},
}
NORMALISED = {"task": {**POLICY["task"], "observation_normalization": {"enabled": True, "probability": 1.0}}}
CASES = {
    "a function, whose best vector it is": (FUNCTION, 3),
    "a policy": (POLICY, 0),
    "a policy that learns what it observes": ({**POLICY, **NORMALISED}, 3),
    "several blocks": ({**POLICY, "policy": {"hidden_dims": [128, 128]}}, 3),  # 17,410 parameters
}


@pytest.mark.parametrize("case", CASES)
def test_only_what_is_there_is_gathered(case: str, tmp_path: Path) -> None:
    config, expected = CASES[case]
    done = mpiexec(2, [*script(COUNTED), json.dumps(config), str(tmp_path / "run")], cwd=ROOT)
    assert done.status == 0, str(done)
    assert f"gathered {expected}" in done.stdout, str(done)
