"""Addresses of Sentinels and clusters: by URL, by arguments and by a client of redis-py; invalid ones are refused."""

from __future__ import annotations

import re
from typing import Any

import fakeredis
import pytest
import redis.asyncio
from redis.asyncio.connection import Connection, SSLConnection

from apressure import AsyncQueue, Client, Durability
from apressure.connection.addresses import Address
from apressure.connection.settings import Settings
from apressure.connection.settings import settings_from as resolve_with_environment

SECRET = "Pa55word"


def resolve(**options: Any) -> Settings:
    return resolve_with_environment(options, {})


def found(**options: Any) -> Address:
    return resolve(**options).address


def primary(address: Address) -> dict[str, Any]:
    return dict(address.at("there", 7).connection_options)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("h", [("h", 26379)]),
        ("h:1", [("h", 1)]),
        ("a:1,b,c:3", [("a", 1), ("b", 26379), ("c", 3)]),
        ("10.0.0.1:1,", [("10.0.0.1", 1)]),
        ("[::1]:1,[fe80::2]", [("::1", 1), ("fe80::2", 26379)]),
    ],
)
def test_a_url_names_any_number_of_sentinels(text: str, nodes: list[tuple[str, int]]) -> None:
    address = found(url=f"redis+sentinel://{text}/queues")
    assert list(address.nodes) == nodes
    assert address.service == "queues"
    assert list(found(url=f"redis+sentinel://me:{SECRET}@{text}/queues").nodes) == nodes
    assert list(found(sentinels=[one for one in text.split(",") if one], service="queues").nodes) == nodes


@pytest.mark.parametrize(
    ("text", "nodes"),
    [("h", [("h", 6379)]), ("a:1,b", [("a", 1), ("b", 6379)]), ("[::1]:1,[::2]", [("::1", 1), ("::2", 6379)])],
)
def test_a_url_names_any_number_of_nodes_of_a_cluster(text: str, nodes: list[tuple[str, int]]) -> None:
    for address in (
        found(url=f"redis+cluster://{text}"),
        found(url=f"redis+cluster://me:{SECRET}@{text}/"),
        found(url=f"redis+cluster://{text}/0"),
        found(cluster=text.split(",")),
    ):
        assert list(address.nodes) == nodes
        assert address.service is None
        assert "host" not in address.connection_options


def test_addresses_may_be_pairs_and_an_ipv6_address_needs_no_brackets() -> None:
    nodes = found(sentinels=[("a", 1), "b:2", "::1"], service="queues").nodes
    assert nodes == (("a", 1), ("b", 2), ("::1", 26379))
    assert found(cluster=(("a", 1),)).nodes == (("a", 1),)
    assert found(cluster=iter(["a"])).nodes == (("a", 6379),)


def test_the_urls_path_is_service_and_database() -> None:
    address = found(url="redis+sentinel://h/my%20queues/3")
    assert (address.service, primary(address)["db"]) == ("my queues", 3)
    assert primary(found(url="redis+sentinel://h/queues"))["db"] == 0
    assert primary(found(sentinels=["h"], service="queues", db=4))["db"] == 4
    assert primary(found(url="redis+sentinel://h/queues/3", db=4))["db"] == 4
    assert found(url="redis+sentinel://h?service=queues").service == "queues"
    assert found(url="redis+sentinel://h/queues", service="others").service == "others"
    assert found(url="redis+sentinel://h", service="queues").service == "queues"


def test_the_environment_has_no_say_in_several_servers() -> None:
    environment = {"REDIS_SERVER": "env.example", "REDIS_PORT": "7001", "REDIS_DB": "3", "PRESSURE_PREFIX": "env"}
    settings = resolve_with_environment({"cluster": ["h"]}, environment)
    assert settings.address.nodes == (("h", 6379),)
    assert settings.address.connection_options["db"] == 0
    assert settings.prefix == "env"


@pytest.mark.parametrize(
    "options",
    [
        {
            "url": f"redis+sentinel://me:{SECRET}@h/queues?sentinel_username=guard&sentinel_password=Gu%2Frd",
        },
        {
            "sentinels": ["h"],
            "service": "queues",
            "username": "me",
            "password": SECRET,
            "sentinel_username": "guard",
            "sentinel_password": "Gu/rd",
        },
        {
            "url": "redis+sentinel://you:wrong@h/queues?sentinel_username=other&sentinel_password=wrong",
            "username": "me",
            "password": SECRET,
            "sentinel_username": "guard",
            "sentinel_password": "Gu/rd",
        },
    ],
    ids=["url", "arguments", "both"],
)
def test_servers_and_sentinels_have_credentials_of_their_own(options: dict[str, Any]) -> None:
    address = found(**options)
    there = address.at("there", 7).connection_options
    assert (there["username"], there["password"]) == ("me", SECRET)
    guard = address.sentinel_at("guard", 8).connection_options
    assert (guard["username"], guard["password"]) == ("guard", "Gu/rd")
    assert (guard["host"], guard["port"]) == ("guard", 8)
    assert "db" not in guard


