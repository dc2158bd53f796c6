"""A cantilever beam of a round section: mass against deflection (Deb 2001, section 9.1.1)."""

import math


def beam(diameter, length):
    """Return mass in kg and deflection in mm; the stress and the deflection are limited."""
    mass = 7800 * math.pi / 4 * diameter**2 * length
    deflection = 64 * 1000 * length**3 / (3 * 207e9 * math.pi * diameter**4)
    stress = 32 * 1000 * length / (math.pi * diameter**3)
    return {
        "objectives": {"mass": mass, "deflection": 1000 * deflection},
        "constraints": [stress / 300e6 - 1, deflection / 0.005 - 1],
    }
