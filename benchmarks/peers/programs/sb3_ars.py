"""Stable-Baselines3: the ARS of sb3-contrib, with the MLP and its asynchronous evaluation on an environment a core."""

from __future__ import annotations

import contextlib
import functools

from sb3_contrib import ARS
from sb3_contrib.common.vec_env import AsyncEval
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.peers.telling import Telling, told


class EnoughError(Exception):
    """Ends the search from within."""


class Generations(BaseCallback):
    """Called after each generation's evaluations."""

    def __init__(self, telling: Telling) -> None:
        super().__init__()
        self._telling = telling

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if not self._telling.goes_on(self.model.num_timesteps):
            raise EnoughError


def main() -> None:
    """Search until it is enough."""
    work = told()
    made = functools.partial(make_vec_env, work["environment"], n_envs=1)
    shape = {"net_arch": list(work["hidden"])}
    model = ARS("MlpPolicy", made(), n_delta=work["population"] // 2, policy_kwargs=shape, device="cpu")
    workers = AsyncEval([made] * work["cores"], model.policy)
    with contextlib.suppress(EnoughError):
        model.learn(10**9, callback=Generations(Telling(work["seconds"])), async_eval=workers, log_interval=None)


if __name__ == "__main__":
    main()