def test_sentinels_do_not_get_the_credentials_of_servers() -> None:
    guard = found(url=f"redis+sentinel://me:{SECRET}@h/queues").sentinel_at("h", 8).connection_options
    assert not {"username", "password"} & set(guard)


def test_with_tls_everything_is_encrypted() -> None:
    address = found(url="rediss+sentinel://h/queues?ssl_ca_certs=/ca.pem")
    for one in (address.at("there", 7), address.sentinel_at("guard", 8)):
        assert one.connection_class is SSLConnection
        assert one.connection_options["ssl_ca_certs"] == "/ca.pem"
    address = found(url="rediss+cluster://h?ssl_cert_reqs=none")
    assert address.at("there", 7).connection_class is SSLConnection
    assert address.at("there", 7).connection_options["ssl_cert_reqs"] == "none"
    for url in ("redis+sentinel://h/queues", "redis+cluster://h"):
        assert found(url=url).at("there", 7).connection_class is Connection


def test_reprs_show_no_secrets() -> None:
    options = {"password": SECRET, "sentinel_password": SECRET + "2", "sentinels": ["a:1", "b"], "service": "queues"}
    for shown in (resolve(**options), found(**options), Client(**options), AsyncQueue("jobs", **options)):
        assert SECRET not in repr(shown)
        assert "'queues' of the Sentinels a:1, b:26379" in repr(shown)
    address = found(**options)
    assert (address.at("there", 7).text, address.sentinel_at("a", 1).text) == ("there:7 (database 0)", "a:1")
    cluster = Client(url=f"redis+cluster://:{SECRET}@a:1,b")
    assert "the cluster of a:1, b:6379" in repr(cluster)
    assert SECRET not in repr(cluster)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"url": "redis+sentinel://h/queues"}, 60),
        ({"sentinels": ["h"], "service": "queues"}, 60),
        ({"url": "redis+cluster://h"}, 60),
        ({"cluster": ["h"]}, 60),
        ({"redis": redis.asyncio.RedisCluster(host="h")}, 60),
        ({"cluster": ["h"], "retry_timeout": 10.0}, 10),
        ({"url": "redis+sentinel://h/queues", "retry_timeout": 0}, 0),
        ({"url": "redis://h"}, 10),
        ({"host": "h"}, 10),
        ({}, 10),
        ({"url": "embedded://"}, 10),
    ],
)
def test_sentinels_and_clusters_get_the_time_that_they_need_to_agree(options: dict[str, Any], seconds: float) -> None:
    assert resolve(**options).retry_timeout == seconds


