"""The manifests of examples/deploy/scaling: what they name exists, and they agree with one another."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import urllib.error
import urllib.request
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
from tests.integration.commands import COMMAND, Commands, environment, running, wait_until
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


POD: Final = {
    "metadata": {"labels": None, "annotations": None},
    "spec": {
        "terminationGracePeriodSeconds": int,
        "containers": [{
            "name": str, "image": str, "command": [str], "args": [str], "env": None, "ports": [{"containerPort": int}],
            "readinessProbe": None, "livenessProbe": None,
            "resources": None, "lifecycle": None,
        }],
    },
}  # fmt: skip
META: Final = {"name": str}
TARGET: Final = {"apiVersion": str, "kind": str, "name": str}
BEHAVIOR: Final = {"scaleDown": {"stabilizationWindowSeconds": int}, "scaleUp": {"stabilizationWindowSeconds": int}}
SCHEMA: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("apps/v1", "Deployment"): {
        "metadata": META,
        "spec": {
            "replicas": int, "strategy": {"type": str}, "selector": {"matchLabels": None}, "template": POD,
        },
    },
    ("v1", "Service"): {"metadata": META, "spec": {"selector": None, "ports": [{"port": int}]}},
    ("autoscaling/v2", "HorizontalPodAutoscaler"): {
        "metadata": META,
        "spec": {
            "scaleTargetRef": TARGET, "minReplicas": int, "maxReplicas": int, "behavior": BEHAVIOR,
            "metrics": [{
                "type": str,
                "external": {
                    "metric": {"name": str, "selector": {"matchLabels": None}},
                    "target": {"type": str, "averageValue": str, "value": str},
                },
            }],
        },
    },
    ("keda.sh/v1alpha1", "ScaledObject"): {
        "metadata": META,
        "spec": {
            "scaleTargetRef": TARGET, "pollingInterval": int, "cooldownPeriod": int, "minReplicaCount": int,
            "maxReplicaCount": int, "fallback": {"failureThreshold": int, "replicas": int},
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": BEHAVIOR}},
            "triggers": [{"type": str, "metadata": None}],
        },
    },
}  # fmt: skip
"""The fields that Kubernetes 1.23 and KEDA 2 have, of those that the files use, and their types; None for any."""


def misfits(found: Any, schema: Any, place: str = "") -> list[str]:
    """The places where a manifest has a field that the schema lacks, or one of another type."""
    if schema is None:
        return []
    if isinstance(schema, type):
        return [] if type(found) is schema else [f"{place}: {found!r} is no {schema.__name__}"]
    if isinstance(schema, list):
        if not isinstance(found, list):
            return [f"{place} is no list"]
        return [one for number, each in enumerate(found) for one in misfits(each, schema[0], f"{place}[{number}]")]
    if not isinstance(found, dict):
        return [f"{place} has no fields"]
    unknown = [f"{place}.{name} is unknown" for name in found.keys() - schema.keys()]
    known = found.keys() & schema.keys()
    return unknown + [one for name in known for one in misfits(found[name], schema[name], f"{place}.{name}")]


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


@pytest.mark.parametrize("path", [*sorted(SCALING.iterdir()), DEPLOY / "kubernetes.yaml"], ids=lambda path: path.name)
def test_the_manifests_have_fields_that_kubernetes_and_keda_have(path: Path) -> None:
    for found in yaml.safe_load_all(path.read_text()) if path.name != "adapter.yaml" else ():  # values of a chart
        kind = found.pop("apiVersion"), found.pop("kind")
        assert misfits(found, SCHEMA[kind], kind[1]) == []
    assert misfits({"specs": 1, "metadata": {"name": 1}}, SCHEMA["v1", "Service"], "it") == [
        "it.specs is unknown", "it.metadata.name: 1 is no str",
    ]  # fmt: skip


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_keda_gets_its_number_from_the_exporter_that_runs(cli: Commands, open_queue: Opener) -> None:
    queue = await open_queue("orders")
    await queue.put_many([b"a", b"b", b"c"])
    _, *arguments = exporter()
    here = [word.replace("redis://valkey:6379/0", cli.url) for word in arguments if not word.startswith("--host")]

    def ask(place: str) -> bytes:
        found = b""

        def answered() -> bool:
            nonlocal found
            try:
                with urllib.request.urlopen(place, timeout=30) as answer:
                    found = answer.read()
            except urllib.error.HTTPError:
                return False  # 503: it has not looked at the queue yet
            return True

        wait_until(answered)
        return found

    with running([*COMMAND, *here, "--port", "0", "--interval", "0.1"], env=environment(cli.url)) as process:
        assert process.stdout is not None
        told = await asyncio.to_thread(process.stdout.readline)
        address = told.decode().split()[-1].removesuffix("/metrics")
        asked = trigger("keda.yaml")
        told = await asyncio.to_thread(ask, address + urlsplit(asked["url"]).path)
        number = json.loads(told)[asked["valueLocation"]]  # a field at the top, as KEDA's parser finds it
        assert (type(number), number) == (int, 1)
        await asyncio.to_thread(ask, f"{address}/healthz")  # the probe
        lines = (await asyncio.to_thread(ask, f"{address}/metrics")).decode().splitlines()
        labels = {f'{name}="{value}"' for name, value in zip(WANTED.labels, ("orders", "AsyncQueue"), strict=True)}
        (line,) = [line for line in lines if line.startswith(f"apressure_{WANTED.name}{{")]
        assert set(line.partition("{")[2].partition("}")[0].split(",")) == labels
        query = trigger("keda-prometheus.yaml")["query"].replace(" ", "")
        assert set(query.partition("{")[2].partition("}")[0].split(",")) == labels


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
