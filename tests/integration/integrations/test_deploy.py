"""The files of examples/deploy: what they name exists, and service managers wait long enough."""

from __future__ import annotations

import configparser
import re
import shlex
import signal
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.deploy import worker
from tests.integration.commands import Commands, ended, environment, running
from tests.integration.conftest import Opener

DEPLOY = Path(__file__).parents[3] / "examples" / "deploy"
ROOT = DEPLOY.parents[1]
SHARED = "redis://valkey:6379/0/orders"
"""The address of the queue in the files."""


def unit(name: str) -> configparser.SectionProxy:
    """The section [Service] of a unit of systemd."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / name).read_text())
    return parser["Service"]


def image(recipe: str = "Dockerfile") -> dict[str, Path]:
    """The files of the image's working directory, by name, as the Dockerfile copies them."""
    copied: dict[str, Path] = {}
    for words in re.findall(r"^COPY (.*) \S+$", (DEPLOY / recipe).read_text(), re.MULTILINE):
        for word in words.split():
            assert (ROOT / word).exists() or word in ("LICENSE", "apressure"), word  # the tests run without the package
            copied[Path(word).name] = ROOT / word
    return copied


def kubernetes() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The pods, and the container of each."""
    for deployment in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()):
        template = deployment["spec"]["template"]
        assert deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
        (container,) = template["spec"]["containers"]
        yield template["spec"], container


def probes() -> list[list[str]]:
    """The commands of all probes that run `apressure`."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    found = [compose["services"]["worker"]["healthcheck"]["test"][1:]]
    found += [container["readinessProbe"]["exec"]["command"] for _, container in kubernetes()]
    return found


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_the_worker_handles_orders_until_sigterm_and_the_probes_find_it(
    cli: Commands, open_queue: Opener
) -> None:
    queue = await open_queue("orders", codec="text")
    address = f"{cli.url}/orders"
    with running([sys.executable, str(DEPLOY / "worker.py")], env=environment(QUEUE=address)) as process:
        await queue.put("order 1")
        assert process.stdout is not None
        assert process.stdout.readline() == b"order 1 is done\n"
        for command in {tuple(command) for command in probes()}:
            assert command[0] == "apressure"
            cli(*(address if word == SHARED else word for word in command[1:]))
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 0
    assert not (await queue.statistics()).members


def test_service_managers_wait_until_the_handlers_have_finished() -> None:
    service = unit("orders-worker.service")
    assert float(service["TimeoutStopSec"]) > worker.SHUTDOWN_SECONDS
    assert service["ExecStart"].endswith("/worker.py")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["worker"]
    assert float(compose["stop_grace_period"].removesuffix("s")) > worker.SHUTDOWN_SECONDS
    assert compose["environment"]["QUEUE"] == SHARED
    assert unit("orders-worker.service")["Environment"].startswith("QUEUE=redis://")
    for pod, container in kubernetes():
        before = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        assert pod["terminationGracePeriodSeconds"] > worker.SHUTDOWN_SECONDS + float(before[1])


@pytest.mark.parametrize("recipe", ["Dockerfile", "web.Containerfile"])
def test_the_image_is_built_from_all_that_the_wheel_consists_of(recipe: str) -> None:
    copied = image(recipe).values()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for name in (*wheel["packages"], *wheel["force-include"]):
        assert any((ROOT / name).is_relative_to(path) for path in copied), name


def test_the_image_has_what_its_containers_run() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["worker"]
    assert (DEPLOY / compose["build"]["context"] / compose["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    copied = image()
    commands = [container["command"] for _, container in kubernetes()]
    commands += [
        yaml.safe_load(line) for line in re.findall(r"^CMD (.*)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    ]
    for command in commands:
        named = f"{command[1].partition(':')[0]}.py" if command[0] == "uvicorn" else command[1]
        assert copied[named].exists()


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_the_image_of_the_page_runs_the_page_and_no_page_without_tokens_for_others(cli: Commands) -> None:
    recipe = (DEPLOY / "web.Containerfile").read_text()
    (entry,) = re.findall(r"^ENTRYPOINT (.*)", recipe, re.MULTILINE)
    program, *arguments = yaml.safe_load(entry)
    assert program == "apressure"
    assert "'.[web]'" in recipe
    assert "\nUSER queues\n" in recipe
    assert b"give --token-file" in cli(*arguments, "--host", "0.0.0.0", code=2).stderr


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_the_unit_of_the_okq_server_has_options_that_it_takes(cli: Commands) -> None:
    service = unit("okq-server.service")
    assert service["Type"] == "notify"
    program, *options = shlex.split(service["ExecStart"])
    assert program.endswith("/apressure")
    assert b"drain-timeout" in cli(*options, "--example").stdout  # bad options would be refused
    assert float(service["TimeoutStopSec"]) > float(options[options.index("--drain-timeout") + 1])
