"""Code of the user is imported, hashed and found again wherever Python finds it:
folders without __init__.py, a zip.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.helpers.harness import mpiexec, python
from tests.helpers.runs import digest, newest

MODULE = """
import gymnasium
import numpy as np

from hpc_es.policies.mlp import Options, build  # the policy `kind` is this module

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=2).astype(np.float32), {}

    def step(self, action):
        return self.np_random.normal(size=2).astype(np.float32), float(action), False, False, {}

class Wrapped(gymnasium.Wrapper):
    pass

def where(observation, info, return_, length):
    return [return_]

gymnasium.register("Deep-v0", "src.a.b.m:Env", max_episode_steps=5)
"""
CONFIG = """
task: {env_id: "src.a.b.m:Deep-v0", wrappers: ["src.a.b.m:Wrapped"], behaviour: {function: "src.a.b.m:where"}}
policy: {kind: src.a.b.m, hidden_dims: [4]}
algorithm: {kind: novelty, population_size: 8}
stop: {generations: 2}
"""
COMMAND = ["-m", "hpc_es.main", "c.yaml", "--output", "run"]


@pytest.mark.long
def test_every_reference_to_code_in_folders_without_init_and_in_a_zip(tmp_path: Path) -> None:
    folder, zipped = tmp_path / "folder", tmp_path / "zipped"
    (folder / "src" / "a" / "b").mkdir(parents=True)
    (folder / "src" / "a" / "b" / "m.py").write_text(MODULE)
    zipped.mkdir()
    with zipfile.ZipFile(zipped / "project.zip", "w") as archive:
        for name in ("src/", "src/a/", "src/a/b/"):
            archive.writestr(name, "")
        archive.writestr("src/a/b/m.py", MODULE)
    provenances = []
    for directory, ranks in ((folder, 1), (zipped, 2)):
        env = {"PYTHONPATH": "project.zip"} if directory == zipped else {}
        (directory / "c.yaml").write_text(CONFIG)
        for args in ([*COMMAND, "--check"], COMMAND):
            done = mpiexec(ranks, args, cwd=directory, env=env)
            assert done.status == 0, str(done)
        evaluated = python(
            ["-m", "hpc_es", "eval", "run", "--episodes", "2"], cwd=directory, env=env
        )
        assert "episodes     2" in evaluated.stdout, str(evaluated)
        provenances.append(newest(directory / "run").provenance["sources"])
    assert digest(newest(folder / "run")) == digest(newest(zipped / "run"))
    assert provenances[0] == provenances[1]
    assert all(provenances[0].values())


SCRIPT = """
import gymnasium
import numpy as np
import hpc_es

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), -float(action[0] ** 2), False, True, {}

gymnasium.register(id="E-v0", entry_point=Env)
config = {"task": {"env_id": "E-v0"}, "policy": {"hidden_dims": [4]}, "algorithm": {"population_size": 8}}
for row in hpc_es.train({**config, "stop": {"generations": 2}}, output="run"):
    pass
print(hpc_es.load_policy("run")(np.zeros(2)).shape)
"""


@pytest.mark.long
def test_policy_of_a_script_with_its_own_environment(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for _ in range(2):  # the second time the run is resumed
        done = python(["script.py"], cwd=tmp_path)
        assert done.stdout.endswith("(1,)\n"), str(done)
    refused = python(["-m", "hpc_es", "eval", "run", "--trust"], cwd=tmp_path)
    assert refused.status == 2
    assert "'__main__:Env' of the script or notebook that trained it" in refused.stderr, str(
        refused
    )
