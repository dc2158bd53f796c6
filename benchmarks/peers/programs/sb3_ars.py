"""Stable-Baselines3: ARS of sb3-contrib with an MLP and asynchronous evaluation,
one environment per core.
"""

from __future__ import annotations

import contextlib
import functools

from sb3_contrib import ARS
from sb3_contrib.common.vec_env import AsyncEval
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.peers.reporter import Reporter, read_arguments


class EnoughError(Exception):
    """Ends the search from a callback."""


class Generations(BaseCallback):
    """Reports each generation after its evaluations."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if not self._reporter.report(self.model.num_timesteps):
            raise EnoughError


def main() -> None:
    """Run generations until the reporter stops them."""
    work = read_arguments()
    make_env = functools.partial(make_vec_env, work["environment"], n_envs=1)
    shape = {"net_arch": list(work["hidden"])}
    model = ARS(
        "MlpPolicy", make_env(), n_delta=work["population"] // 2, policy_kwargs=shape, device="cpu"
    )
    workers = AsyncEval([make_env] * work["cores"], model.policy)
    with contextlib.suppress(EnoughError):
        model.learn(
            10**9,
            callback=Generations(Reporter(work["seconds"])),
            async_eval=workers,
            log_interval=None,
        )


if __name__ == "__main__":
    main()
