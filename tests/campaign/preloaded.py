"""Libraries in C that are loaded before the others in the ranks of the campaign."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def compiled(name: str, directory: Path) -> Path | None:
    """Compile `name`.c of this folder into the directory, unless it is there;
    None without a C compiler.
    """
    library = directory / f"{name}.so"
    if shutil.which("cc") and not library.exists():
        source = Path(__file__).with_name(f"{name}.c")
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=False
        )
    return library if library.exists() else None


def joined(*environments: dict[str, str]) -> dict[str, str]:
    """Join variables of processes; libraries are preloaded one after the other."""
    libraries = os.pathsep.join(one["LD_PRELOAD"] for one in environments if "LD_PRELOAD" in one)
    result = {name: value for one in environments for name, value in one.items()}
    return {**result, "LD_PRELOAD": libraries} if libraries else result
