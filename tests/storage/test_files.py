"""Files are replaced completely, also with several writers of one name."""

from pathlib import Path

from hpc_es.storage import files


def test_two_writers_of_one_file_use_different_temporary_files(tmp_path: Path) -> None:
    """As tasks of a job array that start in the same second and write the same config.yaml."""
    path = tmp_path / "config.yaml"

    def meanwhile(_: Path) -> None:
        files.replace(path, [b"other"])
        assert path.read_bytes() == b"other"

    files.replace(path, [b"mine"], meanwhile)
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]


def test_only_temporary_files_of_one_file_are_removed(tmp_path: Path) -> None:
    kept = {
        "status.json",
        ".status.json",
        ".other.12.tmp.json",
        "status.12.tmp.json",
        ".status.12.tmp",
    }
    for name in (*kept, files.temporary_name(tmp_path / "status.json").name):
        (tmp_path / name).touch()
    files.remove_leftovers(tmp_path / "status.json")
    assert {path.name for path in tmp_path.iterdir()} == kept
