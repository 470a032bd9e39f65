"""The usual cases of a pressure queue's steps, in all kinds of states; see `usual`."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, ItemsView, Iterator, Sequence
from typing import Any

import pytest
import redis
from hypothesis import strategies as st

from apressure.connection.wire.script import Script
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.sending import script
from tests.property.usual import FAR, UsualCase, answer_of, mostly

KEYS = Keys("__pressure__", "jobs")
NAMES = [key.decode() for key in (*KEYS.for_script("series"), *KEYS.line())]
DAY = 86_400_000
SOON = "in two seconds"


def rarely(*values: Any) -> st.SearchStrategy[Any]:
    """Mostly nothing, so that the usual case stays usual."""
    return st.sampled_from([None] * (19 * len(values)) + [*values])


tokens = mostly(["1"], None, ["1", "1"])
counter = mostly("5", None, "0", "05", "-3", "x", "", "9" * 18, "9" * 19, "9" * 21)
dead, alive, mine = (
    {"token": token, "uid": "another", "deadline": deadline, "duration": DAY}
    for token, deadline in (("theirs", 1), ("theirs", FAR), ("mine", FAR))
)
odd = [
    {**alive, "duration": 5000}, {**alive, "duration": "x"}, {**alive, "deadline": "x"}, {**alive, "deadline": "nan"},
    {**alive, "deadline": "1e18"}, {**alive, "deadline": "9" * 20}, {"token": "theirs", "uid": "me", "deadline": FAR},
    {"token": "theirs"}, {"deadline": FAR, "duration": DAY},
]  # fmt: skip
controls = st.fixed_dictionaries(
    {}, optional={
        "count": mostly("5", "0", "x", "200", "9" * 13), "per": mostly(str(DAY), "0", "", "1", "9" * 13),
        "burst": mostly("3", "0", "-1", "1"), "concurrency": mostly("3", "0", "1.5"),
        "next": mostly("1.000", f"{FAR}.500", "x", "nan", "1e18", "", "5"), "paused": rarely("1:another"),
        "held": rarely(str(FAR), "1", "x"), "held_for": rarely("1000", "x"),
    },
).map(lambda said: {name: value for name, value in said.items() if value is not None} or None)  # fmt: skip
values: list[st.SearchStrategy[Any]] = [
    st.lists(st.sampled_from(["", "a", "bb", "ccc"]), max_size=4),  # the messages
    st.sampled_from(["0", "3", "5000"]) | mostly("5", None, "-1", "07", "x", " 0", ""),
    *[mostly("me", None, "another")] * 2,
    *[tokens] * 2,
    *[counter] * 4,
    tokens,  # not_full
    mostly(None, ["0", "0"]),  # closed
    mostly(None, dead, alive, mine, *odd),
    mostly(None, dead, *[alive] * 9, *odd),
    *[mostly(None, ["1"])] * 2,  # claims
    *[mostly(None, "1", str(FAR))] * 2,
    mostly(None, ["in flight"]),
    mostly(None, {"1": "2:apart"}, {"1": "apart"}, {"x": "1:apart", "nan": "x:", "2": ""}),
    mostly(None, ["1:x"], ["x", "1:", ":", "-1:x", "inf:x"]),
    # control
    mostly(None, {"paused": "1:another"}, {"concurrency": "3"}, {"count": 5, "per": DAY}, {"count": "x"}, ["x"])
    | controls,
    rarely(dict.fromkeys(("a:1:0:0:due", "a:1:1:2:bb", "x"), 1.0).items(), "x")
    | mostly(None, {"a:1:0:0:later": FAR, "a:1:0:1:later": FAR + 1}.items()),
    rarely("1000000000", "x", ["x"]),  # popped
    rarely(["1"], "x"),  # sooner
    mostly(["1"], None, "x"),  # room
    st.sampled_from([None, "1:1", "6:2"]) | mostly("6:1", "7:3", "7:0", "8:1", ":", "x"),
]
states = st.tuples(*values)
puts = st.tuples(st.just("me"), st.just(7), mostly(0, 1), mostly(0, 1), mostly("", "mine"), mostly(0, 1)).flatmap(
    lambda head: st.lists(st.sampled_from(["", "x", "yy"]), min_size=1, max_size=4).map(lambda body: [*head, *body])
)
gets = st.tuples(st.just("me"), mostly(0, 1), mostly(1, 3), mostly("", 7), st.sampled_from(["", "here"])).map(list)
watches: list[Any] = [{"id": "there", "until": FAR}, {"id": "here", "others": FAR}, {"others": "1"}, {"x": "y"}, "x"]
line = [mostly(None, ["1"], "x"), mostly(None, {"id": "here"}, {"id": "here", "until": FAR}, *watches)]
receives = st.tuples(
    st.just("me"), mostly("mine", "late"), mostly(0, 1), mostly(0, 1), mostly(1, 2, 500), st.just(5000),
    mostly(4, 3, 5), mostly(0, 1, 2), st.just(7), mostly(0, 1, 2, 2), st.sampled_from([(), (2, 2, 3), (2, 3, 5)])
    | st.sampled_from([(), (2, 2, 3), (3, 3, 2), (1, 2, 3), (3, 4, 2), (4, 4, 1), (2, 2, 3, 3, 3, 2)]),
).map(lambda values: [*values[:-1], *values[-1]])  # fmt: skip
ours = {"token": "mine", "uid": "me", "since": 1, "deadline": FAR, "duration": DAY, "next": 4, "hold": 1, "step": 6}
values_received = [
    *values[:13],
    st.just({**ours, "hold": 0}) | mostly(ours, None, dead, alive, mine, {**ours, "next": 5}, {**ours, "step": 5}),
    *values[14:18],
    mostly(["dd", "ccc"], None, ["dd"], ["e", "dd", "ccc"]), *values[19:],
]  # fmt: skip
values_by_hand = [*values_received[:13], mostly(None, ours, {"x": "y"}, dead), *values_received[14:18],
                  mostly(None, ["dd"]), *values_received[19:]]  # fmt: skip
receives_by_hand = st.tuples(
    st.just("me"), mostly("mine", "late"), mostly(1, 0), mostly(0, 1), mostly(1, 2, 5, 500), st.just(5000),
    mostly(4, 1), mostly(0, 1, 2), mostly(7, 6), mostly(0, 1, 2), st.just(()) | mostly((), (2, 2, 3)),
).map(lambda values: [*values[:-1], *values[-1]])  # fmt: skip
by_hand = {name: value for name, value in ours.items() if name != "hold"}
values_settled_alone = [*values_received[:5], *[mostly(None, ["1"])], *values_received[6:13],
                        st.sampled_from([ours, by_hand]) | mostly(ours, None, dead, alive, {**ours, "next": 5}),
                        *values_received[14:]]  # fmt: skip
settles = st.tuples(
    mostly("mine", "late"), st.just(5000), mostly(0, 1), mostly(7, 6), mostly(0, 1), mostly(0, 2),
    st.sampled_from([(3, 2, 2, 3), (3, 2, 3, 5)])
    | mostly((3, 2, 2, 3), (3, 3, 3, 2), (3, 1, 2, 3), (3, 3, 4, 2), (6, 2, 2, 3, 3, 3, 2), (0,), (0, 2),
             (3, 2, 2, 3, 3)),
).map(lambda values: [*values[:-1], *values[-1]])  # fmt: skip
SHARED = {"token": "shared:1", "uid": "me", "since": 1, "deadline": FAR, "duration": DAY, "earliest": FAR, "next": 4,
          "hold": 1}  # fmt: skip


def member(ranges: str = "", deadline: int = FAR, sequence: int = 6, first: int = 3, count: int = 1) -> dict[str, Any]:
    """A lease that a member shares."""
    return {**SHARED, "member:mine": f"{deadline}:{DAY}:1:{sequence}:{first}:{count}:{ranges}:me"}


LEASES: tuple[dict[str, Any], ...] = (
    SHARED, {**member(), "token": "mine"}, {**member(), "member:theirs": f"{FAR}:{DAY}:1:1:1:1:1-1:another"},
    {**member(), "member:theirs": f"1:{DAY}:1:1:1:1:1-1:another", "earliest": 1}, {**member(), "member:mine": "x"},
    {**member(), "member:mine": f"{FAR}:{DAY}:1:6:{'9' * 14}:1::me"}, {**member(), "member:mine": "1:1:1:6:3:1:x:me"},
    member("3-3"), member("2-3"), member("1-3"), member("1-1 3-3"), member("1-1"), member("3-2"), member("3-"),
    member("1-300"), member(f"2-{'9' * 14}"), member(deadline=1), member(sequence=7), member(sequence=5),
    member(count=0),
    *({**member(), "next": number} for number in (3, 5, "04", "x", "", 10**12)),
    *({**member(), name: value} for name in ("deadline", "duration", "earliest") for value in (1, "x", "", "9" * 14)),
    {**member(), "earliest": FAR + 2 * DAY}, {**member(), "deadline": FAR + 2 * DAY},
    {name: value for name, value in member().items() if name != "earliest"},
)  # fmt: skip
WATCHES: tuple[Any, ...] = (
    {"id": "here", "until": SOON}, None, {"id": "here"}, {"id": "here", "until": FAR, "others": FAR},
    {"id": "here", "until": SOON, "others": SOON}, {"id": "there", "until": SOON}, {"id": "there", "others": SOON},
    {"id": "there", "until": SOON, "others": SOON}, {"id": "there", "until": "1", "others": SOON}, {"others": SOON},
    {"until": "x"}, {"others": "x"}, {"until": "9" * 14},
)  # fmt: skip
lines = [mostly(None, ["1"], ["1", "1"], "x"), mostly(*WATCHES, *watches)]
values_shared = [
    *values[:5], mostly(None, ["1"]), *values[6:13],
    st.sampled_from([member(), member("3-3"), member("2-3")]) | mostly(member(), *LEASES), *values[14:18],
    mostly(None, ["x"]),
    mostly(None, {"2": "1:dd", "3": "1:ccc"}), *values[20:], *lines,
]  # fmt: skip
shared_receives = st.tuples(
    st.just("me"), mostly("mine", "late"), mostly(1, 0, 2, 500), st.just(5000), mostly(7, 6, 5, 8), mostly(0, 2, 2, 1),
    mostly(0, 1, 2), mostly("here", ""), mostly(3, 4, 9),
    st.sampled_from([(0,), (0,), (2, 3, 3), (0, 3, 3, 3), (0, 2, 3, 5)]),
).map(lambda values: [*values[:-1], *values[-1]])  # fmt: skip
values_settled = [
    *values_shared[:13], mostly(member("2-3"), *LEASES), *values_shared[14:19],
    mostly({"2": "1:dd", "3": "1:ccc"}, {"2": "1:dd"}, {"3": "2:ccc"}, None), *values_shared[20:],
]  # fmt: skip
shared_settles = st.tuples(
    mostly("mine", "late"), st.just(5000), mostly(0, 1), mostly(7, 6), mostly(0, 1), mostly(0, 2), mostly("here", ""),
    st.sampled_from([(3, 2, 2, 2), (3, 2, 3, 5), (3, 3, 3, 3)])
    | mostly((3, 2, 2, 2), (3, 1, 2, 2), (3, 3, 4, 2), (6, 2, 2, 2, 3, 3, 3), (0, 2), (3, 2, 2, 2, 3),
             (3, 2, 2, 2, "3-")),
).map(lambda values: [*values[:-1], *values[-1]])  # fmt: skip
# For each step with a usual case: the states to try it in, and its arguments.
STEPS = {
    "put": (states, puts),
    "get": (st.tuples(*values, *line), gets),
    "receive": (st.tuples(*values_received), receives),
    "receive by hand": (st.tuples(*values_by_hand), receives_by_hand),
    "receive_shared": (st.tuples(*values_shared), shared_receives),
    "settle": (st.tuples(*values_settled_alone), settles),
    "settle_shared": (st.tuples(*values_settled), shared_settles),
}


def write(pipe: Any, state: tuple[Any, ...]) -> None:
    pipe.flushdb()
    for name, value in zip(NAMES, state, strict=False):
        if isinstance(value, ItemsView):
            pipe.zadd(name, dict(value))
        elif isinstance(value, list) and value:
            pipe.rpush(name, *value)
        elif isinstance(value, dict):
            soon = int(1000 * time.time()) + 2000
            pipe.hset(name, mapping={field: soon if one == SOON else one for field, one in value.items()})
        elif isinstance(value, str):
            pipe.set(name, value)


GIVEN = (b"1.000", b"%d.500" % FAR, b"x", b"nan", b"1e18", b"", b"5", b"1", b"%d" % FAR)
"""What the states have for `next` and `held` of the limits."""

READ = """
local found = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local commands = {list = {'LRANGE', key, 0, -1}, hash = {'HGETALL', key}, zset = {'ZRANGE', key, 0, -1}}
  local command = commands[kind] or {'GET', key}
  found[i] = {key, kind, redis.call(unpack(command)), redis.call('PTTL', key)}
