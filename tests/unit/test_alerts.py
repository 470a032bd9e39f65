"""The rules and the dashboard of examples/deploy ask for metrics and labels that there are, and alert as they say."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apressure.cli import commands as commands_package
from apressure.telemetry.families import FAMILIES, Family, Kind
from tests import processes

ROOT = Path(__file__).parents[2]
OF_SCRAPES = {"le", "job", "instance"}
FUNCTIONS = {
    "increase", "rate", "deriv", "delta", "absent", "time", "sum", "histogram_quantile", "by", "and", "or", "Inf",
    "label_values", "unless", "avg_over_time", "bool",
}  # fmt: skip
RULES = ROOT / "examples" / "deploy" / "alerts.yaml"
CASES = ROOT / "tests" / "unit" / "alert_cases.yaml"
COMMAND = re.compile(r"`apressure ([a-z-]+(?: [a-z-]+)?)")


def series() -> dict[str, Family]:
    """The names of all series."""
    found = {}
    for family in FAMILIES:
        endings = {Kind.COUNTER: ["_total"], Kind.HISTOGRAM: ["_bucket", "_sum", "_count"]}.get(family.kind, [""])
        found.update({f"apressure_{family.name}{ending}": family for ending in endings})
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "examples" / "deploy" / "grafana.json").read_text())
    return found


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    yield dashboard()["templating"]["list"][1]["query"]["query"].removeprefix("label_values(").removesuffix(", queue)")


@pytest.mark.parametrize("expression", [*expressions()])
def test_an_expression_asks_for_series_that_there_are_with_their_labels(expression: str) -> None:
    known = series()
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    for opening, closing in ("()", "{}", "[]"):
        assert bare.count(opening) == bare.count(closing)
    names = re.findall(r"\bapressure_\w+", bare)
    assert names
    for name in names:
        assert name in known
    labels = {label for name in names for label in known[name].labels} | OF_SCRAPES
    asked = re.findall(r"(\w+)(?==~|!~|=\"|!=)", bare.replace("==", " "))
    asked += [label for some in re.findall(r"by \(([^)]*)\)", bare) for label in some.split(", ")]
    assert set(asked) <= labels
    for function, name in re.findall(r"(increase|rate|deriv|delta)\((apressure_\w+)", bare):
        gauge = known[name].kind is Kind.GAUGE
        assert gauge == (function in ("deriv", "delta")), f"{function} of {name}"
    words = set(
        re.findall(r"\b[A-Za-z]\w*", re.sub(r"\{[^}]*\}|\[[^\]]*\]|(by|on) \([^)]*\)|offset \d+m", "", bare))
    ) - set(names)
    assert words <= FUNCTIONS
    for duration in re.findall(r"\[([^\]]+)\]", bare):
        assert re.fullmatch(r"\d+[smhd](?::\d+[smhd])?|\$__rate_interval", duration)


def test_each_trouble_has_a_rule_that_says_what_it_is() -> None:
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"[A-Z][A-Za-z]+", rule["alert"])
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert ("{{ $labels.queue }}" in rule["annotations"]["summary"]) == ("absent(" not in rule["expr"])
    asked = " ".join(rule["expr"] for rule in rules())
    for what in (
        "oldest_message_age", "drain", "dead_letter", "consumers", "deriv(apressure_queue_messages", "up ==", "bound",
        "late_renewals", "schedule_next", "paused", "held",
    ):  # fmt: skip
        assert what in asked


def test_each_description_names_commands_that_there_are() -> None:
    named = {command for rule in rules() for command in COMMAND.findall(rule["annotations"]["description"])}
    assert named
    (folder,) = commands_package.__path__
    commands = Path(folder)  # of the installed package
    for command in named:
        module, *rest = command.split()
        source = (commands / f"{module}.py").read_text()
        assert f"def {(rest or [module])[0].replace('-', '_')}(" in source


def test_the_page_lists_each_rule() -> None:
    page = (ROOT / "docs" / "do" / "operate.md").read_text()
    assert re.findall(r"^\| `([A-Z][A-Za-z]+)` \|", page, re.MULTILINE) == [rule["alert"] for rule in rules()]


def test_each_rule_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = yaml.safe_load(CASES.read_text())
    assert (CASES.parent / cases["rule_files"][0]).resolve() == RULES
    fires: dict[str, set[bool]] = {}
    for case in cases["tests"]:
        for expected in case["alert_rule_test"]:
            fires.setdefault(expected["alertname"], set()).add(bool(expected.get("exp_alerts")))
    assert fires == {rule["alert"]: {True, False} for rule in rules()}


def test_the_rules_alert_as_prometheus_reads_them() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool (not installed: apt-get install prometheus)")
    for arguments in (["check", "rules", RULES], ["test", "rules", CASES]):
        done = processes.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
