"""What both ends of a move share: whether one step can write to two queues, and how much it may write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from apressure.connection.sender import Sender
from apressure.exceptions import ExactlyOnceError, LeaseLostError, PermissionDeniedError

MOST_RESULTS: Final = 100_000
"""The most results of one input, or batch: the server does nothing else while it puts them."""
MOST_BYTES: Final = 1 << 28
"""The most bytes of these results. A server ends a connection that sends 1 GiB."""

_NONCE_MS: Final = 60_000
"""Milliseconds after which the key that recognizes a server expires, if it is not deleted before."""


async def obstacle(here: Sender, there: Sender, slots: str) -> str:
    """Return why no single step can write to both queues; empty if one can.

    Args:
        here: The steps of the source.
        there: The steps of the destination.
        slots: What to say of queues in different slots of a cluster.

    Raises:
        PressureError: A server cannot be asked.
    """
    node = there.connection.node
    if here.connection.node.settings.durability != node.settings.durability:
        return "the two queues have different durability=; give both the same, or one client"
    try:
        node.server.node_of((*there.script_keys, *here.script_keys))
    except ValueError:
        return f"they are in different slots of the cluster; {slots}"
    try:
        same = await _same_server(here, there)
    except PermissionDeniedError as error:
        return f"one user needs the rights on the keys of both queues ({error})"
    return "" if same else "they are on different servers, or in different databases; put both into one"


async def _same_server(here: Sender, there: Sender) -> bool:
    """Return whether a key that one client writes is visible to the other. (Addresses have aliases.)"""
    probe = here.keys.operation(os.urandom(16).hex())  # nobody else uses it
    # `reads`: each of them may be carried out twice, so a reply that was lost is no reason to fail.
    while True:
        await here.connection.ask(b"SET", probe, b":", b"PX", _NONCE_MS, reads=True)
        found = bool(await there.connection.ask(b"EXISTS", probe, reads=True))
        # A replica that took over meanwhile may not have heard of the key, whose absence says nothing then.
        if await here.connection.ask(b"DEL", probe, reads=True) or found:
            return found


def impossible(source: Any, destination: Any, why: str) -> ExactlyOnceError:
    """Return the error for a pair of queues that no single step can write to."""
    there = getattr(destination, "name", destination)
    return ExactlyOnceError(
        f"exactly once is impossible from the queue {source.name!r} to {there!r}: {why}", name=source.name
    )


def other_kind(source: Any, destination: Any) -> ExactlyOnceError:
    """Return the error for a destination of another kind than the source."""
    kind = type(destination).__name__
    why = f"the destination is of class {kind}, and only two queues of one kind and server share a step"
    return impossible(source, destination, why)


def check_results(results: Sequence[bytes]) -> None:
    """Check the size of the results of one input.

    Raises:
        ValueError: They are too many, or too large.
    """
    if len(results) > MOST_RESULTS or sum(map(len, results)) > MOST_BYTES:
        raise ValueError(
            f"there are too many results of one input: at most {MOST_RESULTS:,} messages, or {MOST_BYTES:,} bytes, "
            "are put in one step"
        )


def too_many(name: str, bound: int) -> ValueError:
    """Return the error for results of one input that have no room in a queue, even when it is empty."""
    return ValueError(
        f"there are more results for one step than the queue {name!r} can hold: its bound is {bound} messages, and the "
        "results of one input are put together. Return fewer results, or create the queue with a larger bound"
    )


def nothing_put(name: str) -> LeaseLostError:
    """Return the error for deliveries that are no longer the mover's."""
    return LeaseLostError(
        f"deliveries of the queue {name!r} went back before their results were put: nothing was put",
        name=name,
        role="consumer",
    )
