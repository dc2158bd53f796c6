"""A film of one episode, headless: the environment draws its frames into memory."""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_es.core import extras
from hpc_es.core.data import Array, Discrete
from hpc_es.core.errors import UserError
from hpc_es.storage.files import written

if TYPE_CHECKING:
    from hpc_es.report.saved_policy import StoredPolicy

MOST_FRAMES = 3000  # of an episode that would never end
SECONDS_OF_A_FRAME = 1 / 30  # where the environment does not say


def prepare(output: Path) -> None:
    """Refuse what cannot be written, and choose drawing without a display; before a simulator is imported."""
    if output.suffix.lower() not in {".gif", ".mp4"}:
        raise UserError(f"{output}: the suffix is {output.suffix!r}, expected .gif or .mp4")
    extras.require("a film", "imageio")
    if output.suffix.lower() == ".mp4":
        extras.require("an .mp4", "imageio_ffmpeg", otherwise="or choose a .gif")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no directory {output.parent}")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if not os.environ.get("DISPLAY") and "MUJOCO_GL" not in os.environ:
        found = [name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)]
        if found:
            os.environ["MUJOCO_GL"] = found[0].lower()


def film(source: StoredPolicy, seed: int, output: Path) -> None:
    """Film the episode of this seed, played as `hpc-es eval` plays it, with all wrappers; UserError if it cannot be.

    The file is written whole or not at all.
    """
    from hpc_es.report.saved_policy import single_episodes

    with contextlib.closing(single_episodes(source.config.task)) as task:
        with contextlib.closing(task.environment()) as environment:
            modes = list(environment.metadata.get("render_modes") or ())
        images, seconds = _rendered(source, task, seed, output, modes)
    _write(output, images, seconds)


def _rendered(source: StoredPolicy, task: Any, seed: int, output: Path, modes: list[str]) -> tuple[list[Array], float]:
    """Return the frames and the seconds of each; `modes` are those that the environment says it has."""
    try:
        with contextlib.closing(task.environment("rgb_array")) as environment:
            images = list(frames(source, task, environment, seed))
            return images, 1 / (environment.metadata.get("render_fps") or 1 / SECONDS_OF_A_FRAME)
    except Exception as error:  # whatever a renderer says
        if "rgb_array" not in modes:
            text = f"{task.name} renders no images: 'rgb_array' is not among its metadata['render_modes'], {modes}"
            raise UserError(f"{output}: {text}") from error
        said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        uses_gl = any(name.partition(".")[0] in {"mujoco", "OpenGL"} for name in sys.modules)
        drawing = f" (MUJOCO_GL is {os.environ.get('MUJOCO_GL', 'not set')}; try egl or osmesa)" if uses_gl else ""
        package = extras.missing_package(error)
        wanted = f" ({extras.install_command(package)})" if package else ""
        raise UserError(f"{output}: cannot be rendered here: {said.rstrip(': ')}{drawing}{wanted}") from error


def frames(source: StoredPolicy, task: Any, environment: Any, seed: int) -> Iterator[Array]:
    """uint8[height, width, 3] after reset and after each step."""
    actor = source.bind(source.policy(task.spaces), 1)
    random.seed(seed)
    np.random.seed(seed)  # as in a rollout
    spec = task.spaces.observations
    observation, _ = environment.reset(seed=seed)
    yield _frame(environment)
    for _ in range(MOST_FRAMES - 1):
        action = actor.act(np.asarray(observation, spec.dtype)[np.newaxis])[0]
        action = int(action) if isinstance(task.spaces.actions, Discrete) else action
        observation, _, terminated, truncated, _ = environment.step(action)
        yield _frame(environment)
        if terminated or truncated:
            return
    sys.stderr.write(f"the film ends after {MOST_FRAMES} frames, the episode does not\n")


def _frame(environment: Any) -> Array:
    frame = environment.render()
    if not (isinstance(frame, np.ndarray) and frame.ndim == 3):
        raise UserError(f"the environment renders no image: it gives {type(frame).__name__}, expected an array")
    return frame


def _write(output: Path, images: list[Array], seconds: float) -> None:
    import imageio.v3 as iio

    suffix = output.suffix.lower()
    with written(output) as temporary:
        if suffix == ".gif":  # counts in hundredths; viewers play one of them as ten
            hundredths = max(round(100 * seconds), 2)
            iio.imwrite(temporary, images, duration=10 * hundredths, loop=0)
        else:
            iio.imwrite(temporary, images, fps=1 / seconds, plugin="FFMPEG", macro_block_size=2)  # even sizes
