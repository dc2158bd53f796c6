"""The server of `hpc-es watch`: a page on 127.0.0.1.

It is written again when files of the runs have changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from hpc_es.core.errors import READING, UserError, unreadable_reason

WATCHED = (
    "status.json",
    "metrics.jsonl",
    "trial.json",
    "trials.json",
    "failures.log",
    "result.json",
    "config.yaml",
)
DEEPEST = 50  # level of folders in which files are watched


def version_of(directories: Sequence[Path]) -> str:
    """Return a digest of the sizes and times of all files that a report reads."""
    digest = hashlib.sha256()
    for directory in directories:
        for folder, folders, names in os.walk(directory):
            is_deep = folder.count(os.sep) - str(directory).count(os.sep) >= DEEPEST
            folders[:] = (
                [] if is_deep else sorted(set(folders) - {"checkpoints", "locks", "journal"})
            )
            for name in sorted(set(names) & set(WATCHED)):
                try:
                    entry = Path(folder, name).stat()
                except OSError:  # replaced or removed just now
                    continue
                digest.update(
                    f"{folder}/{name} {entry.st_size} {entry.st_mtime_ns}\n".encode(
                        errors="surrogateescape"
                    )
                )
    return digest.hexdigest()[:16]


# The name localhost may mean ::1, where another user of the machine can listen at the same port.
ADDRESS = "127.0.0.1"
MOST_UNKNOWN = 64  # connections whose clients have not named the word


class WatchServer(ThreadingHTTPServer):
    """Serves the page at `url`, to clients on this machine only; all other paths are not found."""

    daemon_threads = True
    request_queue_size = 128  # connections that wait to be accepted

    def __init__(
        self, write: Callable[[str], str], directories: Sequence[Path], port: int = 0
    ) -> None:
        self.token = secrets.token_urlsafe(12)
        self._write, self._directories = write, directories
        self._lock, self._cached = Lock(), ("", b"")
        self._unknown: dict[socket.socket, None] = {}  # the oldest first
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"--port {port} cannot be used: {error}; 0 selects a free one"
            ) from error

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.token}/"

    def page(self) -> bytes:
        """Return the page, which is written again if files have changed.

        A UserError is its text.
        """
        with self._lock:
            version = version_of(self._directories)
            if version != self._cached[0]:
                self._cached = (version, self._write(version).encode())
            return self._cached[1]

    def version(self) -> bytes:
        """Return the version of the files."""
        return version_of(self._directories).encode()

    def begin(self, connection: socket.socket) -> None:
        """Add a connection; of too many whose clients have not named the word, the oldest is ended.

        Other users of the machine could otherwise hold all connections that a process may have.
        """
        self._unknown[connection] = None
        if len(unknown := [*self._unknown]) > MOST_UNKNOWN:
            self.know(unknown[0])
            with contextlib.suppress(OSError):  # the client has gone
                unknown[0].shutdown(socket.SHUT_RDWR)

    def know(self, connection: socket.socket) -> None:
        """Keep a connection whose client has named the word, or that ends."""
        self._unknown.pop(connection, None)

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep the terminal quiet: a client may leave at any time."""


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = 10.0  # seconds, of a client that sends nothing

    def setup(self) -> None:
        super().setup()
        self.server.begin(self.connection)

    def finish(self) -> None:
        self.server.know(self.connection)
        super().finish()

    def do_GET(self) -> None:
        root = f"/{self.server.token}/"
        if self.path.startswith(root):
            self.server.know(self.connection)
        try:
            if self.path == root:
                self._send(200, "text/html; charset=utf-8", self.server.page())
            elif self.path == f"{root}version":
                self._send(200, "text/plain; charset=utf-8", self.server.version())
            else:
                self._send(404, "text/plain; charset=utf-8", b"not found\n")
        except (UserError, *READING) as error:
            self._send(503, "text/plain; charset=utf-8", f"{unreadable_reason(error)}\n".encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the terminal quiet."""


def serve(write: Callable[[str], str], directories: Sequence[Path], port: int) -> None:
    """Serve the page until Ctrl-C; UserError if there is nothing to show or the port is in use."""
    with WatchServer(write, directories, port) as server:
        server.page()
        sys.stderr.write(f"{server.url}\nCtrl-C ends\n")
        sys.stderr.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.stderr.write("\n")
