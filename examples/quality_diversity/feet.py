"""Which feet of HalfCheetah touch the ground, as numbers of its infos."""

import gymnasium
import mujoco

FEET = {"back_foot": "bfoot", "front_foot": "ffoot"}


class Feet(gymnasium.Wrapper):
    """Adds back_foot and front_foot to the infos: 1 while the foot touches the floor, else 0."""

    def __init__(self, env):
        super().__init__(env)
        model = env.unwrapped.model
        self.floor = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, "floor")
        self.feet = {
            name: mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, geom)
            for name, geom in FEET.items()
        }

    def step(self, action):
        """Step the environment, and add the contacts."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        touching = {
            geom
            for pair in self.env.unwrapped.data.contact.geom.tolist()
            if self.floor in pair
            for geom in pair
        }
        contacts = {name: float(foot in touching) for name, foot in self.feet.items()}
        return observation, reward, terminated, truncated, {**info, **contacts}
