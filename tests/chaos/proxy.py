"""A bad line to the server: it cuts connections, loses replies, delivers them twice, falls silent, and is slow."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator
from urllib.parse import urlparse

from tests.relay import Line


@dataclasses.dataclass
class Trouble:
    """How likely it is, for each portion of bytes, that …

    Attributes:
        cut: the connection is cut before a request gets through.
        lose: it is cut instead of delivering a reply: the server has done what nobody hears of.
        silence: the reply is swallowed, and the connection stays open, without a word.
        twice: the reply is delivered twice, so that all that follow would be taken for the wrong request's.
        stall: it takes as long as `stalled` says.
        delay: Seconds that a portion takes at most.
        stalled: Seconds of a stall; more than a client waits for a reply.
    """

    cut: float = 0.0
    lose: float = 0.0
    silence: float = 0.0
    twice: float = 0.0
    stall: float = 0.0
    delay: float = 0.0
    stalled: float = 0.0


class Proxy(Line):
    """Passes bytes on, as badly as `trouble` says; to begin with, well.

    Attributes:
        url: Where clients connect to.
        cuts: How often one of the things that `Trouble` names was done, other than a delay.
    """

    def __init__(self, target: str, rng: random.Random) -> None:
        super().__init__()
        self._target = urlparse(target)
        self._rng = rng
        self.trouble = Trouble()
        self.url = ""
        self.cuts = 0

    def _where(self) -> tuple[str, int]:
        return self._target.hostname or "", self._target.port or 0

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, both: tuple[asyncio.StreamWriter, ...],
        request: bool,
    ) -> None:  # fmt: skip
        silent = False
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                trouble = self.trouble
                if self._rng.random() < trouble.stall:
                    self.cuts += 1
                    await asyncio.sleep(trouble.stalled)
                elif trouble.delay:
                    await asyncio.sleep(self._rng.uniform(0, trouble.delay))
                if self._rng.random() < (trouble.cut if request else trouble.lose):
                    self.cuts += 1
                    break
                if not request and not silent and self._rng.random() < trouble.silence:
                    self.cuts += 1
                    silent = True
                if silent:
                    continue
                sink.write(data)
                if not request and self._rng.random() < trouble.twice:
                    self.cuts += 1
                    if self._rng.random() < 0.5:
                        await asyncio.sleep(0)  # as a segment of its own, rather than with the first
                    sink.write(data)
        self.abort(both)

    def cut_all(self) -> None:
        """Cut every connection."""
        self.cuts += len(self._open) // 2
        self.abort(tuple(self._open))


@contextlib.asynccontextmanager
async def proxy(target: str, rng: random.Random) -> AsyncIterator[Proxy]:
    """A proxy in front of the server at `target`, on a port of its own."""
    made = Proxy(target, rng)
    server = await made.listen()
    made.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    try:
        yield made
    finally:
        made.cut_all()
        await made.end(server)
