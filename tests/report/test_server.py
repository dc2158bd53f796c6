"""The server of `hpc-es watch`: the version of its files,
and clients that do not know the word in its address.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from hpc_es.report.server import MOST_UNKNOWN, WatchServer, _Handler, version_of
from tests.helpers.time_limit import time_limit


def test_clients_without_the_word_do_not_keep_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of too many idle connections the oldest are ended;
    the client that waits for the page is not.
    """
    monkeypatch.setattr(_Handler, "timeout", 600.0)  # so that nobody is ended for silence
    asked, crowded = threading.Event(), threading.Event()

    def write(version: str) -> str:
        asked.set()
        assert crowded.wait(60)
        return "the page"

    with WatchServer(write, [tmp_path]) as server, contextlib.ExitStack() as open_ones:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        user = open_ones.enter_context(socket.create_connection(server.server_address))
        user.sendall(f"GET /{server.token}/ HTTP/1.0\r\n\r\n".encode())
        assert asked.wait(60)
        connect = partial(socket.create_connection, server.server_address)
        idle = [open_ones.enter_context(connect()) for _ in range(MOST_UNKNOWN + 20)]
        with time_limit(60):
            assert [client.recv(1) for client in idle[:20]] == [b""] * 20
            crowded.set()
            assert user.makefile("rb").read().endswith(b"the page")
            with urllib.request.urlopen(f"{server.url}version") as answer:
                assert answer.status == 200
        server.shutdown()


def test_folders_of_any_depth_do_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        folder = tmp_path
        for _ in range(1500):  # each level is a call of os.walk
            monkeypatch.chdir(folder)
            folder = Path("d")
            folder.mkdir()
        monkeypatch.chdir(tmp_path)
        (tmp_path / "run").mkdir()
        before = version_of([tmp_path])
        (tmp_path / "run" / "status.json").write_text("{}")
        assert version_of([tmp_path]) != before
    finally:  # pytest cannot remove them
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)