QUEUES = {"sentinels": ["h"], "service": "queues"}


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"url": "redis+sentinel://h"}, ValueError, "name on the Sentinels is missing.*service="),
        ({"url": "redis+sentinel://h/"}, ValueError, "name on the Sentinels is missing"),
        ({"sentinels": ["h"]}, ValueError, "name on the Sentinels is missing"),
        ({"sentinels": ["h"], "service": ""}, ValueError, "name on the Sentinels is missing"),
        ({"sentinels": ["h"], "service": 5}, TypeError, "service must be a string"),
        ({**QUEUES, "sentinel_password": 5}, TypeError, "sentinel_password must be a string"),
        ({**QUEUES, "sentinel_username": b"x"}, TypeError, "sentinel_username must be a string"),
        ({"url": "redis+sentinel://h/queues/x"}, ValueError, "number of a database, not 'x'"),
        ({"url": "redis+sentinel://h/queues/1/2"}, ValueError, "number of a database"),
        ({"url": "redis+sentinel:///queues"}, ValueError, r"names no address. Write redis\+sentinel://host:port"),
        ({"url": "redis+sentinel://h:port/queues"}, ValueError, "must be host:port, and the port a number"),
        ({"url": "redis+sentinel://h:0/queues"}, ValueError, "port must be between 1 and 65535"),
        ({"url": "redis+sentinel://h/queues?colour=red"}, ValueError, "'colour'"),
        ({"url": "redis+sentinel://h/queues?socket_timeout=3"}, ValueError, "must not set socket_timeout"),
        ({"url": "redis+cluster://"}, ValueError, r"names no address. Write redis\+cluster://host:port"),
        ({"url": "redis+cluster://h/1"}, ValueError, "a cluster has database 0 only"),
        ({"url": "redis+cluster://h/queues"}, ValueError, "number of a database"),
        ({"url": "redis+cluster://h?service=queues"}, ValueError, "'service'"),
        ({"url": "redis+clusters://h"}, ValueError, r"must begin with redis://.*redis\+sentinel://.*not 'redis\+clus"),
        ({"cluster": ["h"], "db": 1}, ValueError, "a cluster has database 0 only"),
        ({"cluster": []}, ValueError, r"cluster names no address. Write cluster=\['host:6379'"),
        ({"sentinels": [], "service": "q"}, ValueError, r"sentinels names no address. Write sentinels=\['host:26379'"),
        ({"cluster": "h:1"}, TypeError, "cluster must be a list of addresses.*not str"),
        ({"cluster": 5}, TypeError, "cluster must be a list of addresses.*not int"),
        ({"cluster": [5]}, TypeError, "cluster must be a list of addresses.*not of int"),
        ({"cluster": [("h", "1")]}, TypeError, "port must be a whole number"),
        ({"cluster": [("", 1)]}, ValueError, "host must not be empty"),
        ({"cluster": [""]}, ValueError, "must be host:port"),
        ({"cluster": [":1"]}, ValueError, "must be host:port"),
        ({"cluster": ["h:1:2"]}, ValueError, "must be host:port"),
        ({"cluster": ["[::1"]}, ValueError, "must be host:port"),
        ({"cluster": ["[::1]6379"]}, ValueError, "must be host:port"),
        ({"cluster": ["h:70000"]}, ValueError, "port must be between"),
        ({"cluster": ["h/1"]}, ValueError, "must be host:port"),
        ({"cluster": ["h"], "sentinels": ["h"]}, TypeError, "give one of url=, sentinels= and cluster="),
        ({"url": "redis://h", "sentinels": ["h"]}, TypeError, "give one of url=, sentinels= and cluster="),
        ({"url": "redis+cluster://h", "cluster": ["h"]}, TypeError, "give one of url=, sentinels= and cluster="),
        ({"cluster": ["h"], "host": "h"}, TypeError, "either host and port, or cluster="),
        ({"cluster": ["h"], "port": 1}, TypeError, "either host and port, or cluster="),
        ({**QUEUES, "host": "h"}, TypeError, "either host and port, or sentinels="),
        ({"url": "redis+sentinel://h/queues", "port": 1}, TypeError, "either host and port, or sentinels="),
        ({"url": "redis://h", "service": "queues"}, TypeError, "service is for Sentinels. Give sentinels="),
        ({"sentinel_password": "x"}, TypeError, "sentinel_password is for Sentinels"),
        ({"cluster": ["h"], "service": "queues"}, TypeError, "service is for Sentinels; a cluster has none"),
        ({"url": "embedded://", "cluster": ["h"]}, ValueError, "address of its own. Leave out cluster"),
        ({"url": "embedded://", **QUEUES}, ValueError, "address of its own. Leave out sentinels, service"),
        ({"redis": redis.asyncio.Redis(), "cluster": ["h"]}, TypeError, "either redis= or the server's address"),
        ({"redis": redis.asyncio.Redis(), "service": "q"}, TypeError, "either redis= or the server's address"),
        ({"durability": 1, "scripting": False}, ValueError, "durability= needs scripts"),
        ({"durability": -1}, ValueError, "replicas must be at least 0"),
        ({"durability": True}, TypeError, "replicas must be a whole number"),
        ({"durability": 1.5}, TypeError, "durability must be a Durability or a number"),
        ({"durability": "1"}, TypeError, "durability must be a Durability or a number"),
        ({"durability": "ALL"}, TypeError, "not 'ALL'"),
        ({"durability": "all", "scripting": False}, ValueError, "durability= needs scripts"),
        ({"durability": "all", "redis": fakeredis.FakeAsyncRedis()}, ValueError, "fakeredis has neither replicas nor"),
        ({"durability": 1, "redis": fakeredis.FakeAsyncRedis()}, ValueError, "fakeredis has neither replicas nor"),
        (
            {"durability": Durability(1, timeout=15)},
            ValueError,
            r"\(15 s\) must be less than response_timeout \(15 s\)",
        ),
        ({"durability": 1, "response_timeout": 5}, ValueError, "must be less than response_timeout"),
    ],
    ids=lambda value: re.sub(r"\W+", "-", str(value))[:50] if isinstance(value, dict) else "",
)
def test_an_invalid_address_has_a_clear_error(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        resolve(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"url": f"redis+sentinel://:{SECRET}@h:port/queues"},
        {"url": f"redis+sentinel://:{SECRET}@h:0/queues"},
        {"url": f"redis+sentinel://:{SECRET}@/queues"},
        {"url": f"redis+sentinel://:{SECRET}@h/queues/x"},
        {"url": f"redis+sentinel://:{SECRET}@h/queues?colour=red"},
        {"url": f"redis+sentinel://:{SECRET}@h/queues?sentinel_password={SECRET}&colour=red"},
        {"url": f"redis+sentinel://:pa/{SECRET}@h/queues"},
        {"url": f"redis+sentinel://:pa#{SECRET}@h/queues"},
        {"url": f"redis+sentinel://:pa?{SECRET}@h/queues"},
        {"url": f"redis+sentinel://:pa?x={SECRET}@h/queues"},
        {"url": f"redis+sentinel://:{SECRET}?x=y@h/queues"},
        {"url": f"redis+cluster://:{SECRET}/x=y@h"},
        {"url": f"redis://:{SECRET}?x=y@h"},
        {"url": f"redis+cluster://:[{SECRET}@h"},
        {"url": f"redis+cluster://:{SECRET}@h/1"},
        {"cluster": [f"me:{SECRET}@h:1"]},
        {"cluster": [f":{SECRET}@h"]},
        {"cluster": [f"redis://:{SECRET}@h:1"]},
        {"cluster": [(f"me:{SECRET}@h", 1)]},
        {"sentinels": [f"me:{SECRET}@h:1"], "service": "queues"},
        {**QUEUES, "sentinel_password": SECRET, "db": -1},
    ],
    ids=str,
)
def test_no_error_shows_a_password(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        resolve(**options)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = None if error.__suppress_context__ else error.__context__


@pytest.mark.parametrize(
    "durability", [None, 0, Durability(), Durability(0, fsync=False)], ids=["none", "zero", "empty", "false"]
)
def test_durability_without_a_demand_is_none(durability: Any) -> None:
    assert resolve(durability=durability).durability is None


def test_a_number_is_a_durability_of_that_many_replicas() -> None:
    assert resolve(durability=2).durability == Durability(2, fsync=False, timeout=5.0)
    assert resolve(durability="all").durability == Durability("all", fsync=False, timeout=5.0)
    assert resolve(durability=Durability(fsync=True)).durability == Durability(0, fsync=True)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"fsync": 1}, TypeError, "fsync must be True or False"),
        ({"timeout": "1"}, TypeError, "timeout must be a number of seconds"),
        ({"timeout": 0}, ValueError, "timeout must be between"),
        ({"timeout": float("nan")}, ValueError, "timeout must be between"),
        ({"timeout": 1000}, ValueError, "timeout must be between"),
    ],
)
def test_an_invalid_durability_is_refused(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Durability(1, **arguments)


def test_a_client_of_a_cluster_lends_its_nodes_and_credentials() -> None:
    theirs = redis.asyncio.RedisCluster(host="h", port=7004, username="me", password=SECRET, socket_timeout=1)
    address = found(redis=theirs)
    assert address.nodes == (("h", 7004),)
    assert (primary(address)["username"], primary(address)["password"]) == ("me", SECRET)
    assert "socket_timeout" not in primary(address)
    assert address.connection_class is Connection
    assert (primary(address)["host"], primary(address)["port"]) == ("there", 7)


def test_a_client_of_a_cluster_lends_its_certificates() -> None:
    address = found(redis=redis.asyncio.RedisCluster(host="h", ssl=True, ssl_ca_certs="/ca.pem"))
    assert address.connection_class is SSLConnection
    assert primary(address)["ssl_ca_certs"] == "/ca.pem"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_client_of_sentinels_lends_them_and_all_credentials(tls: bool) -> None:
    ssl = {"ssl": True, "ssl_ca_certs": "/ca.pem"} if tls else {}
    sentinels = redis.asyncio.Sentinel(  # type: ignore[no-untyped-call]
        [("a", 1), ("b", 2)], sentinel_kwargs={"password": "Gu/rd", **ssl}, username="me", password=SECRET, db=3, **ssl
    )
    address = found(redis=sentinels.master_for("queues"))
    assert (address.service, address.nodes) == ("queues", (("a", 1), ("b", 2)))
    there, guard = address.at("there", 7), address.sentinel_at("b", 2)
    assert [there.connection_options[key] for key in ("host", "port", "db", "username", "password")] == [
        "there", 7, 3, "me", SECRET,
    ]  # fmt: skip
    assert [guard.connection_options[key] for key in ("host", "port", "password")] == ["b", 2, "Gu/rd"]
    assert "username" not in guard.connection_options
    for one in (there, guard):
        assert one.connection_class is (SSLConnection if tls else Connection)
        assert one.connection_options.get("ssl_ca_certs") == ("/ca.pem" if tls else None)


def test_sentinels_with_tls_and_servers_without_are_refused() -> None:
    sentinels = redis.asyncio.Sentinel([("a", 1)], sentinel_kwargs={"ssl": True})  # type: ignore[no-untyped-call]
    with pytest.raises(TypeError, match="both use TLS, or neither"):
        found(redis=sentinels.master_for("queues"))
