"""The usual cases of the steps of a queue of events, in all kinds of states; see `usual`."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis
from hypothesis import strategies as st

from apressure.connection.sender import script
from apressure.events.engine.keys import EventKeys
from tests.property.usual import FAR, UsualCase, answer_of, mostly

KEYS = EventKeys("jobs")
NAMES = [key.decode() for key in KEYS.for_script("series")]
WORDS = [name.rpartition("}")[2].lstrip(":").partition(":")[0] or "unclaimed" for name in NAMES]
LOCKS = {KEYS.lock(one).decode(): one.decode() for one in (b"a", b"b", b"c")}
HOUR = 3_600_000

RATE = {"count": "5", "per": "9000"}
SPENT = {**RATE, "next": f"{FAR}.000"}
CONTROLS: tuple[Any, ...] = (
    {"paused": "1:somebody"}, RATE, {**RATE, "burst": "5", "next": "1.000"}, SPENT, {**SPENT, "burst": "1"},
    {**RATE, "next": "x"}, {"concurrency": "1"}, {"concurrency": "2"}, {**RATE, "concurrency": "2"},
    {"held": str(FAR), "held_for": str(HOUR)}, {"held": str(FAR), "held_for": "5"}, {"held": "1", "held_for": "5"},
    {"paused": "1:somebody", "concurrency": "9"}, {"count": "x"}, {"concurrency": "-1"}, {"held": ""}, ["x"], "x",
)  # fmt: skip
"""What CONTROL may have: a pause, limits that keep events or do not, and what another program has damaged."""

WATCHED: list[dict[str, Any]] = [
    {"id": "here", "until": FAR}, {"id": "here", "until": 1}, {"id": "here", "until": "x"},
    {"id": "here", "until": 10**14}, {"id": "here", "until": FAR, "others": 1}, {"until": FAR},
]  # fmt: skip
"""What WATCH may have where no other client watches."""

# For each key what is in it; A pair is a text and its time to live in milliseconds.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "unclaimed": st.sampled_from([["b", "a"], ["a"], None]) | mostly(["c", "b", "a"], None, ["a", "b", "a"], "x"),
    "claimed": st.sampled_from([None, ["c"], ["c", "b"]]) | mostly(["c"], ["c", "c"], "x"),
    "items": st.just({"a": "1", "b": "22", "c": ""}) | mostly({"a": "1", "c": "3"}, None, {"x": "y"}, "x"),
    "consumers": mostly(None, {"someone": 1}),
    "bound": st.sampled_from([None, "0", "5"]) | mostly("3", "2", "05", "-1", "x", "", "9" * 14, ["1"]),
    "closed": mostly(None, ["0", "0"], "x"),
    "expiry": st.sampled_from([None, {"c": FAR}, {"c": FAR, "b": FAR}]) | mostly({"c": FAR}, {"c": 1}, {"x": FAR}, "x"),
    "attempts": mostly(None, {"a": "1"}, {"b": "2"}, {"b": "2"}, {"x": "z"}, "x"),
    "dead": mostly(None, ["1:xx"], "x"),
    "turns": mostly(None, ["1"], "x"),
    "watch": mostly(None, {"id": "there", "until": FAR}, {"id": "here", "others": FAR}, {"id": "here"}, *WATCHED, "x"),
    "room": mostly(None, ["1"], "x"),
    "putters": mostly(None, "1"),
    "scan": st.sampled_from([None, ("0", 10 * HOUR)]) | mostly(("0", 5_000), "0", ("x", 10 * HOUR)),
    "end": mostly(None, ["1"]),
    "control": mostly(None, *CONTROLS),
    "resumed": mostly(None, ["1"]),
    "errors": mostly(None, {"a": "1:failed"}, "x"),
    "delayed": st.sampled_from([None, {"d": FAR}]) | mostly(None, {"d": 1}, {"a": 1}, {"a": 1, "d": FAR}, "x"),
    "later": st.sampled_from([None, {"d": "4"}]) | mostly(None, {"d": "4"}, {"d": "4", "a": "5"}, "x"),
    "expires": mostly(None, {"d": f"{FAR}:4"}, {"c": f"{FAR}:4"}, {"c": "1:"}, "x"),
    "expired": mostly(None, {"count": "3"}, "x"),
    "keyed": mostly(None, {"ia": "wk"}, {"ic": "ak", "kk": "1:c"}, {"s": "1000000000005"}, "x"),
    "lines": mostly(None, {"1:k1000000000001z": 0}, "x"),
    "ring": mostly(None, {"k": 1000000000001}, "x"),
    "op": st.sampled_from([None, "6:k", "6:1:a"])
    | mostly("6:", "7:k", "7:1:a", "8:1", ":", "x", "9" * 14 + ":", ["x"]),
}  # fmt: skip
locks = st.fixed_dictionaries(
    {"a": mostly(None, "theirs"), "b": mostly(None, "theirs", "mine"), "c": mostly("mine", None, "theirs", "")}
)
states = st.tuples(st.fixed_dictionaries({word: VALUES[word] for word in WORDS}), locks)
ids = mostly("new", "a", "c", "d", "")
ARGUMENTS: dict[str, st.SearchStrategy[list[Any]]] = {
    "push": st.tuples(
        st.just(7), mostly(0, 1), st.sampled_from([0, 1]), mostly(0, 1, 2), mostly(0, 1), ids,
        st.sampled_from(["", "x"]),
    ).map(list) | st.just([7, 0, 0, 0, 0, "new", "x", "newer", "y"]),
    "pop": st.tuples(
        st.just(7), mostly(0, 1, 2, 2), mostly(1, 2), st.sampled_from([HOUR, 0]), st.just("mine"),
        st.sampled_from(["", "here"]), st.sampled_from([0, 1]), mostly(0, 1), st.sampled_from(["", 0]), mostly(0, 1),
    ).map(list),
    "settle": st.tuples(
        st.just(7), mostly(0, 1), mostly("ack", "nack", "unseen", "fail"), st.sampled_from([0, 1]),
        mostly("c", "a", "b", "new"), st.sampled_from(["", "mine"]),
    ).map(list) | st.sampled_from([[7, 0, "ack", 1, "c", "", "b", ""], [7, 0, "fail", 0, "c", "", "failed"]])
    | st.sampled_from([[7, 0, "later", 0, "c", "mine", "failed", "500"], [7, 0, "later", 0, "c", "", "", f"@{FAR}"]]),
}  # fmt: skip

READ = """
local found = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local read = {list = {'LRANGE', key, 0, -1}, hash = {'HGETALL', key}, zset = {'ZRANGE', key, 0, -1, 'WITHSCORES'}}
  found[i] = {key, redis.call(unpack(read[kind] or {'GET', key})), redis.call('PTTL', key) > 0}
