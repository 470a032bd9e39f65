"""The parts of the page that do no I/O: who may see it, what of messages is shown, where lines of charts go."""

from __future__ import annotations

import base64
import json
import time

import pytest

from apressure.core.history import Minute
from apressure.web.access import SESSION, Access, Identity, Token, read_tokens
from apressure.web.bodies import READ, Bodies, read_pointer
from apressure.web.charts import HEIGHT, WIDTH, charts
from apressure.web.rendering import url_of

LONG = "a-token-of-many-characters"
VIEWER = "another-token-for-viewers"


def test_tokens_have_roles():
    assert read_tokens(f"# who\n\nviewer {VIEWER}\noperator {LONG}\n{LONG}2\n") == (
        Token("viewer", VIEWER), Token("operator", LONG), Token("operator", f"{LONG}2"),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "# none\n", "short", f"admin {LONG}", f"viewer {LONG} more", "ü" * 20])
def test_bad_tokens_are_refused_and_not_shown(text: str):
    with pytest.raises(ValueError) as caught:
        read_tokens(text)
    assert LONG not in str(caught.value)


def test_without_tokens_everybody_who_can_connect_is_let_in():
    access = Access.of()
    assert access.identify({}, {}) == Identity("local", "operator")


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
def test_a_token_in_a_header(scheme: str):
    access = Access.of(read_tokens(f"viewer {VIEWER}\noperator {LONG}"))

    def sent(token: str) -> dict[str, str]:
        value = base64.b64encode(f"ann:{token}".encode()).decode() if scheme == "Basic" else token
        return {"authorization": f"{scheme} {value}"}

    viewer, operator = access.identify(sent(VIEWER), {}), access.identify(sent(LONG), {})
    assert viewer is not None
    assert operator is not None
    assert (viewer.role, operator.role) == ("viewer", "operator")
    assert operator.who == ("ann" if scheme == "Basic" else "token")
    assert operator.by_header == (scheme == "Bearer")
    assert access.identify(sent(LONG + "x"), {}) is None
    assert access.identify({"authorization": f"{scheme} \udcff"}, {}) is None


def test_a_session_lives_through_a_restart_and_ends_with_its_time_and_its_token():
    tokens = read_tokens(f"viewer {VIEWER}\noperator {LONG}")
    access = Access.of(tokens)
    token = access.sign_in(f" {VIEWER} ")
    assert token is not None
    cookie = access.session(token)
    again = Access.of(tokens).identify({}, {"apressure_session": cookie})
    assert again is not None
    assert again.role == "viewer"
    assert Access.of(read_tokens(LONG)).identify({}, {"apressure_session": cookie}) is None
    old = access.session(token, time.time() - SESSION - 1)
    assert access.identify({}, {"apressure_session": old}) is None


def test_a_forged_session_is_refused():
    access = Access.of(read_tokens(f"viewer {VIEWER}"))
    token = access.sign_in(VIEWER)
    assert token is not None
    payload, _, signature = access.session(token).rpartition(".")
    told = json.loads(base64.urlsafe_b64decode(payload))
    forged = base64.urlsafe_b64encode(json.dumps({**told, "role": "operator"}).encode()).decode()
    for cookie in (f"{forged}.{signature}", payload, f"{payload}.", "", ".", "\udcff.x", f"{payload}.{signature}0"):
        assert access.identify({}, {"apressure_session": cookie}) is None


def test_a_proxy_names_users():
    access = Access.of(trust_header="X-User", operators=["ann"])
    ann, bob = access.identify({"x-user": "ann"}, {}), access.identify({"x-user": "bob"}, {})
    assert ann is not None
    assert bob is not None
    assert (ann.role, bob.role) == ("operator", "viewer")
    assert access.identify({}, {}) is None
    assert not access.csrf_fits(bob, access.csrf(ann))
    assert access.csrf_fits(ann, access.csrf(ann))
    assert not access.csrf_fits(ann, "\udcff")


def test_the_repr_of_access_shows_no_key():
    assert "key" not in repr(Access.of(read_tokens(LONG)))


@pytest.mark.parametrize(
    ("raw", "format", "text"),
    [
        (b'{"a": [1]}', "json", '{\n  "a": [\n    1\n  ]\n}'),
        ("grüße\n".encode(), "text", "grüße\n"),
        (b"\xff\x00A", "hex", f"000000  {'ff 00 41':47}  ..A"),
        (b"", "text", ""),
        (b"[" * 30_000, "text", "[" * 4096),
    ],
)
def test_contents_are_shown_as_what_they_are(raw: bytes, format: str, text: str):
    found = Bodies(shown=True).of(raw)
    assert (found.format, found.text, found.size) == (format, text, len(raw))
    assert Bodies().of(raw)[:2] == ("hidden", "")


