"""What other programs wrote into the keys of Spark's groups: an error says so, and no row is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from apressure import ServerError
from apressure.spark import sealed_batches
from apressure.spark.engine import looks
from apressure.spark.lag import LagMeter
from apressure.spark.options import Options
from apressure.spark.source.queues import Queues
from tests.integration.spark.support import GROUP, Jobs, seal, texts

pytest.importorskip("redis", "5.3", reason="Spark needs redis-py 5.3")
pytestmark = pytest.mark.leaves_keys

FAR = "99999999"
"""A batch that cannot be there."""


@pytest.mark.parametrize(
    ("field", "value", "fails"),
    [
        ("committed", "abc", "stat lag start seal commit give"),
        ("committed", "-5", "stat lag start seal commit give"),
        ("sealed", "nan", "stat lag start seal commit give"),
        ("sealed", FAR, "stat lag give"),
        ("giving", "x", "stat lag give"),
        ("rows", "x", "stat lag seal"),
        ("first-1", "x", "read"),
        ("size-1", "1e5", "stat lag"),
        ("at-1", "x", ""),
        ("epoch", "9" * 40, "read seal commit"),  # until the query is started again
    ],
)
def test_a_damaged_state_is_an_error(jobs: Jobs, field: str, value: str, fails: str) -> None:
    epoch = jobs.begin(texts(5))
    assert seal(jobs.source, epoch, 0, 3) == 1
    settings, state = jobs.server.settings, jobs.source.state
    good = jobs.plain.hgetall(state)
    options = Options.of({"url": jobs.url, "queue": "jobs", "group": GROUP})
    uses: dict[str, Callable[[], object]] = {
        "stat": lambda: sealed_batches.all_groups(settings, "jobs"),
        "lag": lambda: LagMeter(settings).look("run", "query", ["jobs"]),
        "read": lambda: jobs.source.batch_rows(epoch, 1, 1) == [(0, 3)] or 1 / 0,
        "seal": lambda: jobs.source.seal(epoch, 1, 3),
        "commit": lambda: jobs.source.commit(epoch, 1, 1),
        "start": lambda: Queues(options, GROUP).open({"jobs": 1}),
        "give": lambda: sealed_batches.give_back(settings, "jobs", GROUP),
    }
    for name, use in uses.items():
        jobs.plain.delete(state)
        jobs.plain.hset(state, mapping={**good, field: value})
        if name in fails.split():
            with pytest.raises(Exception, match=r"is damaged|another query reads"):
                use()
            assert sorted(jobs.waiting() + jobs.batch(1)) == texts(5)
        else:
            use()
            jobs.plain.delete(jobs.keys.queue.messages, jobs.keys.batch(GROUP, 1), jobs.keys.batch(GROUP, 2))
            jobs.plain.rpush(jobs.keys.queue.messages, *texts(2, 3)[::-1])
            jobs.plain.rpush(jobs.keys.batch(GROUP, 1), *texts(3)[::-1])


def test_a_group_whose_name_is_no_text_disturbs_no_other(jobs: Jobs) -> None:
    epoch = jobs.begin(texts(5))
    assert seal(jobs.source, epoch, 0, 3) == 1
    jobs.plain.hset(jobs.keys.groups, b"\xff", "")
    assert [group.messages for group in sealed_batches.all_groups(jobs.server.settings, "jobs")] == [3, 0]


@pytest.mark.parametrize("consumed", ["500", "many"])
def test_bytes_that_cannot_be_are_unknown(jobs: Jobs, consumed: str) -> None:
    epoch = jobs.begin(texts(5))
    jobs.plain.set(jobs.keys.queue.statistics[3], consumed)
    assert looks.backlogs(jobs.server, [[jobs.source]]) == {"jobs": {"messages": 5}}
    if consumed == "many":
        with pytest.raises(ServerError, match="is not an integer"):
            seal(jobs.source, epoch, 0, 0)
        return
    assert seal(jobs.source, epoch, 0, 0, limit_bytes=1000) == 1  # for which they are counted
    (group,) = sealed_batches.all_groups(jobs.server.settings, "jobs")
    assert group.bytes == sum(map(len, texts(5)))
