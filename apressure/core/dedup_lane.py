"""The lane of puts with a dedup id, for every kind of queue."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from apressure.core.dedup import duplicate
from apressure.core.packed import unpack_all
from apressure.core.putting import P, PuttingLane
from apressure.core.waiting import Wait
from apressure.exceptions import DurabilityError


class Answer(NamedTuple):
    """What a step has done with messages that are put once.

    Attributes:
        letters: A letter for each one that was looked at: `k` put, `r` put in the place of another one, `d` a repeat,
            `e` its own id is in use.
        replaced: The ids of those others.
        refusal: Why the next one was not put, if that is neither: an error, or a wait.
    """

    letters: bytes
    replaced: Sequence[bytes] = ()
    refusal: Any = None

    @classmethod
    def read(cls, text: bytes, refusal: Any = None) -> Answer:
        """Read the answer of a script."""
        letters, _, replaced = text.partition(b" ")
        return cls(letters, unpack_all(replaced), refusal)


def has_put(text: bytes) -> bool:
    """Whether a step has put any message, by the answer of its script."""
    return bool(text.partition(b" ")[0].strip(b"de"))


def arguments(items: Sequence[Any]) -> list[Any]:
    """Return a script's arguments for messages, each given as its own ones and its `Dedup`."""
    own = itertools.chain.from_iterable(item[:-1] for item in items)
    return [*own, *itertools.chain.from_iterable(item[-1].arguments for item in items), len(items)]


class DedupLane(PuttingLane[P]):
    """A lane of messages that are put once: each item ends with its `Dedup`, and each entry has one item."""

    _most = 500  # for each, a step looks at some records of others, too
    _refuses = True

    def _count(self, answer: Any) -> int:
        return len(answer.letters) if isinstance(answer, Answer) else answer

    def _refusal(self, entry: P, answer: Answer, begin: int, end: int) -> Exception | None:
        letter = answer.letters[begin:end]
        return duplicate(self._steps.name, entry.items[0][-1].id) if letter == b"d" else None

    def _accept(self, answer: Answer) -> Wait | None:
        batch, replaced = self._batch, iter(answer.replaced)
        for (entry, _), letter in zip(batch, answer.letters, strict=False):
            if letter == ord("r"):
                entry.replaced = next(replaced)
        self._steps.counts.replaced_count += len(answer.replaced)
        wait = super()._accept(answer)
        if isinstance(answer.refusal, Exception):
            self._fail([entry for entry, _ in batch if entry in self._entries], answer.refusal)
            return None
        return answer.refusal if isinstance(answer.refusal, Wait) else wait

    def _fail(self, in_flight: Sequence[P], error: Exception) -> None:
        if isinstance(error, DurabilityError) and isinstance(answer := error.answer, Answer):
            put = []
            for place, (entry, sent) in enumerate(self._batch[: len(answer.letters)]):
                if (refusal := self._refusal(entry, answer, place, place + 1)) is None:
                    put.append((entry, sent))
                else:
                    self._remove(entry)
                    entry.fail(refusal)
            self._batch, error.answer = put, len(put)
        super()._fail(in_flight, error)
