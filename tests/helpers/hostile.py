"""Damage to files, at random."""

from __future__ import annotations

import json
import random

VALUES = [
    *(
        "null",
        "true",
        "-1",
        "1e400",
        "-1e-400",
        "NaN",
        "Infinity",
        "9" * 400,
        '"x"',
        '""',
        "[]",
        "{}",
        "[[]]",
        '{"a": 1}',
    ),
    *('"\\u001b[31m"', '"\\ud800"', '"=cmd()"', "1.5", "99999999999", '[null, "a", {}]'),
]


def mutated(content: bytes, chosen: random.Random) -> bytes:
    """Return damaged content: bytes flipped, cut, inserted,
    or a value of a text replaced by another.
    """
    match chosen.randrange(6):
        case 0:
            position = chosen.randrange(len(content) + 1)
            return content[:position]
        case 1:
            data = bytearray(content or b"x")
            for _ in range(chosen.randint(1, 8)):
                data[chosen.randrange(len(data))] = chosen.randrange(256)
            return bytes(data)
        case 2:
            position = chosen.randrange(len(content) + 1)
            return content[:position] + chosen.randbytes(chosen.randint(1, 50)) + content[position:]
    try:
        value = json.loads(content)
    except ValueError:
        lines = content.split(b"\n")
        number = chosen.randrange(len(lines))
        name, colon, _ = lines[number].partition(b": ")
        lines[number] = (
            name + colon + chosen.choice(VALUES).encode() if colon else lines[number] * 2
        )
        return b"\n".join(lines)
    place = value
    while isinstance(place, dict) and place:
        name = chosen.choice(sorted(place))
        if not isinstance(place[name], dict) or not place[name] or chosen.random() < 0.3:
            place[name] = "REPLACED"
            break
        place = place[name]
    return json.dumps(value).replace('"REPLACED"', chosen.choice(VALUES)).encode()
