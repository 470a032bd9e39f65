"""CloudEvents in JSON: what is written can be read, foreign events are understood, and damaged ones are refused."""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any

import pytest

from apressure.envelopes import Envelope, decode, encode

NOON = dt.datetime(2013, 1, 1, 12, 0, 0, 250_000, tzinfo=dt.UTC)
FULL = Envelope(
    b"\xff\x00", key="kühl", time=NOON, headers={"traceid": "a1", "subject": "é"}, id="7", source="/shop", type="sold"
)


def event(**members: Any) -> bytes:
    return json.dumps({"specversion": "1.0", "id": "7", "source": "/shop", "type": "sold", **members}).encode()


def test_an_envelope_is_a_cloudevent() -> None:
    assert json.loads(encode(FULL)) == {
        "specversion": "1.0",
        "id": "7",
        "source": "/shop",
        "type": "sold",
        "time": "2013-01-01T12:00:00.250000Z",
        "partitionkey": "kühl",
        "traceid": "a1",
        "subject": "é",
        "data_base64": base64.b64encode(b"\xff\x00").decode(),
    }


@pytest.mark.parametrize(
    ("content_type", "data", "member"),
    [
        ("application/json", b'{"a": 1.10}', '"data":{"a": 1.10}'),
        ("application/vnd.shop+json; charset=utf-8", b"[1]", '"data":[1]'),
        ("text/plain", 'a"é'.encode(), '"data":"a\\"é"'),
        ("text/csv;charset=utf-8", b"", '"data":""'),
        ("text/plain; charset=latin1", b"\xe9", '"data_base64":"6Q=="'),
        ("image/png", b"a", '"data_base64":"YQ=="'),
        ("", b"a", '"data_base64":"YQ=="'),
        ("text/plain", None, "}"),
    ],
)
def test_what_is_written_can_be_read(content_type: str, data: bytes | None, member: str) -> None:
    headers = {"datacontenttype": content_type} if content_type else {}
    made = Envelope(data, headers=headers, time=NOON)
    message = encode(made)
    assert member in message.decode()
    assert ("data" in json.loads(message)) == (b'"data":' in message)
    found = decode(message)
    if data is not None and "json" in content_type:
        assert json.loads(found.data or b"") == json.loads(data)
    else:
        assert found == made


def test_each_envelope_has_an_id_of_its_own() -> None:
    assert Envelope(b"").id != Envelope(b"").id
    assert decode(encode(FULL)) == FULL


@pytest.mark.parametrize(
    ("members", "data"),
    [
        ({"data": {"a": [1, None]}}, b'{"a":[1,null]}'),
        ({"data": "a"}, b'"a"'),
        ({"data": "a", "datacontenttype": "application/json"}, b'"a"'),
        ({"data": "<a/>", "datacontenttype": "application/xml"}, b"<a/>"),
        ({"data": 3, "datacontenttype": "text/plain"}, b"3"),
        ({"data": 12345678901234567890123}, b"12345678901234567890123"),
        ({"data": None, "data_base64": "YQ=="}, b"a"),
        ({"data": None}, None),
        ({}, None),
    ],
)
def test_the_data_of_foreign_events(members: dict[str, Any], data: bytes | None) -> None:
    assert decode(event(**members)).data == data


@pytest.mark.parametrize(
    "data", [b"12345678901234567.89", b'{"a": [1.10, 1e400], "data": {"data": 2}}', b"-0.0", b"2E+3"]
)
def test_numbers_keep_their_digits(data: bytes) -> None:
    message = b' { "data":1.50 , "specversion" : "1.0","id":"7","source":"/","type":"t" , "data" : ' + data + b" } "
    assert decode(message).data == data


@pytest.mark.parametrize("data", [b"null", b'"\\ud800"', b"1e400", b'{"a": "\\u00e9"}'])
def test_json_that_is_written_can_be_read(data: bytes) -> None:
    """As the member `data`, some of it would be no data, or no valid event."""
    for content_type in ("application/json", "text/json"):
        found = decode(encode(Envelope(data, headers={"datacontenttype": content_type}))).data
        assert found is not None
        assert repr(json.loads(found)) == repr(json.loads(data))


def test_attributes_of_foreign_events() -> None:
    found = decode(event(time="2013-01-01t13:00:00.25+01:00", flag=True, count=-3, none=None, TraceId="x"))
    assert found.time == NOON
    assert found.headers == {"flag": "true", "count": "-3", "TraceId": "x"}
    assert found.key is None
    assert decode(event(partitionkey="")).key is None  # it could not be written again


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "specversion"),
        (event(specversion="0.3"), "specversion"),
        (event(id=""), "id is missing"),
        (event(source=None), "source is missing"),
        (event(type=3), "type is missing"),
        (event(data=1, data_base64="YQ=="), "both data and data_base64"),
        (event(data_base64="secret"), "not Base64"),
        (event(data_base64="YQ==!"), "not Base64"),
        (event(data_base64=3), "not Base64"),
        (event(extra={"a": "secret"}), "neither text"),
        (event(extra=1.5), "neither text"),
        (event(key="\ud800"), "not valid Unicode"),
        (event(data="\ud800"), "not valid Unicode"),
        (event(data=[1e400]), "not JSON"),
        *((event(time=time), "RFC 3339") for time in ("", "2013-01-01", "secret", "2013-13-01T00:00:00Z", 3)),
        *((event(time=time), "RFC 3339") for time in ("2013-01-01T00:00:00", "0001-01-01T00:00:00+01:00")),
    ],
)
def test_damaged_events_are_refused_and_not_shown(message: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        decode(message)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Envelope(b"", id=""), "id must not be empty"),
        (Envelope(b"", key=""), "key must not be empty"),
        (Envelope(b"", time=NOON.replace(tzinfo=None)), "time zone"),
        (Envelope(b"", headers={"Trace-Id": "1"}), "'Trace-Id' cannot be the name of a header"),
        (Envelope(b"", headers={"data": "1"}), "'data' cannot"),
        (Envelope(b"x", headers={"datacontenttype": "application/json"}), "the data is not JSON"),
        (Envelope(b"\xff", headers={"datacontenttype": "text/plain"}), "not text in UTF-8"),
    ],
)
def test_what_is_no_event_is_not_written(made: Envelope, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        encode(made)
