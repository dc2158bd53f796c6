"""Bare loops: the work of one process of a job and nothing else, written without hpc_es.

    python -m benchmarks.limit.bare numpy '{"environment": "Pendulum-v1", "jobs": 64, "hidden": 64}'
    --seconds 3

A loop gets ready parameters or actions and evaluates them again and again. It has no noise, no
ranking, no update, no rows, no checks and no messages. Where noise is a part of the work (counter
and portable noise), `noise` adds NumPy's own to the loop. The last line is JSON: units per second.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Loop = Callable[[], int]  # does some work and returns its units: env-steps or evaluations

SIGMA = 0.02  # of the noise of candidates


def sizes(inputs: int, hidden: int, outputs: int) -> list[tuple[int, int]]:
    """Return the (inputs, outputs) of the layers of an MLP with two hidden layers."""
    return [(inputs, hidden), (hidden, hidden), (hidden, outputs)]


def candidates(jobs: int, layers: list[tuple[int, int]]) -> Any:
    """Return random parameters, float32[jobs, params]."""
    count = sum((inputs + 1) * outputs for inputs, outputs in layers)
    return 0.1 * np.random.default_rng(1).standard_normal((jobs, count), np.float32)


def split(theta: Any, layers: list[tuple[int, int]]) -> list[tuple[Any, Any]]:
    """Return (weights [..., inputs, outputs], biases [...,
    outputs]) of each layer from [..., params].
    """
    parts, start = [], 0
    for inputs, outputs in layers:
        weights = theta[..., start : start + inputs * outputs].reshape(
            *theta.shape[:-1], inputs, outputs
        )
        start += inputs * outputs
        parts.append((weights, theta[..., start : start + outputs]))
        start += outputs
    return parts


# Classic control, stepped as arrays by NumPy.


def pendulum(state: Any, action: Any) -> tuple[Any, Any]:
    """Return the state [jobs, 2] after a step, and the rewards."""
    angle, speed = state.T
    torque = np.clip(2 * action[:, 0], -2, 2)
    wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
    rewards = -(wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2)
    speed = np.clip(speed + (15 * np.sin(angle) + 3 * torque) * 0.05, -8, 8)
    return np.stack([angle + speed * 0.05, speed], axis=1), rewards


def pendulum_observation(state: Any) -> Any:
    """Return cosine, sine and speed, float32[jobs, 3]."""
    return np.stack(
        [np.cos(state[:, 0]), np.sin(state[:, 0]), state[:, 1]], axis=1, dtype=np.float32
    )


def cartpole(state: Any, action: Any) -> tuple[Any, Any]:
    """Return the state [jobs, 4] after a step, and the rewards."""
    x, x_dot, angle, angle_dot = state.T
    force = np.where(action.argmax(axis=1) == 1, 10.0, -10.0)
    cosine, sine = np.cos(angle), np.sin(angle)
    push = (force + 0.05 * angle_dot**2 * sine) / 1.1
    turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    shift = push - 0.05 * turn * cosine / 1.1
    new = x + 0.02 * x_dot, x_dot + 0.02 * shift, angle + 0.02 * angle_dot, angle_dot + 0.02 * turn
    return np.stack(new, axis=1), np.ones(len(state))


def acrobot(state: Any, action: Any) -> tuple[Any, Any]:
    """Return the state [jobs, 4] after a step (Runge and Kutta, fourth order), and the rewards."""
    torque = action.argmax(axis=1) - 1.0

    def slopes(s: Any) -> Any:
        one, two, speed_1, speed_2 = s.T
        cosine, sine = np.cos(two), np.sin(two)
        d1, d2 = 3.5 + cosine, 1.25 + 0.5 * cosine
        phi2 = 4.9 * np.cos(one + two - np.pi / 2)
        phi1 = (
            -0.5 * speed_2**2 * sine
            - speed_2 * speed_1 * sine
            + 14.7 * np.cos(one - np.pi / 2)
            + phi2
        )
        turn_2 = (torque + d2 / d1 * phi1 - 0.5 * speed_1**2 * sine - phi2) / (1.25 - d2**2 / d1)
        return np.stack([speed_1, speed_2, -(d2 * turn_2 + phi1) / d1, turn_2], axis=1)

    k1 = slopes(state)
    k2 = slopes(state + 0.1 * k1)
    k3 = slopes(state + 0.1 * k2)
    k4 = slopes(state + 0.2 * k3)
    new = state + 0.2 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    new[:, :2] = (new[:, :2] + np.pi) % (2 * np.pi) - np.pi
    new[:, 2:] = np.clip(new[:, 2:], [-4 * np.pi, -9 * np.pi], [4 * np.pi, 9 * np.pi])
    return new, -np.ones(len(state))


def acrobot_observation(state: Any) -> Any:
    """Return cosines and sines of both angles, and the speeds, float32[jobs, 6]."""
    one, two = state[:, 0], state[:, 1]
    columns = np.cos(one), np.sin(one), np.cos(two), np.sin(two), state[:, 2], state[:, 3]
    return np.stack(columns, axis=1, dtype=np.float32)


# environment: state, step, observation, numbers of observations and outputs, steps of an episode
CLASSIC: dict[str, tuple[int, Any, Any, int, int, int]] = {
    "Pendulum-v1": (2, pendulum, pendulum_observation, 3, 1, 200),
    "CartPole-v1": (4, cartpole, lambda state: state.astype(np.float32), 4, 2, 500),
    "Acrobot-v1": (4, acrobot, acrobot_observation, 6, 3, 500),
}


def numpy(environment: str, jobs: int, hidden: int, noise: bool = False) -> Loop:
    """Return the loop over episodes of full length: policy product and vectorised step."""
    width, step, observe, inputs, outputs, steps = CLASSIC[environment]
    layers = sizes(inputs, hidden, outputs)
    theta = candidates(jobs, layers)
    key = 0

    def episodes() -> int:
        nonlocal key, theta
        if noise:
            for half in range(jobs // 2):
                key += 1
                generator = np.random.Generator(np.random.Philox(key=key))
                drawn = SIGMA * generator.standard_normal(theta.shape[1], np.float32)
                theta[2 * half], theta[2 * half + 1] = drawn, -drawn
        parts = [(weights, biases[:, np.newaxis]) for weights, biases in split(theta, layers)]
        state = np.random.default_rng(1).uniform(-0.05, 0.05, (jobs, width))
        returns = np.zeros(jobs)
        for _ in range(steps):
            values = observe(state)[:, np.newaxis]
            for weights, biases in parts[:-1]:
                values = np.tanh(values @ weights + biases)
            weights, biases = parts[-1]
            state, rewards = step(state, (values @ weights + biases)[:, 0])
            returns += rewards
        return jobs * steps

    return episodes


# Compiled environments.


def gymnax(environment: str, jobs: int, block: int, hidden: int, steps: int, resets: bool) -> Loop:
    """Return the compiled loop over episodes, `block` candidates side by side; with `resets`,
    episodes restart.
    """
    import gymnax as library
    import jax
    import jax.numpy as jnp

    env, settings = library.make(environment)
    inputs = int(np.prod(env.observation_space(settings).shape))
    space = env.action_space(settings)
    is_discrete = hasattr(space, "n")
    outputs = int(space.n) if is_discrete else int(space.shape[0])
    layers = sizes(inputs, hidden, outputs)

    def act(parts: Any, observation: Any) -> Any:
        values = observation.ravel()
        for weights, biases in parts[:-1]:
            values = jnp.tanh(values @ weights + biases)
        weights, biases = parts[-1]
        values = values @ weights + biases
        return jnp.argmax(values) if is_discrete else jnp.clip(2 * values, space.low, space.high)

    def episode(theta: Any, key: Any) -> Any:
        parts = split(theta, layers)
        first, key = jax.random.split(key)
        observation, state = env.reset_env(first, settings)

        def step(carry: Any, number: Any) -> Any:
            observation, state, total = carry
            own = jax.random.fold_in(key, number)
            action = act(parts, observation)
            advance = env.step if resets else env.step_env
            observation, state, reward = advance(own, state, action, settings)[:3]
            return (observation, state, total + reward), None

        (_, _, total), _ = jax.lax.scan(
            step, (observation, state, jnp.float32(0)), jnp.arange(steps)
        )
        return total

    return blocks(episode, candidates(jobs, layers), jobs, block, steps)


def brax(environment: str, jobs: int, block: int, hidden: int, steps: int) -> Loop:
    """Return the compiled loop over episodes of Brax (spring), which go on after their end."""
    import jax
    import jax.numpy as jnp
    from brax import envs

    env = envs.get_environment(environment, backend="spring")
    layers = sizes(env.observation_size, hidden, env.action_size)

    def episode(theta: Any, key: Any) -> Any:
        parts = split(theta, layers)
        state = env.reset(key)

        def step(carry: Any, _: Any) -> Any:
            state, total = carry
            values = state.obs
            for weights, biases in parts[:-1]:
                values = jnp.tanh(values @ weights + biases)
            weights, biases = parts[-1]
            state = env.step(state, jnp.clip(values @ weights + biases, -1, 1))
            return (state, total + state.reward), None

        (_, total), _ = jax.lax.scan(step, (state, jnp.float32(0)), None, length=steps)
        return total

    return blocks(episode, candidates(jobs, layers), jobs, block, steps)


def blocks(episode: Any, theta: Any, jobs: int, block: int, steps: int) -> Loop:
    """Return the loop over blocks of candidates, each one compiled call."""
    import jax

    call = jax.jit(jax.vmap(episode))
    keys = jax.random.split(jax.random.key(1), jobs)
    parts = [
        (theta[start : start + block], keys[start : start + block])
        for start in range(0, jobs, block)
    ]

    def evaluate() -> int:
        for part, own in parts:
            np.asarray(call(part, own))
        return jobs * steps

    return evaluate


# Functions, programs and models.


def function(name: str, size: int) -> Loop:
    """Return the loop over a function of a vector."""
    module, _, attribute = name.partition(":")
    call = getattr(importlib.import_module(module), attribute)
    vectors = np.random.default_rng(1).standard_normal((64, size))

    def evaluate() -> int:
        for vector in vectors:
            call(vector)
        return len(vectors)

    return evaluate


def command(words: list[str], size: int) -> Loop:
    """Return the loop over a program that reads a file with
    parameters and writes one with a number.
    """
    directory = Path(tempfile.mkdtemp())
    parameters, result = directory / "parameters.json", directory / "result.json"
    places = {"{parameters}": str(parameters), "{result}": str(result)}
    line = [places.get(word, word) for word in words]
    values = np.random.default_rng(1).standard_normal((16, size)).tolist()

    def evaluate() -> int:
        for vector in values:
            parameters.write_text(json.dumps(vector))
            subprocess.run(line, check=True, cwd=directory, stdin=subprocess.DEVNULL)
            float(result.read_text())
        return len(values)

    return evaluate


def model(name: str, jobs: int) -> Loop:
    """Return the compiled loop over the scores of candidates with a batch each,
    `jobs` in a call.
    """
    import jax

    module, _, attribute = name.partition(":")
    made = getattr(importlib.import_module(module), attribute)()
    rng = np.random.default_rng(1)

    def perturbed(array: Any) -> Any:
        noise = SIGMA * rng.standard_normal((jobs, *np.shape(array)), np.float32)
        return jax.device_put(np.asarray(array, np.float32) + noise)

    parameters = jax.tree.map(perturbed, made["parameters"])
    batches = [made["batch"](seed) for seed in range(jobs)]
    stacked = jax.tree.map(lambda *arrays: np.stack(arrays), *batches)
    score = jax.jit(jax.vmap(made["score"]))

    def evaluate() -> int:
        np.asarray(score(parameters, stacked))
        return jobs

    return evaluate


def atari(game: str) -> Loop:
    """Return the loop over the emulator: four frames with one random action each time,
    resets included.
    """
    import ale_py

    emulator = ale_py.ALEInterface()
    emulator.setLoggerMode(ale_py.LoggerMode.Error)
    emulator.setInt("random_seed", 1)
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.loadROM(ale_py.roms.get_rom_path(game))
    actions = emulator.getMinimalActionSet()
    chosen = np.random.default_rng(1).integers(len(actions), size=2000).tolist()

    def steps() -> int:
        for action in chosen:
            if emulator.game_over():
                emulator.reset_game()
            for _ in range(4):
                emulator.act(actions[action])
            emulator.getScreenGrayscale()
        return len(chosen)

    return steps


LOOPS = {loop.__name__: loop for loop in (numpy, gymnax, brax, function, command, model, atari)}


def rate(loop: Loop, seconds: float) -> float:
    """Return the units per second of a loop, after a first pass that does not count."""
    loop()
    units, since = 0, time.perf_counter()
    while (passed := time.perf_counter() - since) < seconds:
        units += loop()
    return units / passed


def main() -> None:
    """Print the units per second of a loop."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limit.bare")
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("arguments", type=json.loads, help="a JSON object")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    sys.path.insert(0, str(Path.cwd()))
    loop: Any = LOOPS[options.loop]
    print(json.dumps({"rate": rate(loop(**options.arguments), options.seconds)}))


if __name__ == "__main__":
    main()
