"""Code that a run names runs only if this user has written or trusted it;
a directory open to all is a stranger's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import py_compile
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from hpc_es.config.resolved import plain_data
from hpc_es.core.data import JsonObject
from hpc_es.core.errors import UserError
from hpc_es.storage import checkpoint
from tests.helpers.harness import Finished, mpiexec, python

ENV = """
import gymnasium
import numpy as np
import helper

class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        helper.ran("reset")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {}

gymnasium.register("Line-v0", Line, max_episode_steps=5)
"""
HELPER = """
import os
import pathlib

def ran(what):
    pathlib.Path(os.environ["RAN"]).joinpath(what).touch()
"""
CONFIG = """
task: {env_id: "lines:Line-v0"}
policy: {hidden_dims: [2]}
algorithm: {population_size: 4}
evaluation: {interval: 1, episodes: 2}
checkpoint: {interval: 1}
stop: {generations: 2}
report: {plot_interval_seconds: 0}
"""


class Place:
    """A project `code`, a run in it, and an own state directory, in a directory of the test."""

    def __init__(self, root: Path) -> None:
        self.root, self.code, self.run = (
            root,
            root / "share" / "code",
            root / "share" / "code" / "run",
        )
        self.ran = root / "ran"
        self.env = {"XDG_STATE_HOME": str(root / "state"), "RAN": str(self.ran)}

    def call(self, *arguments: str | Path, status: int = 0, cwd: Path | None = None) -> Finished:
        """Run hpc-es, by default in an empty directory; `ran` is empty before."""
        shutil.rmtree(self.ran, ignore_errors=True)
        self.ran.mkdir()
        (self.root / "empty").mkdir(exist_ok=True)
        done = python(
            ["-m", "hpc_es", *map(str, arguments)], cwd=cwd or self.root / "empty", env=self.env
        )
        assert done.status == status, str(done)
        return done

    def refused(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        """Return the message of a command that must be refused, and run no code."""
        done = self.call(*arguments, status=2, cwd=cwd)
        assert not [*self.ran.iterdir()] and "Traceback" not in done.stderr, str(done)
        return done.stderr

    def forget(self) -> None:
        """Remove what this user has trusted."""
        shutil.rmtree(self.root / "state", ignore_errors=True)

    def train_again(self) -> None:
        """Train with the code as it is now, which is trusted by that."""
        self.forget()
        shutil.rmtree(self.run)
        self.call("train", "line.yaml", "--output", self.run, cwd=self.code)

    def open_to_all(self) -> None:
        """Let all users write into the project."""
        self.code.chmod(0o777)

    def change(self, **provenance: object) -> None:
        """Change the provenance in all checkpoints, as their author can."""
        for path in (self.run / "checkpoints").glob("*.h5"):
            old = checkpoint.load(path)
            checkpoint.save(
                path, dataclasses.replace(old, provenance={**old.provenance, **provenance})
            )

    def change_config(self, section: str, **options: object) -> None:
        """Change the config in all checkpoints."""
        for path in (self.run / "checkpoints").glob("*.h5"):
            old = checkpoint.load(path)
            data: JsonObject = plain_data(old.config_text)
            data[section] |= options
            checkpoint.save(path, dataclasses.replace(old, config_text=json.dumps(data)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = Place(tmp_path_factory.mktemp("trained"))
    place.code.mkdir(parents=True)
    (place.code / "lines.py").write_text(ENV)
    (place.code / "helper.py").write_text(HELPER)
    (place.code / "line.yaml").write_text(CONFIG)
    place.call("train", "line.yaml", "--output", place.run, cwd=place.code)
    return place.root


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Place:
    """A copy of the project and of what its user trusts, at another place,
    where the checkpoints think it was.
    """
    shutil.copytree(trained, tmp_path / "place")
    copy = Place(tmp_path / "place")
    copy.change(import_paths=[str(copy.code)])
    return copy


def test_started_runs_are_trusted_where_a_group_or_all_may_write(place: Place) -> None:
    place.open_to_all()
    place.call("eval", place.run, "--episodes", "2")
    assert (place.ran / "reset").exists()


def test_run_of_a_stranger_lists_its_files_and_runs_once_trusted(place: Place) -> None:
    place.forget()
    place.open_to_all()
    for command in (
        ["eval", place.run],
        ["eval", place.run, "--all"],
        ["export", place.run, "p.npz"],
    ):
        said = place.refused(*command)
        assert (
            f"all users may write {place.code}" in said
            and "hpc-es trust" in said
            and "--trust" in said
        )
        assert f"{place.code}/lines.py" in said and f"{place.code}/helper.py" in said
    place.call("eval", place.run, "--episodes", "1", "--trust")
    assert (place.ran / "reset").exists()
    place.refused("eval", place.run)
    shown = place.call("trust", place.run, "--show").stdout
    assert "would run" in shown and "helper.py" in shown
    place.refused("eval", place.run)
    assert "may run" in place.call("trust", place.run).stdout
    assert not [*place.ran.iterdir()]
    place.call("eval", place.run, "--episodes", "1")
    assert (place.ran / "reset").exists()


@pytest.mark.parametrize("name", ["lines.py", "helper.py"])
def test_changed_file_of_a_trusted_run_is_refused(place: Place, name: str) -> None:
    place.open_to_all()
    (place.code / name).write_text((place.code / name).read_text() + "ran = None\n")
    said = place.refused("eval", place.run)
    assert "would run 'lines:Line-v0'" in said or f"{place.code}/{name}" in said


def test_module_that_no_statement_imports_is_compared_when_it_is_imported(place: Place) -> None:
    text = ENV.replace(
        "import helper", "import importlib\nhelper = importlib.import_module('helper')"
    )
    (place.code / "lines.py").write_text(text)
    place.forget()
    place.open_to_all()
    assert "helper.py" not in place.call("trust", place.run).stdout
    said = place.refused("eval", place.run)
    assert f"would import {place.code}/helper.py" in said
    place.call("trust", place.code / "helper.py")
    place.call("eval", place.run, "--episodes", "1")


def test_code_in_the_directory_of_training_needs_no_store(place: Place) -> None:
    place.forget()
    place.call("eval", place.run, "--episodes", "1")
    (place.root / "other").mkdir()
    for name in ("lines.py", "helper.py"):
        shutil.move(place.code / name, place.root / "other" / name)
    said = place.refused("eval", place.run, cwd=place.root / "other")
    assert "is in another directory than in the training" in said
    place.call("trust", place.run, cwd=place.root / "other")
    place.call("eval", place.run, "--episodes", "1", cwd=place.root / "other")


def test_file_of_another_user_is_named(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    place.forget()
    os.chown(place.code / "helper.py", 12001, 12001)
    assert f"{place.code}/helper.py belongs to user 12001" in place.refused("eval", place.run)
    os.chown(place.code / "helper.py", 0, 0)
    os.lchown(place.run, 12001, 12001)
    assert f"{place.run} belongs to user 12001" in place.refused("eval", place.run)


def test_relative_import_path_means_no_directory_beside_the_run(place: Place) -> None:
    place.forget()
    place.change(import_paths=["share/code"])

    assert "is in another directory than in the training" in place.refused(
        "eval", place.run, cwd=place.root
    )


def test_relative_import_path_finds_no_code_even_with_trust(place: Place) -> None:
    """It would be a directory below the current one, which may have come with the run."""
    place.change(import_paths=["share/code"])
    for path in (place.run / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        data = {**plain_data(old.config_text), "directory": str(place.root / "empty")}
        checkpoint.save(path, dataclasses.replace(old, config_text=json.dumps(data)))
    said = place.refused("eval", place.run, "--trust", cwd=place.root)
    assert "expected the source of 'lines:Line-v0'" in said


@pytest.mark.parametrize(
    ("path", "start"),
    [("/", "copy/code"), ("/proc/self/cwd/copy/code", ""), ("/dev/fd/../cwd", "")],
)
def test_run_that_is_unpacked_elsewhere_does_not_name_its_own_place(
    place: Place, path: str, start: str
) -> None:
    """Its files belong to whoever unpacks them, and `path` is an absolute one on every machine."""
    place.forget()
    place.change(import_paths=[path, path.replace("cwd/copy", "cwd")])
    shutil.move(place.root / "share", place.root / "copy")
    run = place.root / "copy" / "code" / "run"
    place.refused("eval", run, cwd=place.root / start)


def test_library_of_a_run_that_is_unpacked_does_not_run(place: Place) -> None:
    """The run belongs to whoever unpacks it, and a library needs no file of it."""
    place.forget()
    place.change(sources={})
    place.change_config(
        "task", env_id="CartPole-v1", wrappers=[{"subprocess:Popen": {"args": ["touch", "x"]}}]
    )
    said = place.refused("eval", place.run)
    assert "subprocess:Popen is of a library" in said


@pytest.mark.long
def test_own_run_with_a_library_or_a_program_is_trusted_once_started(place: Place) -> None:
    command = json.dumps(["sh", "-c", "echo 1 > $0; : $1", "{result}", "{parameters}"])
    tasks = {
        "library": 'kind: function, function: "statistics:fmean"',
        "program": f"kind: command, command: {command}",
    }
    rest = "algorithm: {kind: cma_es}\nstop: {generations: 1}\nreport: {plot_interval_seconds: 0}\n"
    for name, task in tasks.items():
        config = place.code / f"{name}.yaml"
        config.write_text(f"task: {{{task}, dimension: 2}}\n{rest}")
        run = place.code / name
        place.call("train", config, "--output", run)
        place.call("eval", run)
        place.forget()
        assert f"is {'of a library' if name == 'library' else 'a program'}" in place.refused(
            "eval", run
        )
        listed = place.call("trust", run).stdout
        assert ("  sh  SHA-256 " in listed) == (name == "program"), listed
        place.call("eval", run)


def test_compiled_file_beside_a_source_does_not_run(place: Place) -> None:
    evil = place.root / "evil.py"
    evil.write_text(ENV.replace('"reset"', '"evil"'))
    cached = place.code / "__pycache__" / "lines.cpython-311.pyc"
    py_compile.compile(
        str(evil),
        str(cached),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        doraise=True,
    )
    for trust in ([], ["--trust"]):
        place.call("eval", place.run, "--episodes", "1", *trust)
        assert (place.ran / "reset").exists() and not (place.ran / "evil").exists()


@pytest.mark.parametrize("way", ["PYTHONPATH", "finder"])
@pytest.mark.parametrize("change", ["compiled", "late"])
def test_what_was_checked_runs_also_from_the_users_own_python_path(
    place: Place, way: str, change: str
) -> None:
    """Others may write there too: a compiled file, or another source after the check."""
    src, site = place.root / "src", place.root / "site"
    (src / "pkg").mkdir(parents=True)
    site.mkdir()
    for name in ("lines", "helper"):
        text = (
            (place.code / f"{name}.py")
            .read_text()
            .replace("import helper", "from pkg import helper")
        )
        (src / "pkg" / f"{name}.py").write_text(text)
        (place.code / f"{name}.py").unlink()
    (src / "pkg" / "__init__.py").touch()
    # as an editable installation, which names the directory of a package
    (site / "sitecustomize.py").write_text(
        "import sys\nfrom importlib.util import spec_from_file_location\nclass Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pkg':\n"
        f"            return spec_from_file_location(name, '{src}/pkg/__init__.py')\n"
        "sys.meta_path.append(Finder())\n"
    )
    place.env["PYTHONPATH"] = str(src if way == "PYTHONPATH" else site)
    (place.code / "line.yaml").write_text(CONFIG.replace("lines:", "pkg.lines:"))
    place.train_again()
    place.call("eval", place.run)
    assert [path.name for path in place.ran.iterdir()] == ["reset"]
    hostile = place.root / "hostile.py"
    hostile.write_text(HELPER.replace("touch()", "with_suffix('.hostile').touch()"))
    if change == "compiled":
        folder = src / "pkg" / "__pycache__"
        shutil.rmtree(folder, ignore_errors=True)
        compiled = folder / f"helper.{sys.implementation.cache_tag}.pyc"
        py_compile.compile(
            str(hostile),
            str(compiled),
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        place.call("eval", place.run)
        assert [path.name for path in place.ran.iterdir()] == ["reset"]
    else:  # as soon as the environment, which imports the helper, is executed
        (src / "pkg" / "lines.py").write_text(
            f"import shutil\nshutil.copy({str(hostile)!r}, {str(src / 'pkg/helper.py')!r})\n"
            + (src / "pkg" / "lines.py").read_text()
        )
        place.call("trust", place.run)
        assert "has changed since it was checked" in place.call("eval", place.run, status=2).stderr
        assert not [*place.ran.iterdir()]


def test_directory_that_is_called_site_packages_is_not_installed(place: Place) -> None:
    site = place.root / "site-packages"
    place.code.rename(site)
    place.code, place.run = site, site / "run"
    place.change(import_paths=[str(site)], sources={})
    place.forget()
    place.open_to_all()
    assert "lines:Line-v0" in place.refused("eval", place.run)


def test_library_is_not_imported_from_a_run(place: Place) -> None:
    """gym is not installed here."""
    (place.code / "gym").mkdir()
    (place.code / "gym" / "__init__.py").write_text("import helper\nhelper.ran('gym')\n")
    (place.code / "lines.py").write_text(ENV + "import gym\n")
    done = place.call("eval", place.run, "--episodes", "1", "--trust", status=2)
    assert "'gym' cannot be imported" in done.stderr and not (place.ran / "gym").exists()


def test_installed_code_with_arguments_of_a_stranger_is_refused(place: Place) -> None:
    place.change(sources={})
    place.change_config(
        "task", env_id="CartPole-v1", wrappers=[{"subprocess:Popen": {"args": ["touch", "x"]}}]
    )
    place.open_to_all()
    assert "  subprocess:Popen" in place.refused("eval", place.run)


def test_run_without_custom_code_of_a_stranger_needs_no_trust(place: Place) -> None:
    place.change(sources={})
    place.change_config("task", env_id="CartPole-v1")
    place.change_config("policy", hidden_dims=[2])
    place.open_to_all()
    assert "no custom code" in place.call("trust", place.run).stdout
    done = python(["-m", "hpc_es", "inspect", str(place.run)], cwd=place.root, env=place.env)
    assert done.status == 0, str(done)


def test_rank_0_decides_for_all_ranks(place: Place) -> None:
    """Rank 1 has no store, as where each node has its own home directory."""
    place.open_to_all()
    program = "import os, sys\nif os.environ.get('PMI_RANK') == '1': os.environ['XDG_STATE_HOME'] = '/nowhere'\n"
    program += f"sys.argv[:] = ['hpc-es', 'eval', '{place.run}', '--all', '--episodes', '1']\n"
    (place.root / "job.py").write_text(program + "from hpc_es.cli import main\nmain()\n")
    place.ran.mkdir(exist_ok=True)
    done = mpiexec(2, ["job.py"], cwd=place.root, env=place.env)
    assert done.status == 0 and "best.h5" in done.stdout, str(done)
    place.forget()
    refused = mpiexec(2, ["job.py"], cwd=place.root, env=place.env)
    assert refused.status == 2 and refused.stderr.count("hpc-es trust") == 1, str(refused)


def test_store_that_others_may_write_is_not_believed(place: Place) -> None:
    place.open_to_all()
    (place.root / "state" / "hpc_es" / "trusted").chmod(0o777)
    place.refused("eval", place.run)
    done = place.call("trust", place.run, status=1)
    assert "other users may write" in done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize("spelling", ["/", "/.", "//.", "/../code"])
def test_best_checkpoint_whose_identity_names_other_code(place: Place, spelling: str) -> None:
    """The config of both names none; the directory of the config is
    spelled so that it looks like another one.
    """
    (place.code / "evil.py").write_text("import helper\nhelper.ran('evil')\n")
    place.change(sources={}, import_paths=[])
    place.change_config("task", env_id="CartPole-v1", env_kwargs={"sutton_barto_reward": False})
    for path in (place.run / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        data = {**json.loads(old.config_text), "directory": f"{place.code}{spelling}"}
        better = old.best
        if better is not None:
            later = better.generation + 1000 * (path.name == "best.h5")
            better = dataclasses.replace(better, return_=float(later), generation=later)
        identity = {**old.identity, "task": {"kind": "evil:Task"}}
        checkpoint.save(
            path,
            dataclasses.replace(old, config_text=json.dumps(data), identity=identity, best=better),
        )
    place.open_to_all()
    for command in (
        ["eval", place.run, "--episodes", "1"],
        ["eval", place.run, "task.max_episode_steps=3"],
    ):
        done = python(["-m", "hpc_es", *map(str, command)], cwd=place.root, env=place.env)
        assert "Traceback" not in done.stderr and not (place.ran / "evil").exists(), str(done)


@pytest.mark.parametrize(("name", "mode"), [("optional", 0o1777), ("plugins.optional", 0o777)])
def test_directory_where_others_may_add_files_gives_only_own_ones(
    place: Place, name: str, mode: int
) -> None:
    """A sticky directory, such as /tmp, in the path of a run whose own code is elsewhere,
    and a folder below one.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    open_one = place.root / "open"
    file = open_one / f"{name.replace('.', '/')}.py"
    file.parent.mkdir(parents=True)
    file.parent.chmod(mode)
    file.write_text("import helper\nhelper.ran('optional')\n")
    os.chown(file, 12001, 12001)
    (open_one / "mine.py").write_text("import helper\nhelper.ran('mine')\n")
    optional = f"import contextlib\nwith contextlib.suppress(ImportError):\n    __import__('mine')\n    __import__({name!r})\n"
    (place.code / "lines.py").write_text(ENV + optional)
    place.call("train", "line.yaml", "--output", place.root / "other" / "run", cwd=place.code)
    shutil.rmtree(place.run)
    shutil.move(place.root / "other" / "run", place.run)
    place.change(import_paths=[str(place.code), str(open_one)])
    place.forget()
    said = place.call("eval", place.run, "--episodes", "1", status=2).stderr
    assert f"would import {file}" in said and "somebody else may have written it" in said
    assert not (place.ran / "optional").exists() and (place.ran / "mine").exists()


