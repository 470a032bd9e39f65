"""The usual cases of the steps of a queue of tasks, in all kinds of states; see `usual`."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import redis
from hypothesis import strategies as st

from apressure.connection.sender import script
from apressure.tasks.engine.keys import TaskKeys
from tests.property.usual import UsualCase, answer_of, mostly

KEYS = TaskKeys("jobs")
NAMES = [key.decode() for key in KEYS.for_script("series")]
NOW, FAR, LONG_AGO = f"{time.time():.0f}.5", "9999999999.5", "5.0"
OURS = {"status": "started", "node": "host_1", "token": "mine", "pid": "7", "attempts": "1", "updated": LONG_AGO}
RESERVED = {name: value for name, value in OURS.items() if name != "pid"} | {"status": "reserved"}
WAITS = {"status": "pending", "queue": "jobs", "parameters": "p", "created": LONG_AGO, "updated": LONG_AGO}
ENDED = {"status": "complete", "result": "x", "updated": NOW}
FAILED = {"status": "failed", "error": "x", "updated": NOW}

# What each key has: the first value is the usual one.
VALUES: dict[str, tuple[Any, ...]] = {
    "queues": ({"jobs": 1}, None, "x"),
    "pending": (["c", "b"], ["b"], None, ["b"] * 5, ["b", "c"], ["a", "b"], ["gone", "b"], "x"),
    "started": ({"host_1 7 a", "host_1 8 a"}, None, {"host_1 8 b"}, "x"),
    "listeners": ({"host_1"}, None, {"host_2"}, "x"),
    "complete": (["old"], None, ["old", "gone"], ["bad"], ["a"], "x"),
    "failed": (None, ["bad"], ["bad", "old"], ["gone"], "x"),
    "tasks": (["a", "old"], None, "x"),
    "leases": ({"a": 5}, None, {"b": 5}, "x"),
    "scheduled": (None, {"old": 5}, {"a": 5, "gone": 6, "new": 7}, {"later": 9999999999}, "x"),
    "bound": (None, "5", "2", "1", "0", "05", "-1", "x", "", "9" * 14, ["1"]),
    "closed": (None, "1", ["x"]),
    "control": (None, {"paused": "1"}, {"concurrency": "1"}, {"count": "1", "per": "60000", "next": "5.000"},
                {"held": "9999999999999", "held_for": "60000", "concurrency": "5"}, {"concurrency": "x"}, "x", ["x"]),
    "keyed": (None, {"ia": "ak", "kk": "1:a"}, {"inew": "wk"}, {"s": "1000000000005"}, "x"),
    "lines": (None, {"1:k1000000000001z": 0}, "x"),
    "ring": (None, {"k": 1000000000001}, "x"),
    "op": (None, "6:1", "6:", "7:1", "7:", "8:1", ":", "x", "9" * 14 + ":", ["x"]),
    "held": (["b", "a"], None, ["a", "b", "a"], ["b"], "x"),
    "a": (OURS, RESERVED, ENDED, None, {**OURS, "token": "theirs"}, {**OURS, "node": "host_2"},
          {**RESERVED, "reclaimed_node": "host_2"}, {**OURS, "reclaimed_node": "host_1"}, {**RESERVED, "pid": "7"},
          {**RESERVED, "reclaimed_node": "host_1"}, {**OURS, "pid": "8"},
          {name: value for name, value in OURS.items() if name != "pid"}, {"status": "pending"}, "x"),
    "b": (WAITS, {**WAITS, "attempts": "1", "token": "was", "node": "host_2", "returned": "was", "cost": "2"},
          {**WAITS, "attempts": "3"}, {**WAITS, "attempts": "x"}, {**WAITS, "attempts": ""},
          {**WAITS, "attempts": "9" * 14}, {**WAITS, "pid": "7"}, {**WAITS, "process_started": "5.00"},
          {**WAITS, "progress": "5"}, {**WAITS, "progress_message": "x"}, {**WAITS, "result": "x"},
          {**WAITS, "reclaimed_node": "host_2"}, {**WAITS, "max_attempts": "3"}, {**WAITS, "on_orphan": "fail"},
          {**WAITS, "watched": "host_1"}, {**WAITS, "expires": "5"}, {**WAITS, "expires": f"{FAR[:-2]}000"},
          {**WAITS, "key": "k"}, {**WAITS, "parameters": "p" * 1048576}, {**WAITS, "status": "scheduled"},
          {**WAITS, "status": "ours"}, OURS, ENDED, {"parameters": "p"}, None, "x"),
    "c": ({**WAITS, "parameters": "q", "more": "x"}, {**WAITS, "attempts": "2"}, {**WAITS, "result": "x"}, OURS, None,
          "x"),
    "old": (ENDED, {**ENDED, "updated": LONG_AGO}, {"status": "complete"}, {**ENDED, "updated": "nan"}, OURS,
            {"status": "scheduled", "queue": "jobs"}, None, "x"),
    "bad": (FAILED, {**FAILED, "updated": LONG_AGO}, {"status": "failed"}, {**FAILED, "updated": FAR}, ENDED,
            None, "x"),
}  # fmt: skip
WHERE: dict[str, str] = {
    "queues": NAMES[0], "pending": NAMES[1], "scheduled": NAMES[2], "started": NAMES[3], "listeners": NAMES[4],
    "complete": NAMES[5], "failed": NAMES[6], "tasks": NAMES[7], "leases": NAMES[8], "bound": NAMES[10],
    "closed": NAMES[11], "control": NAMES[12], "op": NAMES[13],
    "keyed": NAMES[20], "lines": NAMES[21], "ring": NAMES[22], "held": KEYS.reserved(b"host_1").decode(),
    **{task: f"blueque_task_{task}" for task in ("a", "b", "c", "old", "bad")},
}  # fmt: skip
USUAL = {word: values[0] for word, values in VALUES.items()}

ENQUEUE = [7, 0, 0, "new", "parameters", ""]
COMPLETE = [0, "86400.0", "complete", "a", "mine", "host_1", "done", 0]
START = [0, "86400.0", "start", "a", "mine", "host_1", "7", 1, "process_started", "5.00"]
RESERVE = [7, 0, 5, 60000, "mine", "host_1", 3, "retry", 0, ""]
UNLIMITED = [*RESERVE[:6], 0, *RESERVE[7:]]
AGAIN = {**WAITS, "attempts": "1", "max_attempts": "3", "node": "host_2", "returned": "was", "failure": "E\tx"}
CALLS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "enqueue": ("enqueue", ENQUEUE, {}),
    "complete": ("settle", COMPLETE, {}),
    "complete reserved": ("settle", COMPLETE, {"a": RESERVED}),
    "start": ("settle", START, {"a": RESERVED}),
    "reserve": ("reserve", RESERVE, {"leases": {"a": 9999999999999}}),
    "reserve without a limit": ("reserve", UNLIMITED, {"leases": {"a": 9999999999999}}),
    "reserve nothing": ("reserve", RESERVE, {"leases": {"a": 9999999999999}, "pending": None}),
    "reserve again": ("reserve", RESERVE, {"leases": {"a": 9999999999999}, "b": AGAIN}),
    "reserve again, or fail": (
        "reserve", [*RESERVE[:7], "fail", *RESERVE[8:]],
        {"leases": {"a": 9999999999999}, "b": {**AGAIN, "on_orphan": "fail"}},
    ),
}  # fmt: skip
ARGUMENTS: dict[str, dict[int, tuple[Any, ...]]] = {
    "enqueue": {1: (1,), 2: (1,), 3: ("a", ""), 5: (FAR, LONG_AGO, "+60000")},
    "complete": {0: (1,), 1: ("0.0",), 2: ("fail", "nack", "later:60000", "unseen", "progress"), 3: ("old", "gone"),
                 4: ("", "theirs"), 5: ("host_2",), 6: ("",)},
    "complete reserved": {2: ("fail", "nack"), 3: ("old", "gone"), 4: ("", "theirs"), 5: ("host_2",)},
    "reserve": {1: (1,), 2: (1, 0, 100, 101), 5: ("host_2",), 6: (1, 4), 7: ("fail",), 8: (1,), 9: (0, 1)},
    "reserve without a limit": {2: (1,), 7: ("fail",)},
    "reserve nothing": {1: (1,), 2: (1, 0, 100, 101), 5: ("host_2",), 6: (0,), 7: ("fail",), 8: (1,), 9: (0, 1)},
    "reserve again": {6: (0, 1, 4), 7: ("fail",)},
    "reserve again, or fail": {6: (0,), 7: ("retry",)},
    "start": {0: (1,), 2: ("progress",), 3: ("old", "gone"), 4: ("", "theirs"), 5: ("host_2",), 6: ("8",)},
}  # fmt: skip
MORE: dict[str, list[list[Any]]] = {
    "enqueue": [[*ENQUEUE, "newer", "x", ""]],
    "complete": [[*COMPLETE[:-1], 1, "field", "x"], [*COMPLETE, *COMPLETE[2:]]],
    "start": [[*START[:-3], 0], [*START, *COMPLETE[2:]]],
}

READ = """
local found = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local read = {
    list = {'LRANGE', key, 0, -1}, hash = {'HGETALL', key}, zset = {'ZRANGE', key, 0, -1, 'WITHSCORES'},
    set = {'SMEMBERS', key},
  }
  found[i] = {key, kind, redis.call(unpack(read[kind] or {'GET', key})), redis.call('PTTL', key) > 0}