def test_the_beginning_of_a_large_text_may_end_within_a_character():
    raw = ("a" * (READ - 1) + "ü").encode()
    found = Bodies(shown=True).of(raw[:READ], len(raw))
    assert (found.format, found.cut) == ("text", True)


REDACTED = [
    ({"card": {"number": 1, "kind": 2}}, {"card": {"number": "[redacted]", "kind": 2}}),
    ({"card": 7}, {"card": 7}),
    ([{"name": "x"}], [{"name": "[redacted]"}]),
    ({"a/b": {"~": 1}}, {"a/b": {"~": "[redacted]"}}),
]


@pytest.mark.parametrize(("value", "left"), REDACTED)
def test_what_pointers_name_is_left_out(value: object, left: object):
    bodies = Bodies(True, tuple(map(read_pointer, ("/card/number", "/*/name", "/a~1b/~0"))))
    assert json.loads(bodies.of(json.dumps(value).encode()).text) == left


def test_with_pointers_what_is_no_json_or_not_all_of_it_is_hidden():
    bodies = Bodies(True, (read_pointer("/card"),))
    whole = json.dumps({"card": 1, "more": "x" * READ}).encode()
    for raw, size in ((b"card=1", 6), (b"\xff", 1), (whole[:READ], len(whole)), (b"[" * 30_000, 30_000)):
        assert bodies.of(raw, size) == ("hidden", "", size, False)
    assert not bodies.whole


def test_a_pointer_begins_with_a_slash():
    with pytest.raises(ValueError, match="begins with a slash: /card"):
        read_pointer("card")


def minute(time: int, length: int, put: int | None = None) -> Minute:
    return Minute(time, length, 0, 0, put, put, None)


def test_charts_have_a_line_for_each_figure_and_gaps_where_nothing_is_known():
    now = 7_200.0
    found = charts([minute(0, 99), minute(3600, 10), minute(3660, 5), minute(7140, 0, 7)], now, 60)
    assert [chart.title for chart in found] == ["Messages", "Messages a minute"]  # nothing is known of the others
    waiting = found[0].lines[0]
    assert waiting.paths == (f"0.0,0.0 10.0,{HEIGHT / 2:.1f}", f"{WIDTH * 59 / 60:.1f},{HEIGHT}.0 592.0,{HEIGHT}.0")
    assert (waiting.latest, waiting.most, found[0].most) == (0, 10, 10)
    assert len(found[1].lines[0].paths) == 1
    assert "waiting: 0 now, at most 10" in found[0].text
    failing = Minute(7080, 0, 0, 0, None, None, 3, 2, 150)
    found = charts([failing, minute(7140, 0)], now, 60)
    assert [chart.text for chart in found[1:]] == [
        "Age of the next message, in seconds. oldest: not known now, at most 3",
        "Failed attempts a minute. failed: not known now, at most 2",
        "Time for an attempt, in milliseconds. mean: not known now, at most 150",
    ]


def test_a_point_of_a_day_is_the_highest_value_of_four_minutes():
    now = 200_000.0
    first = 200_000 // 240 * 240 - 86_400
    values = [3, None, 9, 5, 4, 1, None, None, None, None, None, None, 7]
    minutes = [minute(first + 60 * number, 8, put) for number, put in enumerate(values)]
    (put, _) = charts(minutes, now, 1440)[1].lines
    assert put.paths == (f"0.0,0.0 1.7,{HEIGHT * 5 / 9:.1f}", f"5.0,{HEIGHT * 2 / 9:.1f} 7.0,{HEIGHT * 2 / 9:.1f}")
    assert (put.latest, put.most) == (7, 9)
    full = charts([minute(first + 60 * number, number) for number in range(1440)], now, 1440)
    assert len(full[0].lines[0].paths[0].split()) == 360


def test_without_minutes_there_are_no_charts():
    assert charts([], 0.0, 60) == charts([minute(0, 1)], 1e9, 60) == []


def test_urls_leave_out_what_is_empty():
    assert url_of("/a b", "queue", at="\udcff/..", server="", cursor=None) == "/a%20b/queue?at=%FF%2F.."
    assert url_of("", "") == "/"