def test_override_brings_in_no_module_of_a_stranger_from_the_current_directory(
    place: Place,
) -> None:
    """The run names no code; with an override its config is validated again, and Pillow looks for
    a module that is not installed.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    path = place.root / "pole"
    place.call("train", "line.yaml", "task.env_id=CartPole-v1", "--output", path, cwd=place.code)
    open_one = place.root / "open"
    open_one.mkdir()
    file = open_one / "olefile.py"
    file.write_text(f"import pathlib\npathlib.Path({str(place.ran)!r}).touch()\n")
    for item in (open_one, file):
        os.chown(item, 12001, 12001)
    shutil.rmtree(place.ran)
    words = ["eval", path, "--episodes", "1", "--video", place.root / "x.gif"]
    for override in ([], ["task.max_episode_steps=3"]):
        command = ["-P", "-m", "hpc_es", *map(str, words), *override]
        done = python(command, cwd=open_one, env=place.env)
        assert not place.ran.exists() and "Traceback" not in done.stderr, str(done)
        assert done.status == 0 or f"would import {file}" in done.stderr, str(done)


def test_numba_keeps_no_pickled_code_beside_that_of_a_run(place: Place) -> None:
    """In __pycache__ there, somebody else could replace it."""
    pytest.importorskip("numba")
    compiled = (
        "\nimport numba\n@numba.njit(cache=True)\ndef double(x):\n    return 2 * x\ndouble(1)\n"
    )
    (place.code / "lines.py").write_text(ENV + compiled)
    place.forget()
    place.open_to_all()
    place.call("trust", place.run)
    cache = place.root / "cache"
    place.env["XDG_CACHE_HOME"] = str(cache)
    place.call("eval", place.run, "--episodes", "1")
    assert [*cache.glob("hpc_es/numba/*/*.nbi")] and not [*place.code.glob("__pycache__/*.nbi")]
    assert (cache / "hpc_es/numba").stat().st_mode & 0o777 == 0o700


def test_link_of_a_stranger_between_links_is_seen(place: Place) -> None:
    """The way leads over a directory that others may change to the user's own run."""
    place.forget()
    between = place.root / "between"
    between.mkdir()
    between.chmod(0o777)
    (between / "link").symlink_to(place.run)
    (place.root / "mine").symlink_to(between / "link")
    assert f"all users may write {between}" in place.refused("eval", place.root / "mine")