end
return found"""


def write(pipe: Any, state: dict[str, Any]) -> None:
    pipe.flushdb()
    for word, value in state.items():
        key = WHERE[word]
        if isinstance(value, list):
            pipe.rpush(key, *value)
        elif isinstance(value, set):
            pipe.sadd(key, *value)
        elif isinstance(value, dict) and word in ("queues", "leases", "scheduled", "lines", "ring"):
            pipe.zadd(key, value)
        elif isinstance(value, dict):
            pipe.hset(key, mapping=value)
        elif value is not None:
            pipe.set(key, value)


def timeless(kind: bytes, value: Any) -> Any:
    """Replace the time of the step, and what is left until a time; hashes and sets have no order."""
    if isinstance(value, list):
        values = [timeless(b"list", one) for one in value]
        if kind == b"hash":
            return dict(zip(values[::2], values[1::2], strict=True))
        return set(values) if kind == b"set" else values
    if isinstance(value, bytes) and re.fullmatch(rb"1\d{9}\.\d{3,}|1[5-9]\d{11}(\.\d+)?", value):
        return b"now"
    return "left" if isinstance(value, int) and value > 1_000_000_000 else value


def run(db: redis.Redis, source: str, state: dict[str, Any], arguments: list[Any]) -> tuple[Any, dict[str, Any]]:
    pipe = db.pipeline(transaction=False)
    write(pipe, state)
    answer, found = answer_of(pipe, source, NAMES, arguments, READ)
    return timeless(b"list", answer), {
        key.decode(): (timeless(kind, value), lives) for key, kind, value, lives in found
    }


@pytest.mark.parametrize("call", CALLS)
def test_a_usual_case_does_what_its_step_does(url: str, call: str) -> None:
    name, arguments, of_this_call = CALLS[call]
    states = st.fixed_dictionaries(
        {word: mostly({**USUAL, **of_this_call}[word], *values) for word, values in VALUES.items()}
    )
    others = [mostly(one, *ARGUMENTS[call].get(place, (one,))) for place, one in enumerate(arguments)]
    drawn = st.tuples(*others).map(list) | st.sampled_from([arguments, *MORE.get(call, [])])
    UsualCase(script("apressure.tasks.engine", name), run).in_any(url, states, drawn, examples=150)


@pytest.mark.parametrize("call", CALLS)
def test_all_as_usual_but_for_one_thing(url: str, call: str) -> None:
    name, arguments, of_this_call = CALLS[call]
    usual = {**USUAL, **of_this_call}
    cases = [(usual, arguments)]
    cases += [({**usual, word: value}, arguments) for word, values in VALUES.items() for value in values]
    for place, values in ARGUMENTS[call].items():
        cases += [(usual, [*arguments[:place], one, *arguments[place + 1 :]]) for one in values]
    cases += [(usual, one) for one in MORE.get(call, [])]
    assert UsualCase(script("apressure.tasks.engine", name), run).in_each(url, cases)[0]
