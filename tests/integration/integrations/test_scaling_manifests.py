"""The manifests of examples/deploy/scaling: what they name exists, and they agree with one another."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import redis
import yaml

from apressure import queue_addresses
from apressure.cli.app import run
from apressure.telemetry.families import WANTED
from apressure.telemetry.scaling import Need
from examples.deploy import worker
from tests.integration.conftest import Opener
from tests.unit.test_alerts import series

DEPLOY: Final = Path(__file__).parents[3] / "examples" / "deploy"
SCALING: Final = DEPLOY / "scaling"
SCALED: Final = ("keda.yaml", "keda-prometheus.yaml", "keda-list.yaml")
OF_KEDA: Final = {
    "scaleTargetRef", "pollingInterval", "cooldownPeriod", "minReplicaCount", "maxReplicaCount", "fallback", "advanced",
    "triggers",
}  # fmt: skip
"""Fields of a ScaledObject, of those that KEDA has."""
OF_TRIGGERS: Final = {
    "metrics-api": {"url", "valueLocation", "targetValue", "activationTargetValue"},
    "prometheus": {"serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues"},
    "redis": {"address", "databaseIndex", "listName", "listLength", "activationListLength"},
}
"""The metadata of each trigger, of that which KEDA has."""


def documents(*names: str) -> list[dict[str, Any]]:
    return [found for name in names for found in yaml.safe_load_all((SCALING / name).read_text())]


def trigger(name: str) -> dict[str, str]:
    (scaled,) = documents(name)
    (found,) = scaled["spec"]["triggers"]
    assert set(found["metadata"]) <= OF_TRIGGERS[found["type"]]
    assert all(isinstance(value, str) for value in found["metadata"].values())  # KEDA refuses numbers
    return dict(found["metadata"])


def exporter() -> list[str]:
    """The command of the exporter."""
    deployment, service = documents("exporter.yaml")
    template = deployment["spec"]["template"]
    assert (
        template["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    )
    (container,) = template["spec"]["containers"]
    (port,) = container["ports"]
    assert service["spec"]["ports"] == [{"port": port["containerPort"]}]
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": port["containerPort"]}
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    return list(container["command"])


def selected(query: str) -> tuple[str, str]:
    """The queue and the kind that labels in a query name."""
    (queue, kind) = (query.partition(f'{label}="')[2].partition('"')[0] for label in ("queue", "kind"))
    return queue, kind


def test_every_file_is_read_by_a_test() -> None:
    assert {path.name for path in SCALING.iterdir()} == {"exporter.yaml", "hpa.yaml", "adapter.yaml", *SCALED}


def test_the_exporter_has_options_that_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = exporter()
    assert program == "apressure"
    nowhere = [word.replace("valkey:6379", "127.0.0.1:1") for word in arguments]
    assert run([*nowhere, "--once", "--interval", "0.1"]) == 7  # 2 would be a bad option
    assert 'apressure_up{kind="AsyncQueue",queue="orders"} 0.0' in capsys.readouterr().out
    assert "metrics]" in (DEPLOY / "Dockerfile").read_text()


@pytest.mark.parametrize("name", [*SCALED, "hpa.yaml"])
def test_an_autoscaler_scales_the_worker_up_to_what_the_exporter_wants(name: str) -> None:
    (found,) = documents(name)
    spec = found["spec"]
    workers = {each["metadata"]["name"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    target = workers[spec["scaleTargetRef"]["name"]]
    assert target["kind"] == "Deployment"
    pod = target["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > worker.SHUTDOWN_SECONDS  # a worker that is taken away finishes
    options = dict(word.split("=") for word in exporter() if "=" in word)
    assert int(options["--max-workers"]) == spec.get("maxReplicaCount", spec.get("maxReplicas"))
    least = spec.get("minReplicaCount", spec.get("minReplicas"))
    assert least == (int(options["--min-workers"]) if name in ("keda.yaml", "keda-prometheus.yaml") else 1)
    if name in SCALED:
        assert (found["apiVersion"], found["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
        assert set(spec) <= OF_KEDA
        assert trigger(name)


def test_keda_asks_the_exporter_for_a_queue_that_it_looks_at() -> None:
    asked = trigger("keda.yaml")
    url = urlsplit(asked["url"])
    _, service = documents("exporter.yaml")
    assert (url.hostname, url.port) == (service["metadata"]["name"], service["spec"]["ports"][0]["port"])
    addresses = [queue_addresses.read(word) for word in exporter() if word.startswith("redis://")]
    assert url.path.removeprefix("/scale/") in [str(address._replace(url=None)) for address in addresses]
    assert asked["valueLocation"] in {field.name for field in dataclasses.fields(Need)}


def test_the_queries_are_about_the_metric_of_the_queue() -> None:
    name = f"apressure_{WANTED.name}"
    assert name in series()
    query = trigger("keda-prometheus.yaml")["query"]
    assert query.startswith(f"max({name}{{")
    (hpa,) = documents("hpa.yaml")
    (metric,) = hpa["spec"]["metrics"]
    named = metric["external"]["metric"]
    labels = named["selector"]["matchLabels"]
    assert named["name"] == name
    assert tuple(labels) == WANTED.labels
    assert tuple(labels.values()) == selected(query) == ("orders", "AsyncQueue")
    (adapter,) = documents("adapter.yaml")
    assert [rule["seriesQuery"] for rule in adapter["rules"]["external"]] == [name]


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_the_list_that_keda_measures_has_the_messages_that_wait(open_queue: Opener, db: redis.Redis) -> None:
    asked = trigger("keda-list.yaml")
    queue = await open_queue("orders")
    await queue.put_many([b"a", b"b", b"c"])
    await queue.put(b"later", delay=3600)  # which it does not see
    assert db.llen(asked["listName"]) == 3