end
return found"""


def write(pipe: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    values, held = state
    pipe.flushdb()
    for name, word in zip(NAMES, WORDS, strict=True):
        value = values[word]
        if isinstance(value, list):
            pipe.rpush(name, *value)
        elif isinstance(value, dict) and word in ("expiry", "consumers", "delayed", "lines", "ring"):
            pipe.zadd(name, value)
        elif isinstance(value, dict):
            pipe.hset(name, mapping=value)
        elif isinstance(value, tuple):
            pipe.set(name, value[0], px=value[1])
        elif value is not None:
            pipe.set(name, value)
    for name, one in LOCKS.items():
        if held[one] is not None:
            pipe.set(name, held[one], px=HOUR)


def settled(value: Any) -> Any:
    """Replace times that depend on when the step ran."""
    if isinstance(value, list):
        return [settled(one) for one in value]
    if isinstance(value, bytes):
        return re.sub(rb"1\d{12}(\.\d+)?", lambda time: time[0] if time[0] == b"%d" % FAR else b"about now", value)
    return value


def run(db: redis.Redis, source: str, state: Any, arguments: list[Any]) -> tuple[Any, dict[str, Any]]:
    pipe = db.pipeline(transaction=False)
    write(pipe, state)
    answer, found = answer_of(pipe, source, NAMES, arguments, READ)
    waits = (b"empty", b"watch", b"turn", b"draining", b"limited", b"paused")
    if isinstance(answer, list) and len(answer) == 2 and answer[1][0] in waits:
        answer[1][1] = round(answer[1][1], -3)  # milliseconds
        answer[1][3:] = [one > 0 for one in answer[1][3:]]
    return answer, {key.decode(): (settled(value), lives) for key, value, lives in found}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_usual_case_does_what_its_step_does(url: str, name: str) -> None:
    UsualCase(script("apressure.events.engine", name), run).in_any(url, states, ARGUMENTS[name], examples=500)


USUAL: dict[str, Any] = {
    **dict.fromkeys(WORDS), "unclaimed": ["b", "a"], "claimed": ["c"], "items": {"a": "1", "b": "22", "c": ""},
    "bound": "5", "expiry": {"c": FAR}, "scan": ("0", 10 * HOUR), "op": "6:k",
}  # fmt: skip
HELD = {"a": None, "b": None, "c": "mine"}
CALLS: dict[str, list[Any]] = {
    "push": [7, 0, 0, 0, 0, "new", "x"],
    "pop": [7, 0, 1, HOUR, "mine", "", 0, 0, "", 0],
    "pop of nothing": [7, 0, 1, HOUR, "mine", "here", 0, 0, "", 0],
    "settle": [7, 0, "ack", 1, "c", "mine"],
}
EMPTY: dict[str, Any] = {**USUAL, "unclaimed": None}
CALM: dict[str, Any] = {**EMPTY, "claimed": None, "items": None, "expiry": None, "scan": None}
OTHERS: dict[str, dict[int, tuple[Any, ...]]] = {
    "push": {1: (1,), 2: (1,), 3: (1, 2), 4: (1,), 5: ("a", "c", "")},
    "pop": {1: (1,), 2: (2,), 3: (0,), 5: ("here",), 6: (1,), 7: (1,), 8: (0,), 9: (1,)},
    "pop of nothing": {1: (1, 2), 2: (2,), 3: (0,), 5: ("", "there"), 6: (1,), 7: (1,), 8: (0,), 9: (1,)},
    "settle": {1: (1,), 2: ("nack", "unseen"), 3: (0,), 4: ("a", "b", "new"), 5: ("", "theirs")},
}
LATER: dict[str, Any] = {**USUAL, "delayed": {"d": FAR, "e": FAR}, "later": {"d": "4", "e": "5"}}
TWO: dict[str, Any] = {**USUAL, "claimed": ["c", "b"]}
MORE: dict[str, list[tuple[dict[str, Any], list[Any]]]] = {
    "push": [({**USUAL, "bound": None}, [7, 0, 0, 0, 1, "new", "x"]),
             ({**USUAL, "bound": "2"}, [7, 0, 0, 1, 0, "new", "x"]),
             (USUAL, [7, 0, 0, 0, 0, "new", "x", "newer", "y"]),
             (LATER, CALLS["push"]), ({**LATER, "bound": "4"}, CALLS["push"]), (LATER, [7, 0, 0, 0, 0, "d", "x"])],
    "pop": [*(({**USUAL, "watch": watch}, [7, behind, 1, HOUR, "mine", "here", 0, 0, "", 0])
              for watch in ({"id": "here"}, *WATCHED) for behind in (0, 2)),
            *(({**USUAL, "unclaimed": ["a"], "consumers": some}, [7, 0, 2, HOUR, "mine", "", 0, 0, "", share])
              for some in (None, {"someone": 1, "other": 2}, "x") for share in (0, 1)),
            (USUAL, [7, 0, 2, HOUR, "mine", "", 0, 0, "", 1]),
            ({**USUAL, "bound": None}, [7, 0, 1, HOUR, "mine", "", 0, 1, "", 0]), (LATER, CALLS["pop"]),
            (USUAL, [7, 0, 1, 0, "mine", "", 0, 0, "", 0]), (LATER, [7, 0, 1, 0, "mine", "here", 0, 0, "", 0])],
    "pop of nothing": [*(({**state, "watch": watch}, [7, behind, most, lease, "mine", place, 0, 0, "", 1])
                         for state in (EMPTY, CALM, {**CALM, "bound": None})
                         for watch in (None, {"id": "here"}, {"id": "there", "until": FAR, "others": FAR}, *WATCHED)
                         for behind in (0, 2) for most in (1, 2) for lease in (HOUR, 0) for place in ("", "here")),
                       ({**CALM, "bound": None}, [7, 0, 1, HOUR, "mine", "here", 0, 1, "", 0]),
                       ({**CALM, "consumers": "x"}, [7, 0, 2, HOUR, "mine", "here", 0, 0, "", 1]),
                       *(({**TWO, "unclaimed": some, "expiry": index, "scan": scan}, CALLS["pop of nothing"])
                         for some in (None, ["a"]) for index in ({"c": FAR, "b": FAR}, {"c": FAR}, {"c": FAR, "b": 1})
                         for scan in (None, "0", ("0", 10 * HOUR)))],
    "settle": [(LATER, CALLS["settle"]),
               ({**TWO, "expiry": {"c": FAR, "b": 1}}, CALLS["settle"]),
               ({**TWO, "expiry": {"b": FAR}, "scan": ("0", 5_000)}, CALLS["settle"]),
               ({**TWO, "expiry": {"c": FAR}, "scan": ("0", 5_000)}, CALLS["settle"]),
               (TWO, [7, 0, "ack", 1, "c", "mine", "b", ""])],
}  # fmt: skip
NUMBERS = (None, "", "0", "05", "-1", "1", "2", "3", "+5", "x", " 5", "5.0", "1e3", "9" * 13, "9" * 14, "5\n", "5\x005")
CHANGES: dict[str, tuple[Any, ...]] = {
    "unclaimed": (None, ["a"], ["a"] * 2, ["x"], ["c"], ["b"] * 4 + ["a"], ["b"] * 5 + ["a"], "x"),
    "claimed": (None, ["c", "b"], ["b"], ["c"] * 2, "x"),
    "items": (None, {"a": "1"}, {"new": "x"}, "x"),
    "consumers": ({"someone": 1}, "x"),
    "bound": (*NUMBERS, ["1"]),
    "closed": (["0", "0"], "x"),
    "expiry": (None, {"c": 1}, {"x": FAR}, {"c": FAR, "x": 1}, "x"),
    "attempts": ({"a": "1"}, {"a": "x"}, {"b": "1"}, "x"),
    "dead": (["1:xx"], "x"),
    "turns": (["1"], "x"),
    "watch": ({"id": "there", "until": FAR, "others": FAR}, "x"),
    "room": (["1"], "x"),
    "putters": ("1", ["x"]),
    "scan": (None, "0", ("0", 5_000), ("x", 5_000), ["x"]),
    "end": (["1"], "x"),
    "control": CONTROLS,
    "resumed": (["1"], "x"),
    "errors": ({"a": "1:failed"}, "x"),
    "delayed": ({"d": FAR}, {"d": 1}, "x"),
    "later": ({"d": "4"}, "x"),
    "expires": ({"c": f"{FAR}:4"}, {"a": f"{FAR}:4"}, "x"),
    "expired": ({"count": "3"}, "x"),
    "keyed": ({"ia": "wk"}, {"ic": "ak", "kk": "1:c"}, {"inew": "wk"}, {"s": "1000000000005"}, "x"),
    "lines": ({"1:k1000000000001z": 0}, "x"),
    "ring": ({"k": 1000000000001}, "x"),
    "op": (None, "", ":", "x", "7:k", "7:", "7:1:a", "8:k", "6:", "6", "10:k", "9" * 14 + ":k", ["x"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_all_as_usual_but_for_one_thing(url: str, name: str) -> None:
    call, usual = CALLS[name], EMPTY if name == "pop of nothing" else USUAL
    cases: list[Any] = [((usual, HELD), call)]
    cases += [(({**usual, word: value}, HELD), call) for word in WORDS for value in CHANGES[word]]
    cases += [((usual, {**HELD, one: to}), call) for one in HELD for to in (None, "theirs", "mine", "")]
    for place, values in OTHERS[name].items():
        cases += [((usual, HELD), [*call[:place], one, *call[place + 1 :]]) for one in values]
    cases += [((state, HELD), arguments) for state, arguments in MORE[name]]
    taken = UsualCase(script("apressure.events.engine", name.partition(" ")[0]), run).in_each(url, cases)
    assert taken[0]
    assert sum(taken) > 5
