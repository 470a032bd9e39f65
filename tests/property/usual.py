"""Holds the scripts for usual cases (lua/usual/) against the steps that they stand for.

A step is run twice on the same state, with its usual case in front and without. The answers must be the same, and so
must be what is in the keys afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import redis
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from apressure.connection.wire.script import Script

FAR = int(time.time() * 1000) + 3_600_000

Run = Callable[[redis.Redis, str, Any, list[Any]], tuple[Any, dict[str, Any]]]
"""Writes a state, and runs a script with arguments; returns its answer, and what is in the keys afterwards."""


NOTHING = "return 1"
"""A script that changes nothing."""


def mostly(usual: Any, *unusual: Any) -> st.SearchStrategy[Any]:
    """Nine times of ten the same: that many things have to be so that a case is a usual one.

    That is one draw, since a state has dozens of these, and to draw it took longer than to run steps on it.
    """
    return st.sampled_from([usual] * (9 * len(unusual)) + [*unusual])


def answer_of(pipe: Any, source: str, names: Sequence[str], arguments: list[Any], look: str) -> tuple[Any, Any]:
    """Write what is in the pipeline, run a script, and run another one that looks; in one request, for speed.

    Returns the answers of the two. An error of the script is its text, without the place in the script.
    """
    pipe.evalsha(_name(source), len(names), *names, *arguments, "tag")
    pipe.eval(look, 0)
    *written, answer, found = pipe.execute(raise_on_error=False)
    for one in (*written, found):
        if isinstance(one, Exception):
            raise one
    if isinstance(answer, redis.ResponseError):
        return re.sub(r"user_script:\d+|script: \w+", "", str(answer)), found
    return answer, found


def _name(source: str) -> str:
    """The name by which a server knows a script."""
    return hashlib.sha1(source.encode()).hexdigest()


class UsualCase:
    """A script that has a usual case."""

    def __init__(self, script: Script, run: Run) -> None:
        self._run = run
        # What is published shows in a list, too.
        self._with_it = script.source.decode().replace("call('PUBLISH', ", "call('RPUSH', 'published ' .. ")
        self._without = self._with_it.replace("answer = usual()\n", "", 1)
        self._alone = self._without.replace("answer = step()", "answer = usual()", 1)
        assert len({self._with_it, self._without, self._alone}) == 3

    def is_like_its_step(self, db: redis.Redis, state: Any, arguments: list[Any]) -> bool:
        """Check that it does what its step does; returns whether this is its case. If not, it has written nothing."""
        expected, found = (self._of(db, source, state, arguments) for source in (self._without, self._with_it))
        assert found == expected, (state, arguments)
        answer, after = self._run(db, self._alone, state, arguments)
        if answer != [b"tag"]:
            return True
        assert after == self._run(db, NOTHING, state, arguments)[1]
        return False

    def _of(self, db: redis.Redis, source: str, state: Any, arguments: list[Any]) -> tuple[Any, dict[str, Any]]:
        answer, keys = self._run(db, source, state, arguments)
        if isinstance(answer, str):  # a step that fails may have told somebody, which does no harm
            keys = {key: value for key, value in keys.items() if not key.startswith("published ")}
        return answer, keys

    def in_any(self, url: str, states: Any, arguments: Any, examples: int) -> None:
        """Check it in states that are drawn, with arguments that are drawn."""
        usual = 0

        @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(state=states, values=arguments)
        def check(state: Any, values: list[Any]) -> None:
            nonlocal usual
            taken = self.is_like_its_step(db, state, values)
            usual += taken
            event("usual" if taken else "not usual")

        with self._loaded(url) as db:
            check()
        assert usual > 20  # otherwise the states are not what they are meant to be

    def in_each(self, url: str, cases: Iterable[tuple[Any, list[Any]]]) -> list[bool]:
        """Check it in given states with given arguments; returns for each whether it is its case."""
        with self._loaded(url) as db:
            return [self.is_like_its_step(db, state, arguments) for state, arguments in cases]

    @contextlib.contextmanager
    def _loaded(self, url: str) -> Iterator[redis.Redis]:
        """Connect to a server that knows the scripts, and empty it afterwards."""
        with redis.Redis.from_url(url) as db:
            for source in (self._with_it, self._without, self._alone, NOTHING):
                assert db.script_load(source) == _name(source)
            yield db
            db.flushdb()
