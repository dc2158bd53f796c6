"""Write a video of one episode; the environment renders frames off-screen."""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpc_es.core.closing import closing
from hpc_es.core.data import Array, Discrete, not_finite_text
from hpc_es.core.errors import UserError, install_command, missing_package, require
from hpc_es.core.global_generators import restored_generators
from hpc_es.core.policy import DIVERGED
from hpc_es.core.streams import say_error
from hpc_es.storage.files import written
from hpc_es.tasks.episodes.environments import Environment
from hpc_es.tasks.episodes.returned_values import reset_values, step_values

if TYPE_CHECKING:
    from hpc_es.trained.stored import StoredPolicy

MOST_FRAMES = 3000  # the limit for episodes that do not end
LONGEST_SHOWN = 655_350  # milliseconds of a frame of a GIF
SECONDS_PER_FRAME = 1 / 30  # if the environment does not state a frame rate


def prepare(output: Path) -> None:
    """Check that the video can be written, and select off-screen rendering.

    Call it before a simulator is imported.

    Raises:
        UserError: another suffix than .gif and .mp4, a missing package or directory.
    """
    if output.suffix.lower() not in {".gif", ".mp4"}:
        raise UserError(f"{output}: the suffix is {output.suffix!r}, expected .gif or .mp4")
    require("a video", "imageio")
    if output.suffix.lower() == ".mp4":
        require("an .mp4", "imageio_ffmpeg", otherwise="or choose a .gif")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no directory {output.parent}")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if not os.environ.get("DISPLAY") and "MUJOCO_GL" not in os.environ:
        libraries = [name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)]
        if libraries:
            os.environ["MUJOCO_GL"] = libraries[0].lower()


@restored_generators()
def write_video(source: StoredPolicy, seed: int, output: Path) -> None:
    """Write a video of the episode that `hpc-es eval` plays with this seed, with all wrappers.

    The file is replaced atomically. Raises UserError if the environment cannot be rendered.
    """
    from hpc_es.trained.stored import single_episodes

    with closing("the task", single_episodes(source.config)) as task:
        recording = Recording(source, task, output, seed)
        images = iter(recording)
        first = next(images)
        save(chain([first], images), recording.seconds, output)


@dataclass
class Recording:
    """The frames of an episode, one after the other: all of them may be more than memory has.

    `seconds` is how long each is shown, from the first one on. Errors are those of `rendering`.
    """

    source: StoredPolicy
    task: Any
    output: Path
    seed: int
    seconds: float = SECONDS_PER_FRAME

    def __iter__(self) -> Iterator[Array]:
        with rendering(self.task, self.output) as (environment, self.seconds):
            yield from frames(self.source, self.task, environment, self.seed)


def save(images: Iterable[Array], seconds: float, output: Path) -> None:
    """Write frames uint8[height, width, 3], each shown for so many seconds; the file is replaced
    atomically. Only some frames are in memory.
    """
    with written(output) as temporary:
        if output.suffix.lower() == ".gif":
            # in hundredths of a second; viewers show 1/100 s as 1/10 s
            hundredths = max(round(100 * seconds), 2)
            with temporary.open("wb") as file:
                file.writelines(_gif(images, 10 * hundredths))
        else:
            import imageio.v2 as iio

            # macro_block_size=2: the codec needs even sizes
            settings: Any = {"fps": 1 / seconds, "macro_block_size": 2}
            writer: Any = iio.get_writer(temporary, format="FFMPEG", mode="I", **settings)
            with writer:
                for image in images:
                    writer.append_data(image)


