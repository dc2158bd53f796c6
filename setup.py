"""Build of the package; everything else is in setup.cfg.

A wheel has the example configs in hpc_es/configs.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

EXAMPLES = ("*.yaml", "*.py")


class BuildWithConfigs(build_py):
    """Copy configs/ beside the modules, for `hpc-es new`;
    an editable installation reads them where they are.
    """

    def run(self) -> None:
        """Build the package."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "hpc_es" / "configs"
        target.mkdir(parents=True, exist_ok=True)
        for pattern in EXAMPLES:
            for file in sorted(Path("configs").glob(pattern)):
                self.copy_file(str(file), str(target / file.name))


setup(cmdclass={"build_py": BuildWithConfigs})