end
return found"""


def understood(listing: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, kind, value, lives in listing:
        name = key.decode()
        found[name] = dict(zip(value[::2], value[1::2], strict=True)) if kind == b"hash" else value
        if name.endswith("claim_until") and found[name] not in (b"1", b"%d" % FAR):
            found[name] = "some time from now"
        for field in {b"since", b"deadline", b"earliest"} & set(found[name]) if name.endswith("_lease") else ():
            if found[name][field] not in (b"1", b"%d" % FAR):
                found[name][field] = "some time from now"
        if name.endswith("_lease") and kind == b"hash" and (record := found[name].get(b"member:mine", b"")):
            found[name][b"member:mine"] = re.sub(rb"^(?!%d:|1:)\d+" % FAR, b"some time from now", record)
        if name.endswith(":control") and kind == b"hash":
            for field in {b"next", b"held"} & set(found[name]):
                if found[name][field] not in GIVEN:
                    found[name][field] = "some time from now"
        if name.endswith(":watch") and kind == b"hash" and b"id" not in value and b"others" not in value:
            del found[name]  # nobody watches, until when ever
        elif name.endswith(":watch") and kind == b"hash":
            for field in {b"until", b"others"} & set(value):
                if found[name][field] not in (b"1", b"%d" % FAR):
                    found[name][field] = "some time from now"
        if kind == b"string" and ":op:" in name:
            found[name] = (found[name], lives > 0)
    return found


def run(db: redis.Redis, source: str, state: tuple[Any, ...], arguments: list[Any]) -> tuple[Any, dict[str, Any]]:
    pipe = db.pipeline(transaction=False)
    write(pipe, state)
    answer, found = answer_of(pipe, source, NAMES[: len(state)], arguments, READ)
    if isinstance(answer, list) and len(answer) == 2:
        told = answer[1]
        if told[0] == b"busy" and told[3] > 0:
            told[3] = "the rest of a lease"
        elif told[0] == b"turn":
            told[1] = "the rest of a watch"
        elif told[0] == b"limited" and told[2] > 0:
            told[2] = "the rest of an interval"
        elif told[0] in (b"watch", b"empty", b"draining") and len(told) > 2 and told[2] > 0:
            told[2] = "the rest of a delay"
        elif told[0] == b"ok" and isinstance(told[1], list):
            told[1] = [message for portion in told[1] for message in portion]
        if len(told) > 1 and isinstance(told[1], int) and told[1] > 1000:
            told[1] = "the rest of a lease"
    return answer, understood(found)


def script_of(step: str) -> Script:
    """The script of one of `STEPS`: the first word of its name."""
    return script(step.partition(" ")[0])


@pytest.mark.parametrize("name", STEPS)
def test_a_usual_case_does_what_its_step_does(url: str, name: str) -> None:
    UsualCase(script_of(name), run).in_any(url, *STEPS[name], examples=400)


USUAL: list[Any] = [["b", "a"], "5", "me", "me", ["1"], ["1"], "5", "5", "5", "5", ["1"], *[None] * 15, "6:1"]
USUAL_OF = {
    "put": USUAL,
    "get": [*USUAL, None, None],
    "receive": [*USUAL[:5], None, *USUAL[6:13], ours, *[None] * 4, ["dd", "ccc"], *USUAL[19:]],
    "receive by hand": USUAL,
    "receive_shared": [*USUAL[:5], None, *USUAL[6:13], member(), *USUAL[14:], None, {"id": "here", "until": SOON}],
    "settle": [*USUAL[:5], None, *USUAL[6:13], by_hand, *[None] * 4, ["dd", "ccc"], *USUAL[19:]],
    "settle_shared": [
        *USUAL[:5],
        None,
        *USUAL[6:13],
        member("2-3"),
        *[None] * 5,
        {"2": "1:dd", "3": "1:ccc"},
        *USUAL[20:],
        None,
        None,
    ],
}
_TAKING, _SETTLING = USUAL_OF["receive_shared"], USUAL_OF["settle_shared"]
_LATER = [*_TAKING[20:22], {"a:1:0:0:later": FAR}.items(), *_TAKING[23:25], ["1"], *_TAKING[26:]]
_HAND, _ALONE = USUAL_OF["receive by hand"], USUAL_OF["settle"]
MORE_USUAL: dict[str, list[list[Any]]] = {
    "get": [[[], *USUAL_OF["get"][1:]], [[], *USUAL_OF["get"][1:28], {"id": "here", "until": SOON}]],
    "receive": [[[], *USUAL_OF["receive"][1:]], [[], *USUAL_OF["receive"][1:13], by_hand, *USUAL_OF["receive"][14:]]],
    "receive by hand": [[[], *_HAND[1:]], [*_HAND[:20], *_LATER]],
    "settle": [
        [*_ALONE[:13], ours, *_ALONE[14:]],
        [*_ALONE[:20], *_LATER[:7]],
        [["a"] * 5, *_ALONE[1:10], None, *_ALONE[11:]],
    ],
    "receive_shared": [
        [[], *_TAKING[1:]],
        [["c", "b", "a"], *_TAKING[1:28], {"id": "here", "until": SOON, "others": SOON}],
        [["a"], *_TAKING[1:28], {"id": "there", "until": SOON, "others": SOON}],
        [*_TAKING[:20], *_LATER],
        [[], *_TAKING[1:20], *_LATER],
        [*_TAKING[:13], member("2-3"), *_TAKING[14:19], {"2": "1:dd", "3": "1:ccc"}, *_TAKING[20:]],
        [[], *_TAKING[1:13], member("2-3"), *_TAKING[14:19], {"2": "1:dd", "3": "1:ccc"}, *_TAKING[20:]],
    ],
    "settle_shared": [
        [
            *_SETTLING[:13],
            member("2-5"),
            *[None] * 5,
            {"2": "1:dd", "3": "1:ccc", "4": "1:d", "5": "1:e"},
            *_SETTLING[20:],
        ],
        [*_SETTLING[:20], *_LATER],
    ],
}
NUMBERS = (
    None,
    "",
    "0",
    "05",
    "-1",
    "-0",
    "+5",
    "x",
    " 5",
    "5 ",
    "5.0",
    "1e3",
    "9" * 18,
    "9" * 19,
    "9" * 30,
    "5\n",
    "5\x005",
)
CHANGES: dict[int, tuple[Any, ...]] = {
    0: ([], ["a"], ["a"] * 3, ["a"] * 4, ["a"] * 5, ["a"] * 6, [""]),
    1: (*NUMBERS, "1", "2", "3", "4"),
    2: (None, "", "other"), 3: (None, "", "other"),
    4: (None, ["1", "1"]), 5: (None, ["1", "1"]),
    **dict.fromkeys((6, 7, 8, 9), NUMBERS),
    10: (None, ["1", "1"]), 11: (["0", "0"],),
    12: (dead, alive, mine, *odd), 13: (dead, alive, mine, {"token": "mine"}, *odd,
                                        *({**ours, "next": n} for n in (3, 5, "04", "x", 10**12)),
                                        *({**ours, "step": n} for n in (5, 7, "06", "6.0", "x")),
                                        *({**ours, "deadline": n} for n in (1, f"{FAR}.5", "x", 10**14)),
                                        *({**ours, "duration": n} for n in (0, "x", "1.5")), *LEASES),
    14: (["1"],), 15: (["1"],), 16: ("1", str(FAR)), 17: ("1", str(FAR)),
    18: (["x"], ["e", "dd", "ccc"]), 19: ({"1": "2:x"}, {"1": "x", "x": "1"}, {"2": "1:dd"}, "x"), 20: (["1:x"], ["x"]),
    21: ({"paused": "1:other"}, {"count": "5"}, "x", ["x"]),
    22: ({"a:1:0:0:due": 1.0}.items(), {"a:1:0:3:due": 1.0}.items(), {"a:1:0:0:later": FAR}.items(), "x"),
    23: ("1000000000", "x"), 24: (["1"], "x"), 25: (["1"], "x"),
    26: (None, "", ":", "x", "7:0", "7:1", "8:1", "6:", "6:x", "10:1"),
    27: (["1"], "x"), 28: ({"id": "here"}, *watches, *WATCHES),
}  # fmt: skip
PUT, GET, GET_NOW = ["me", 7, 0, 0, "", 0, "x"], ["me", 0, 1, "", "here"], ["me", 0, 1, "", ""]
RECEIVE = ["me", "mine", 0, 0, 1, 5000, 4, 0, 7, 0, 2, 2, 3]
RECEIVE_SETTLING_ALL = [*RECEIVE[:10], 2, 3, 5]
BEHIND = [*RECEIVE[:9], 2]
BY_HAND = ["me", "mine", 1, 0, 1, 5000, 4, 0, 7, 0]
SETTLE, SETTLE_ALL = (["mine", 5000, 0, 7, 0, 0, 3, 2, last, size] for last, size in ((2, 3), (3, 5)))
RECEIVE_SHARED, SETTLE_SHARED = (
    ["me", "mine", 1, 5000, 7, 0, 0, "here", 3, 0],
    ["mine", 5000, 0, 7, 0, 0, "here", 3, 2, 2, 2],
)
SHARED_BEHIND = [*RECEIVE_SHARED[:5], 2, *RECEIVE_SHARED[6:]]
RECEIVE_SETTLING = [*RECEIVE_SHARED, 2, 3, 5]
SETTLE_BOTH, SETTLE_AGAIN = [*SETTLE_SHARED[:9], 3, 5], [*SETTLE_SHARED[:4], 1, *SETTLE_SHARED[5:]]
FULLY_VARIED = (
    PUT, GET, GET_NOW, RECEIVE, RECEIVE_SETTLING_ALL, BEHIND, BY_HAND, SETTLE, SETTLE_ALL, RECEIVE_SHARED,
    RECEIVE_SETTLING, SHARED_BEHIND, SETTLE_SHARED, SETTLE_BOTH, SETTLE_AGAIN,
)  # fmt: skip
ARGUMENTS = {
    "put": [PUT, ["me", 7, 1, *PUT[3:]], [*PUT[:3], 1, *PUT[4:]], [*PUT[:4], "mine", 0, "x"], [*PUT[:5], 1, "x"],
            [*PUT, "y"], [*PUT, *"yz"], [*PUT, *"yzzy"], [*PUT[:6], *["x"] * 1000], [*PUT[:6], *["x"] * 1001]],
    "get": [GET, GET_NOW, ["me", 1, 1, "", ""], ["me", 0, 2, "", "here"], ["me", 0, 1, 7, ""], ["", 0, 1, "", ""],
            [*GET[:4], ""]],
    "receive": [RECEIVE, [*RECEIVE[:10]], [*RECEIVE[:4], 2, *RECEIVE[5:]], RECEIVE_SETTLING_ALL,
                [*RECEIVE[:10], 2, 4, 5], [*RECEIVE[:10], 1, 2, 3], [*RECEIVE[:10], 3, 3, 2], [*RECEIVE, 3, 3, 2],
                ["me", "late", *RECEIVE[2:]], ["me", "mine", 1, *RECEIVE[3:]], ["me", "mine", 0, 1, *RECEIVE[4:]],
                [*RECEIVE[:6], 3, *RECEIVE[7:]], [*RECEIVE[:6], 5, *RECEIVE[7:]], [*RECEIVE[:7], 1, *RECEIVE[8:]],
                [*RECEIVE[:7], 2, *RECEIVE[8:]], [*RECEIVE[:9], 1, *RECEIVE[10:]], BEHIND],
    "receive by hand": [BY_HAND, ["", *BY_HAND[1:]], [*BY_HAND[:3], 1, *BY_HAND[4:]],
                        *([*BY_HAND[:4], most, *BY_HAND[5:]] for most in (0, 2, 5, 6, 500)),
                        [*BY_HAND[:6], 1, *BY_HAND[7:]], [*BY_HAND[:7], 1, *BY_HAND[8:]],
                        [*BY_HAND[:7], 3, *BY_HAND[8:]],
                        *([*BY_HAND[:8], number, 0] for number in (5, 6, 8)), [*BY_HAND[:9], 1], [*BY_HAND[:9], 2],
                        [*BY_HAND, 2, 2, 3]],
    "settle": [SETTLE, SETTLE_ALL, ["late", *SETTLE[1:]], [*SETTLE[:2], 1, *SETTLE[3:]],
               *([*SETTLE[:3], number, *SETTLE[4:]] for number in (6, 8)), [*SETTLE[:4], 1, *SETTLE[5:]],
               [*SETTLE[:3], 6, 1, *SETTLE[5:]], [*SETTLE[:6], 0, 2, 3, 2],
               *([*SETTLE[:5], unseen, *SETTLE[6:]] for unseen in (2, 3)), [*SETTLE[:6], 0], [*SETTLE[:6], 0, 2],
               *([*SETTLE[:6], 3, *some] for some in ((3, 3, 2), (1, 2, 3), (3, 4, 2), (4, 4, 1), (1, 3, 5))),
               [*SETTLE[:6], 6, 2, 2, 3, 3, 3, 2], [*SETTLE, 3], [*SETTLE, "3-"]],
    "receive_shared": [RECEIVE_SHARED, SHARED_BEHIND, RECEIVE_SETTLING, [*RECEIVE_SHARED, 3, 2, 5],
                       [*RECEIVE_SHARED, 2, 2, 2], [*RECEIVE_SHARED, 2, 3], [*RECEIVE_SHARED, 2, 2, 2, 3, 3, 3],
                       ["me", "late", *RECEIVE_SHARED[2:]],
                       *([*RECEIVE_SHARED[:2], most, *RECEIVE_SHARED[3:]] for most in (2, 5, 6, 500)),
                       *([*RECEIVE_SHARED[:4], number, *RECEIVE_SHARED[5:]] for number in (5, 6, 8)),
                       [*SHARED_BEHIND[:4], 8, *SHARED_BEHIND[5:]], [*RECEIVE_SHARED[:5], 1, *RECEIVE_SHARED[6:]],
                       *(["me", "mine", most, *RECEIVE_SHARED[3:6], limit, *RECEIVE_SHARED[7:]]
                         for most in (0, 5) for limit in (0, 1, 2)),
                       [*RECEIVE_SHARED[:7], "", 3, 0], [*RECEIVE_SHARED[:7], "there", 3, 0],
                       [*RECEIVE_SHARED[:8], 9, 0], [*RECEIVE_SHARED, 3, 3, 3], [*RECEIVE_SHARED[:9], 2, 3, 3]],
    "settle_shared": [SETTLE_SHARED, ["late", *SETTLE_SHARED[1:]], ["mine", 5000, 1, *SETTLE_SHARED[3:]],
                      SETTLE_AGAIN, SETTLE_BOTH, [*SETTLE_SHARED[:7], 0, 2, 3, 2],
                      [*SETTLE_SHARED[:5], 2, *SETTLE_SHARED[6:]],
                      [*SETTLE_SHARED[:8], 3, 5, 5], [*SETTLE_SHARED[:8], 3, 3, 3], [*SETTLE_SHARED[:8], 1, 2, 2],
                      [*SETTLE_SHARED[:8], 3, 4, 2], [*SETTLE_SHARED[:8], 4, 4, 2], [*SETTLE_SHARED[:8], 1, 200, 2],
                      [*SETTLE_SHARED[:7], 6, 2, 2, 2, 3, 3, 3], [*SETTLE_SHARED[:7], 0, 2], [*SETTLE_SHARED, 3]],
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_all_as_usual_but_for_one_thing(url: str, name: str) -> None:
    most = len(USUAL_OF[name])
    changes = [(0, (USUAL_OF[name][0],)), *((place, values) for place, values in CHANGES.items() if place < most)]
    cases = [
        ((*usual[:place], value, *usual[place + 1 :]), arguments)
        for arguments in ARGUMENTS[name]
        for usual in (USUAL_OF[name], *(MORE_USUAL.get(name, []) if arguments in FULLY_VARIED else []))
        for place, values in changes
        for value in (values if arguments in FULLY_VARIED else values[:2])
    ]
    assert sum(UsualCase(script_of(name), run).in_each(url, cases)) > 50


@pytest.mark.parametrize("name", STEPS)
def test_what_is_meant_to_be_usual_is(url: str, name: str) -> None:
    for state in (USUAL_OF[name], *MORE_USUAL.get(name, [])):
        cases = [(tuple(state), arguments) for arguments in ARGUMENTS[name] if arguments in FULLY_VARIED]
        is_usual = bool(state[0]) or state[22] is None  # who waits has to learn when the first delayed message is due
        assert any(UsualCase(script_of(name), run).in_each(url, cases)) is is_usual, state


def held(db: redis.Redis) -> tuple[list[bytes], bool, int]:
    """What is in the queue or in flight, whether the consumer role is either free or leased, and the oldest number."""
    waiting, flying, apart = NAMES[0], NAMES[18], NAMES[19]
    messages = [*db.lrange(waiting, 0, -1), *db.lrange(flying, 0, -1)]
    messages += [entry.partition(b":")[2] for entry in db.hvals(apart)]
    free, lease = NAMES[5], NAMES[13]
    one_of_both = (db.llen(free) > 0) is not db.hexists(lease, "deadline")
    shared = db.hget(lease, "token") == b"shared:1"  # then each delivery has its number beside it
    return sorted(messages), one_of_both, 0 if shared else int(db.hget(lease, "next") or 4) - db.llen(flying)


RIGHTS = (
    "rpop", "lpush", "lmove", "hset", "hdel", "del", "set", "incrby", "ltrim", "time", "mget", "hmget", "hstrlen",
    "hlen", "exists",
)  # fmt: skip
ALONE = {
    "receive": ([*RECEIVE[:10]], BEHIND), "receive by hand": (BY_HAND,),
    "receive_shared": (RECEIVE_SHARED, SHARED_BEHIND),
}  # fmt: skip
BLOCKS = {"acquire": ["me", "consumer", 0, "mine", 5000, 7, 0], "join": ["me", 0, "mine", 5000, 7, 0]}


@pytest.fixture
def limit(url: str) -> Iterator[Callable[[str], redis.Redis]]:
    """Returns a client of a user who lacks a right."""
    with contextlib.ExitStack() as clients, redis.Redis.from_url(url) as db:

        def limited(right: str) -> redis.Redis:
            commands = ["+@all", f"-{right}"]
            db.acl_setuser("limited", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=commands)
            return clients.enter_context(redis.Redis.from_url(url, username="limited", password="any"))

        yield limited
        db.acl_deluser("limited")
        db.flushdb()


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("name", ALONE)
def test_a_missing_right_loses_nothing(url: str, limit: Callable[[str], redis.Redis], name: str, right: str) -> None:
    with redis.Redis.from_url(url) as db:
        for arguments in ALONE[name]:
            keys = fill(db, USUAL_OF[name])
            before = held(db)
            assert before[1]
            try:
                limit(right).eval(script_of(name).source.decode(), len(keys), *keys, *arguments, "tag")
            except redis.ResponseError:
                assert held(db) == before
            else:
                assert held(db)[:2] == before[:2]


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_missing_right_leaves_no_role_without_an_end(
    url: str, limit: Callable[[str], redis.Redis], name: str, right: str
) -> None:
    with redis.Redis.from_url(url) as db:
        keys = fill(db, [*USUAL, None, None])
        with contextlib.suppress(redis.ResponseError):
            limit(right).eval(script_of(name).source.decode(), len(keys), *keys, *BLOCKS[name], "tag")
        assert held(db)[0] == [b"a", b"b"]
        assert db.llen(NAMES[5]) or db.hexists(NAMES[13], "deadline")


def fill(db: redis.Redis, state: Sequence[Any]) -> list[str]:
    """Write a state, and return the names of its keys."""
    pipe = db.pipeline(transaction=False)
    write(pipe, tuple(state))
    pipe.execute()
    return NAMES[: len(state)]


LIMITED: list[tuple[dict[str, str], bool]] = [
    ({"concurrency": "3"}, True),
    ({"count": "5", "per": "1000"}, True),
    ({"count": "5", "per": "1000", "burst": "1", "concurrency": "0"}, True),
    ({"count": "500", "per": "1", "next": "1.000"}, True),
    ({"count": "5", "per": str(DAY), "next": "nan"}, True),
    ({"count": "5", "per": str(DAY), "next": f"{FAR}.500"}, False),
    ({"count": "1", "per": str(DAY), "burst": "3", "next": f"{FAR - 1_000_000}.500"}, True),
    ({"count": "0", "per": "1000"}, False),
    ({"count": "5"}, False),
    ({"count": "5", "per": "1e3"}, False),
    ({"count": "5", "per": "9" * 14}, False),
    ({"concurrency": "x"}, False),
    ({"count": "5", "per": "1000", "paused": "1:another"}, False),
    ({"held": "1", "held_for": "1"}, False),
    ({"concurrency": "3", "held": str(FAR), "held_for": "1000"}, False),
    ({"next": "1.000"}, False),
    ({"x": "y"}, False),
]


@pytest.mark.parametrize(("control", "is_usual"), LIMITED)
def test_limits_that_let_a_get_go_on_are_usual(url: str, control: dict[str, str], is_usual: bool) -> None:
    """With, and without, delayed messages beside it."""
    usual = USUAL_OF["get"]
    beside = [(None, None), ({"a:1:0:0:later": FAR}.items(), ["1"])]
    states = [(*usual[:21], control, later, *usual[23:25], room, *usual[26:]) for later, room in beside]
    assert UsualCase(script("get"), run).in_each(url, [(state, GET) for state in states]) == [is_usual] * 2
