"""What each verb of a queue looks like on every kind, the exceptions with their reasons, and what is still missing.

`GAPS` is the only table of expected failures: the tests that its rows name fail strictly. So if you fill a gap, the run
fails until you delete its row.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

import pytest

from apressure import AsyncQueue, EventQueue, FileQueue, TaskQueue

KEYWORD_ONLY: Final = inspect.Parameter.KEYWORD_ONLY

KINDS: Final[dict[str, type[Any]]] = {
    **{kind.__name__: kind for kind in (AsyncQueue, EventQueue, TaskQueue, FileQueue)},
    "RemoteEventQueue": EventQueue,
}
"""The kinds of queue. A `RemoteEventQueue` is an `EventQueue` on an okq server."""

VERBS: Final = {
    "put": "(item, timeout=None, *, deadline=None)",
    "put_nowait": "(item, *, deadline=None)",
    "put_many": "(items, timeout=None, *, deadline=None)",
    "get": "(timeout=None, *, deadline=None)",
    "get_nowait": "(*, deadline=None)",
    "get_many": "(max_items, timeout=None, *, deadline=None)",
    "receive": "(timeout=None, lease=None, *, deadline=None)",
    "receive_many": "(max_items, timeout=None, lease=None, *, deadline=None)",
    "consumer": "(ack='auto', delete=False, prefetch=None, lease=None, timeout=None, max_hold=None, shared=True)",
    "producer": "(close=True)",
    "__aiter__": "()",
    "create": "(bound=0, exist_ok=False, *, deadline=None)",
    "exists": "(*, deadline=None)",
    "qsize": "(*, deadline=None)",
    "bound": "(*, deadline=None)",
    "closed": "(*, deadline=None)",
    "paused": "(*, deadline=None)",
    "statistics": "(*, deadline=None)",
    "close": "(timeout=None, *, deadline=None)",
    "wait_closed": "(timeout=None, *, deadline=None)",
    "delete": "(timeout=None, *, deadline=None)",
    "purge": "(*, deadline=None)",
    "pause": "(*, deadline=None)",
    "resume": "(*, deadline=None)",
    "unblock": "()",
    "peek": "(*, deadline=None)",
    "peek_newest": "(*, deadline=None)",
    "dead_letters": "(limit=100, *, deadline=None)",
    "requeue": "(max_items=None, timeout=None, *, ids=None, deadline=None)",
}
"""The verbs and their arguments. Each that asks the server or the disk takes `deadline=`."""

ALSO: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("AsyncQueue", "put"): {"force": "the specification's put in extraordinary situations"},
    ("AsyncQueue", "put_many"): {"force": "as for put"},
    ("AsyncQueue", "receive"): {"max_hold": "its lease is renewed, so a program that is stuck must lose it"},
    ("AsyncQueue", "receive_many"): {"max_hold": "as for receive"},
    ("AsyncQueue", "producer"): {
        "exclusive": "only pressure has a producer role", "lease": "of the role", "timeout": "for the role",
        "max_hold": "of the role",
    },
    ("AsyncQueue", "dead_letters"): {"source": "dead letters are in a queue of their own"},
    ("AsyncQueue", "requeue"): {"source": "as for dead_letters"},
    ("EventQueue", "put"): {"id": "events have unique ids", "front": "okq's QRPUSH"},
    ("EventQueue", "put_nowait"): {"id": "as for put", "front": "as for put"},
    ("TaskQueue", "purge"): {
        "status": "tasks that have ended are kept, and can be purged, too", "older_than": "of such tasks",
        "on_progress": "there may be millions of them",
    },
    ("FileQueue", "dead_letters"): {"source": "dead letters are in a queue of their own"},
    ("FileQueue", "requeue"): {"source": "as for dead_letters"},
}  # fmt: skip
"""Arguments that only these kinds take, and why. They come behind the others."""

OTHER_DEFAULTS: Final = {
    ("AsyncQueue", "consumer"): ("shared=True", "shared=False", "its strict order is for one consumer at a time"),
}
"""Defaults that differ, and why."""

_GAPS: Final[tuple[tuple[str, str, str], ...]] = ()
GAPS: Final = {(kind, what): reason for kind, reason, names in _GAPS for what in names.split()}
"""What is missing of issue 27, by kind and verb, or by kind and the name of the test of `test_matrix` that fails."""


def shape(method: Any, without: Any = ()) -> str:
    """Return a method's arguments as in `VERBS`, without some of them."""
    kept = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in inspect.signature(method).parameters.values()
        if one.name not in without and one.name != "self"
    ]
    return str(inspect.Signature(kept))


def check_arguments(kind: type[Any], verb: str) -> None:
    """Assert that a kind of queue has a verb, with the arguments of all kinds, and its own behind them."""
    cell = kind.__name__, verb
    method = inspect.getattr_static(kind, verb, None)
    assert method is not None, f"{kind.__name__} has no {verb}"
    also = ALSO.get(cell, {})
    usual, here, _ = OTHER_DEFAULTS.get(cell, ("", "", ""))
    assert shape(method, also) == VERBS[verb].replace(usual, here)
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    assert [*also] == [name for name in names if name in also]
    positional = [name for name in names if inspect.signature(method).parameters[name].kind is not KEYWORD_ONLY]
    common = [name for name in positional if name not in also]
    assert positional[: len(common)] == common, "an argument of this kind changes what others mean"


def expect_gap(request: pytest.FixtureRequest, kind: str, what: str) -> None:
    """Expect this test to fail if the table says so."""
    if (reason := GAPS.get((kind, what))) is not None:
        request.applymarker(pytest.mark.xfail(strict=True, reason=f"issue 27: {reason}"))


def table() -> str:
    """Return the table of `docs/choose.md`: what each kind has, read from the classes."""
    columns = [("EventQueue, `okq://`" if name == "RemoteEventQueue" else f"`{name}`") for name in KINDS]
    lines = [f"| verb | {' | '.join(columns)} |", f"| --- |{' --- |' * len(KINDS)}"]
    for verb, arguments in VERBS.items():
        cells = []
        for name, kind in KINDS.items():
            method = inspect.getattr_static(kind, verb, None)
            if method is None:
                cells.append("no")
                continue
            theirs, ours = _names(shape(method)), _names(arguments)
            more = [f"`{argument}=`" for argument in theirs if argument not in ours]
            less = [f"no `{argument}=`" for argument in ours if argument not in theirs]
            _, default, _ = OTHER_DEFAULTS.get((name, verb), ("", "", ""))
            cells.append(", ".join(["yes", *filter(None, [default and f"`{default}`"]), *less]))
            cells[-1] += f", also {', '.join(more)}" if more else ""
        shown = "`async for item in queue`" if verb == "__aiter__" else f"`{verb}{_shown(arguments)}`"
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _names(arguments: str) -> list[str]:
    return [name for name in re.findall(r"(\w+)(?==|,|\))", re.sub(r"=('\w*'|\w+)", "=", arguments)) if name]


def _shown(arguments: str) -> str:
    """Arguments as the docs show them: `deadline=` is in each that asks the server or the disk."""
    return arguments.replace(", *, deadline=None", "").replace("*, deadline=None", "").replace(", deadline=None", "")