def _gif(images: Iterable[Array], milliseconds: int) -> Iterator[bytes]:
    """Yield the parts of a GIF that is shown again and again.

    A frame has what differs from the one before. Pillow itself collects all frames before it writes
    the first one.
    """
    from PIL import GifImagePlugin, Image

    def parts(image: Array, corner: tuple[int, int], duration: int, is_first: bool) -> list[bytes]:
        frame = Image.fromarray(image).convert("P", palette=Image.Palette.ADAPTIVE)
        options = {"duration": min(duration, LONGEST_SHOWN), "include_color_table": True}
        data = GifImagePlugin.getdata(frame, corner, **options)
        if not is_first:
            return data
        return [*GifImagePlugin.getheader(frame, info={"loop": 0, "duration": 1})[0], *data]

    images = iter(images)
    shown = next(images)
    waiting, corner, duration, is_first = shown, (0, 0), milliseconds, True
    for image in images:
        rows, columns = (image != shown).any(axis=2).nonzero()
        if not rows.size:  # it is shown for longer
            duration += milliseconds
            continue
        yield from parts(waiting, corner, duration, is_first)
        top, left = int(rows.min()), int(columns.min())
        shown, is_first, duration, corner = image, False, milliseconds, (left, top)
        waiting = np.ascontiguousarray(image[top : rows.max() + 1, left : columns.max() + 1])
    yield from parts(waiting, corner, duration, is_first)
    yield b";"


@contextlib.contextmanager
def rendering(task: Any, output: Path) -> Iterator[tuple[Environment, float]]:
    """Yield an environment that renders, and the seconds per frame; UserError if it cannot."""
    if not hasattr(task, "environment"):
        raise UserError(f"the task {task.name!r} has no environment to record: leave --video out")
    with closing(task.name, task.environment()) as environment:
        modes = list(environment.metadata.get("render_modes") or ())
    try:
        with closing(task.name, task.environment("rgb_array")) as environment:
            yield environment, 1 / (environment.metadata.get("render_fps") or 1 / SECONDS_PER_FRAME)
    except Exception as error:  # renderers raise all kinds of errors
        if "rgb_array" not in modes:
            raise UserError(
                f"{output}: {task.name} renders no images: 'rgb_array' is not among its "
                f"metadata['render_modes'], {modes}"
            ) from error
        message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        uses_gl = any(name.partition(".")[0] in {"mujoco", "OpenGL"} for name in sys.modules)
        backend = (
            f" (MUJOCO_GL is {os.environ.get('MUJOCO_GL', 'not set')}; try egl or osmesa)"
            if uses_gl
            else ""
        )
        package = missing_package(error)
        remedy = f" ({install_command(package)})" if package else ""
        raise UserError(
            f"{output}: cannot be rendered here: {message.rstrip(': ')}{backend}{remedy}"
        ) from error


def frames(source: StoredPolicy, task: Any, environment: Environment, seed: int) -> Iterator[Array]:
    """Yield the frames uint8[height, width, 3] after the reset and after each step.

    There are at most MOST_FRAMES.
    """
    actor = source.bind(source.policy(task.spaces), 1)
    random.seed(seed)
    np.random.seed(seed)  # as in a rollout
    spec = task.spaces.observations
    observation, _ = reset_values(environment.reset(seed=seed))
    yield _frame(environment)
    for step in range(MOST_FRAMES - 1):
        seen, at = spec.array(spec.require(observation)), f"at step {step}"
        if not np.isfinite(seen).all():
            raise ValueError(not_finite_text("the observation", seen, at))
        action = actor.act(seen[np.newaxis])[0]
        if not np.isfinite(action).all():
            raise ValueError(
                not_finite_text(
                    "the action of the policy", np.atleast_1d(action), f"{at}; {DIVERGED}"
                )
            )
        action = int(action) if isinstance(task.spaces.actions, Discrete) else action
        observation, _, terminated, truncated, _ = step_values(environment.step(action))
        yield _frame(environment)
        if terminated or truncated:
            return
    say_error(f"the video ends after {MOST_FRAMES} frames, before the end of the episode\n")


def _frame(environment: Environment) -> Array:
    frame = environment.render()
    if not (isinstance(frame, np.ndarray) and frame.ndim == 3):
        raise UserError(
            f"expected render() to return an array [height, width, 3], got {type(frame).__name__}"
        )
    return frame
