"""Dead letters, read from the directory that they are in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from apressure import dead_letters
from apressure.dead_letters import DeadLetter
from apressure.exceptions import QueueDoesNotExistError, StorageError
from apressure.files.storage.directory import Directory, Letter
from apressure.files.storage.index import Index

T = TypeVar("T")


def oldest_first(dead: Directory) -> list[str]:
    """Open a directory, and return the names of its dead letters. Reasons of those that are gone are deleted."""
    dead.open(create=False)
    index = Index.of(dead.list().files, 0.0)
    dead.forget_orphans(index.orphans())
    return index.filenames(waiting=True, in_flight=False)


def read_letters(dead: Directory, limit: int | None, decode: Callable[[bytes], T]) -> list[DeadLetter[T]]:
    """Return the oldest dead letters, at most `limit`; none where the directory does not exist."""
    try:
        found = oldest_first(dead)
    except QueueDoesNotExistError:
        return []
    letters: list[DeadLetter[T]] = []
    for filename in found:
        if limit is not None and len(letters) >= limit:
            break
        letter = dead.letter(filename)
        if letter is not None:  # another client may have taken it
            letters.append(_shown(filename, letter, decode))
    return letters


def _shown(message_id: str, letter: Letter, decode: Callable[[bytes], T]) -> DeadLetter[T]:
    if letter.refused is not None:
        decode = _refusing(letter.refused)
    reason = letter.reason
    if reason is None or not reason.attempts:
        return DeadLetter(message_id, letter.data, None, None, None, decode)
    error = dead_letters.decode(reason.error, reason.attempt) if reason.attempt else None
    return DeadLetter(message_id, letter.data, reason.attempts, error, reason.when / 1e6, decode)


def _refusing(error: StorageError) -> Callable[[bytes], Any]:
    def refuse(data: bytes) -> Any:  # noqa: ARG001
        raise error

    return refuse
