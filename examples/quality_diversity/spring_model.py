"""Helical compression springs: how stiff and how heavy they are, and how much stress they bear."""

import math

SHEAR_MODULUS, DENSITY = 79e9, 7850.0  # of steel, in Pa and kg / m^3
FORCE = 100.0  # N


def spring(wire, coil, turns):
    """Return the shear stress of a spring in MPa under FORCE, its stiffness and its mass.

    Args:
        wire: diameter of the wire in mm.
        coil: mean diameter of the coil in mm.
        turns: number of active turns.
    """
    d, mean = wire * 1e-3, coil * 1e-3
    index = mean / d
    curvature = (4 * index - 1) / (4 * index - 4) + 0.615 / index  # factor of Wahl
    stress = curvature * 8 * FORCE * mean / (math.pi * d**3)
    stiffness = SHEAR_MODULUS * d**4 / (8 * mean**3 * turns)  # N / m
    mass = DENSITY * math.pi * d**2 / 4 * math.pi * mean * turns
    return {
        "value": stress * 1e-6,
        "measures": [math.log10(stiffness * 1e-3), math.log10(mass * 1e3)],
        "constraints": [4 - index],  # a coil that can be wound
    }