def test_directory_of_a_config_does_not_limit_the_users_own_imports(place: Place) -> None:
    place.change(sources={}, import_paths=[])
    place.change_config("task", env_id="CartPole-v1")
    for path in (place.run / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        data = {**json.loads(old.config_text), "directory": "/"}
        checkpoint.save(path, dataclasses.replace(old, config_text=json.dumps(data)))
    place.open_to_all()
    scripts = place.root / "scripts"
    scripts.mkdir()
    (scripts / "mine.py").write_text("value = 3\n")
    program = f"""
import contextlib
import hpc_es
with contextlib.suppress(Exception):
    hpc_es.load_policy({str(place.run)!r})
import mine
print(mine.value)
"""
    (scripts / "script.py").write_text(program)
    done = python([str(scripts / "script.py")], cwd=place.root, env=place.env)
    assert done.stdout == "3\n", str(done)


def test_message_about_a_damaged_config_names_the_checkpoint(place: Place) -> None:
    for path in (place.run / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        data = {**plain_data(old.config_text), "unknown": {"x": 1}}
        checkpoint.save(path, dataclasses.replace(old, config_text=json.dumps(data)))
    said = place.call("eval", place.run, "--episodes", "1", status=2).stderr
    assert said.startswith(f"hpc-es: {place.run}/checkpoints/") and "it is damaged" in said


def test_texts_that_are_given_to_code_are_trusted_and_numbers_may_change(place: Place) -> None:
    place.open_to_all()
    place.change_config("task", max_episode_steps=4)
    place.call("eval", place.run, "--episodes", "1")
    place.change_config("task", env_kwargs={"name": "x"})
    assert "names code that you have not trusted yet" in place.refused("eval", place.run)


def test_module_that_a_run_imports_late_is_trusted_with_it(place: Place) -> None:
    """No import statement names it, and it is first needed when episodes begin."""
    late = ENV.replace("import helper\n", "import importlib\n").replace(
        'helper.ran("reset")', 'importlib.import_module("helper").ran("reset")'
    )
    (place.code / "lines.py").write_text(late)
    place.train_again()
    place.open_to_all()
    place.call("eval", place.run, "--episodes", "1")
    assert (place.ran / "reset").exists()


def test_command_that_a_refusal_names_has_the_run_as_one_word(place: Place) -> None:
    """It is copied into a shell, and a name in it may have other commands and lines."""
    other = place.code / "a; touch b\nc"
    place.run.rename(other)
    place.open_to_all()
    place.forget()
    said = place.refused("eval", other)
    assert f"hpc-es trust '{place.code}/a; touch b\\nc'" in said
    assert not any(line.startswith("c") for line in said.splitlines())


def test_helpers_that_are_exchanged_are_not_trusted(place: Place) -> None:
    """Each of them has a content that is trusted, under the other name."""
    (place.code / "lines.py").write_text(
        ENV.replace("import helper", "import helper\nimport other")
    )
    (place.code / "other.py").write_text("ran = None\n")
    place.forget()
    place.open_to_all()
    place.call("trust", place.run)
    place.call("eval", place.run, "--episodes", "1")
    for source, target in (("helper", "third"), ("other", "helper"), ("third", "other")):
        (place.code / f"{source}.py").rename(place.code / f"{target}.py")
    assert f"hpc-es trust {place.run}" in place.refused("eval", place.run)


def test_late_helper_that_is_exchanged_does_not_run(place: Place) -> None:
    text = ENV.replace(
        "import helper", "import importlib\nhelper = importlib.import_module('helper')"
    )
    (place.code / "lines.py").write_text(text)
    (place.code / "other.py").write_text("ran = None\n")
    place.forget()
    place.open_to_all()
    place.call("trust", place.run, place.code / "helper.py", place.code / "other.py")
    place.call("eval", place.run, "--episodes", "1")
    (place.code / "other.py").rename(place.code / "helper.py")
    assert f"would import {place.code}/helper.py" in place.refused("eval", place.run)


def test_trusted_file_with_the_content_of_a_digest_is_no_trusted_run(place: Place) -> None:
    """Somebody could have a file trusted that says, as data, what another run would execute."""
    place.forget()
    place.open_to_all()
    program = f"""
import hashlib, json, sys
from pathlib import Path
from hpc_es.config import user_code
from hpc_es.config.resolved import plain_data
from hpc_es.storage import trust
from hpc_es.storage.checkpoint import load
user_code.import_from([{str(place.code)!r}])
snapshot = load(Path({str(place.run)!r}) / "checkpoints/best.h5")
real, texts = json.dumps, []
json.dumps = lambda value, **options: texts.append(real(value, **options)) or texts[-1]
trust.find_code(plain_data(snapshot.config_text), snapshot.provenance["sources"]).digest
sys.stdout.write(texts[-1])
"""
    (place.root / "digest.py").write_text(program)
    text = python([str(place.root / "digest.py")], env=place.env).stdout
    assert text.startswith('{"files": ')
    (place.root / "data.py").write_text(text)
    place.call("trust", place.root / "data.py")
    assert "names code that you have not trusted yet" in place.refused("eval", place.run)


def test_archive_as_directory_of_a_config_has_no_modules(place: Place) -> None:
    """A run that names no code may import optional libraries,
    which are no longer looked for in its directory.
    """
    archive = place.root / "code.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("gym", "shimmy"):  # which environments with old ids need
            file.writestr(
                f"{name}.py",
                "import os, pathlib\npathlib.Path(os.environ['RAN'], 'archive').touch()\n",
            )
    for path in (place.run / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        data: JsonObject = plain_data(old.config_text)
        data["task"]["env_id"], data["directory"] = "Foo-v99", str(archive)
        provenance = {**old.provenance, "sources": {}, "import_paths": []}
        checkpoint.save(
            path, dataclasses.replace(old, config_text=json.dumps(data), provenance=provenance)
        )
    place.forget()
    place.open_to_all()
    assert "Foo" in place.refused("eval", place.run)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("added", ["{here}/lib", "{here}/", "{here}/lib/..", ".", "lib"])
def test_code_brings_nothing_in_by_its_own_search_path(place: Place, added: str) -> None:
    """A trusted file that adds directories to sys.path, as many do, with one beside it that others
    may change.
    """
    library = place.code / "lib"
    library.mkdir()
    (library / "late.py").write_text("from helper import ran\n")
    shutil.copy(library / "late.py", place.code)
    path = f"import importlib, sys\nsys.path.insert(0, {added.format(here=place.code)!r})\n"
    (place.code / "lines.py").write_text(
        ENV.replace("import helper\n", f"{path}helper = importlib.import_module('late')\n")
    )
    place.train_again()
    place.open_to_all()
    place.call("eval", place.run, "--episodes", "1", cwd=place.code)
    assert (place.ran / "reset").exists()
    for folder in (place.code, library):
        (folder / "late.py").write_text("from helper import ran\nran('changed')\n")
    said = place.refused("eval", place.run, cwd=place.code)
    assert "late.py, which is not among its trusted files" in said


def test_file_that_code_finds_by_its_own_search_path_belongs_to_a_started_run(place: Place) -> None:
    """An import statement names it, which finds it only after the code has added its folder."""
    (place.code / "lib").mkdir()
    shutil.move(place.code / "helper.py", place.code / "lib")
    folder = f"import sys\nsys.path.insert(0, {str(place.code / 'lib')!r})\n"
    (place.code / "lines.py").write_text(folder + ENV)
    place.train_again()
    place.open_to_all()
    place.call("eval", place.run, "--episodes", "1")
    assert (place.ran / "reset").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
def test_unusual_files_in_a_package_make_no_command_wait(place: Place, kind: str) -> None:
    package = place.code / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    match kind:
        case "pipe":
            os.mkfifo(package / "a.py")
        case "device":
            (package / "a.py").symlink_to("/dev/zero")
        case "huge":
            with (package / "a.py").open("wb") as file:
                file.truncate(40 << 30)
    place.change_config("task", env_id="pack:Foo-v0")
    place.change(sources={"pack:Foo-v0": "00"})
    place.refused("eval", place.run)


def test_code_that_changes_during_a_run_is_not_trusted_with_it(place: Place) -> None:
    """Somebody of the group could write it, and it was not executed."""
    place.forget()
    shutil.rmtree(place.run)
    program = f"""
from pathlib import Path
import hpc_es
with hpc_es.train("line.yaml", {str(place.run)!r}) as run:
    next(run)
    file = Path("lines.py")
    file.write_text(file.read_text() + "helper.ran('import')\\n")
    list(run)
"""
    (place.root / "program.py").write_text(program)
    place.ran.mkdir(exist_ok=True)
    done = python([str(place.root / "program.py")], cwd=place.code, env=place.env)
    assert done.status == 0, str(done)
    place.open_to_all()
    assert "hpc-es trust" in place.refused("eval", place.run)


def test_code_that_changes_between_its_import_and_the_start_is_not_trusted(place: Place) -> None:
    """The file has other bytes than those that were executed: here it changes itself."""
    place.forget()
    shutil.rmtree(place.run)
    changes = """
with open(__file__, "a") as file:
    file.write("helper.ran('changed')\\n")
"""
    (place.code / "lines.py").write_text(ENV + changes)
    place.call("train", "line.yaml", "--output", place.run, cwd=place.code)
    assert not (place.ran / "changed").exists()
    place.open_to_all()
    assert "hpc-es trust" in place.refused("eval", place.run)


def test_names_in_the_store_tell_runs_and_files_apart(place: Place) -> None:
    """A file whose content somebody else has chosen has no name that a run can have."""
    place.forget()
    place.call("trust", place.run)
    names = [path.name for path in (place.root / "state" / "hpc_es" / "trusted").iterdir()]
    assert len(names) == 3 and sorted(name.partition("-")[0] for name in names) == [
        "file",
        "file",
        "run",
    ]


def test_checkpoint_that_is_exchanged_after_its_check_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`eval --all` loads each checkpoint again."""
    from hpc_es.api import evaluate
    from hpc_es.mpi.world import World

    monkeypatch.setenv("XDG_STATE_HOME", place.env["XDG_STATE_HOME"])
    monkeypatch.setenv("RAN", place.env["RAN"])
    monkeypatch.chdir(place.root)
    prepared = evaluate.prepare_all(place.run, lambda source: source, trust=True)
    asked = evaluate.EvaluationRequest(episodes=1, seed=0)
    assert len(evaluate.evaluate_all(World("none"), prepared, asked, lambda source: source)) >= 2
    place.change_config("task", kind="model", model="subprocess:run", model_kwargs={"args": "true"})
    with pytest.raises(
        UserError, match="was replaced by a checkpoint with other code after it was checked"
    ):
        evaluate.evaluate_all(World("none"), prepared, asked, lambda source: source)


def test_switches_and_texts_of_an_environment_with_a_namespace_are_trusted(place: Place) -> None:
    begin = "class Line(gymnasium.Env):"
    code = ENV.replace("Line-v0", "ns/Line-v0")
    code = code.replace(
        begin, f"{begin}\n    def __init__(self, name='', dry=True):\n        pass\n"
    )
    (place.code / "lines.py").write_text(code)
    (place.code / "line.yaml").write_text(CONFIG.replace("lines:Line-v0", "lines:ns/Line-v0"))
    shutil.rmtree(place.run)
    place.forget()
    place.call(
        "train",
        "line.yaml",
        "--output",
        place.run,
        "task.env_kwargs={name: a, dry: true}",
        cwd=place.code,
    )
    place.open_to_all()
    place.call("eval", place.run, "--episodes", "1")
    place.change_config("task", env_kwargs={"name": "a", "dry": False})
    assert "names code that you have not trusted yet" in place.refused("eval", place.run)
    place.change_config("task", env_kwargs={"name": "b", "dry": True})
    assert "names code that you have not trusted yet" in place.refused("eval", place.run)


def test_environment_with_a_namespace_in_an_installed_module_is_code(place: Place) -> None:
    place.change_config("task", env_id="antigravity:x/Line-v0")
    place.change(sources={}, import_paths=[])
    place.forget()
    place.open_to_all()
    assert "antigravity:x/Line-v0" in place.refused("eval", place.run)


SHELL = {"hpc_es.tasks.last_step:gymnasium.spaces.dict.typing.cast": {"val": "touch $RAN/shell"}}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "wrappers",
    [
        [SHELL, "hpc_es.tasks.last_step:gymnasium.os.system"],
        ["hpc_es.tasks.last_step:gymnasium.os.abort"],
        ["hpc_es.tasks.bandits:gymnasium.os.abort"],
        ["ctypes:cdll./nowhere/lib x"],
        ["os:abort "],
        ["os:abort\n"],
        [{"posix:abort ": None}],
    ],
)
def test_wrapper_of_a_stranger_runs_nothing(place: Place, wrappers: list[object]) -> None:
    """Neither through a module of hpc_es, nor by a name with unusual characters."""
    place.change_config("task", env_id="CartPole-v1", wrappers=wrappers)
    place.change(sources={}, import_paths=[])
    place.forget()
    place.open_to_all()
    assert "or give --trust (trust=True) to run it once" in place.refused("eval", place.run)
    assert "or give --trust" in place.refused("export", place.run, place.root / "policy.npz")


@pytest.mark.parametrize(
    "wrapper", ["hpc_es.tasks.last_step:gymnasium.os.abort", "ctypes:cdll./nowhere/lib x"]
)
def test_wrapper_is_no_path_through_other_modules(place: Place, wrapper: str) -> None:
    place.change_config("task", env_id="CartPole-v1", wrappers=[wrapper])
    assert "which cannot be imported" in place.refused("eval", place.run, "--trust")


@pytest.mark.parametrize("env_id", ["antigravity:Foo é-v0", "antigravity:2-v0", "antigravity:"])
def test_environment_with_an_unusual_name_is_code(place: Place, env_id: str) -> None:
    place.change_config("task", env_id=env_id)
    place.change(sources={}, import_paths=[])
    place.forget()
    place.open_to_all()
    assert "names code that you have not trusted yet" in place.refused("eval", place.run)


def test_wrapper_of_hpc_es_of_a_stranger_needs_no_trust(place: Place) -> None:
    place.change_config("task", env_id="CartPole-v1", wrappers=["hpc_es.tasks.last_step:LastStep"])
    place.change(sources={}, import_paths=[])
    place.forget()
    place.open_to_all()
    assert "names code" not in place.refused("eval", place.run)  # 8 observations, not 1


@pytest.mark.parametrize("module", ["münze", "münz-2"])
def test_texts_are_trusted_also_of_modules_with_other_letters(place: Place, module: str) -> None:
    begin = "class Line(gymnasium.Env):"
    code = ENV.replace(begin, f"{begin}\n    def __init__(self, name=''):\n        pass\n")
    (place.code / f"{module}.py").write_text(code)
    (place.code / "line.yaml").write_text(CONFIG.replace("lines:", f"{module}:"))
    shutil.rmtree(place.run)
    place.forget()
    keywords = "task.env_kwargs={name: a}"
    place.call("train", "line.yaml", "--output", place.run, keywords, cwd=place.code)
    place.open_to_all()
    place.call("eval", place.run, "--episodes", "1")
    place.change_config("task", env_kwargs={"name": "b"})
    assert "names code that you have not trusted yet" in place.refused("eval", place.run)


def test_texts_that_only_look_like_code_need_no_source(place: Place) -> None:
    begin = "class Line(gymnasium.Env):"
    code = ENV.replace(begin, f"{begin}\n    def __init__(self, name=''):\n        pass\n")
    (place.code / "lines.py").write_text(code)
    keywords = "task.env_kwargs={name: 'no_such_module:0'}"
    shutil.rmtree(place.run)
    place.call("train", "line.yaml", "--output", place.run, keywords, cwd=place.code)
    place.call("eval", place.run, "--episodes", "1")


SPELLINGS = ["{code}", "/{code}", "{code}/../code", "~/code", "$CODE", "${{CODE}}/."]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_override_imports_nothing_beside_the_config_of_a_stranger(
    place: Place, spelling: str, is_own: bool
) -> None:
    """Only the directory is a stranger's if the run has been unpacked."""
    folder = place.root / "theirs"
    shutil.move(place.run, folder / "run")
    place.run = folder / "run"
    place.env |= {"HOME": str(place.code.parent), "CODE": str(place.code)}
    place.change(sources={}, import_paths=[])
    place.change_config("task", env_id="CartPole-v1")
    text = spelling.format(code=place.code)
    for path in (place.run / "checkpoints").glob("*.h5"):
        old = checkpoint.load(path)
        data = {**json.loads(old.config_text), "directory": text}
        checkpoint.save(path, dataclasses.replace(old, config_text=json.dumps(data)))
    place.forget()
    place.open_to_all()
    if not is_own:
        folder.chmod(0o777)
    program = f"""
import pathlib
from hpc_es.commands.policies import with_overrides
from hpc_es.trained.stored import read_evaluated
source = read_evaluated(pathlib.Path({str(place.run)!r}), None, False)
with_overrides(source, ["task.max_episode_steps=3"])
import lines
lines.helper.ran("imported")
"""
    shutil.rmtree(place.ran)
    place.ran.mkdir()
    done = python(["-c", program], cwd=place.root / "empty", env=place.env)
    assert done.status and not [*place.ran.iterdir()], str(done)
    assert "lines" in done.stderr.splitlines()[-1]


def test_texts_with_many_modules_are_refused_in_seconds(place: Place) -> None:
    """Each would be looked for in all directories of the search path."""
    texts = {f"k{number}": f"module{number}:x" for number in range(90_000)}
    place.change_config("task", env_kwargs=texts)
    place.change(sources={}, import_paths=[])
    done = place.call("eval", place.run, status=2)
    assert "more than 1,000 texts" in done.stderr and done.seconds < 20


@pytest.mark.parametrize(("number", "text"), [(900, "or give --trust"), (1001, "more than 1,000")])
def test_texts_that_name_one_library_are_looked_at_in_seconds(
    number: int, text: str, place: Place
) -> None:
    """The library was read and hashed for each of them."""
    names = {f"k{index}": f"numpy.a{index}:x" for index in range(number)}
    place.change_config("task", env_kwargs=names)
    place.change(sources={}, import_paths=[])
    done = place.call("eval", place.run, status=2)
    assert text in done.stderr and done.seconds < 20
