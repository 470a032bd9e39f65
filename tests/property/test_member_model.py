"""All states that members of the consumer role can be in: the design holds in each, and bad designs are found out."""

from __future__ import annotations

import pytest

from tests.chaos.support import LONG
from tests.property.member_model import Cast, Design, search

SHORT = {
    "members alone": Cast(numbers=1),
    "old client": Cast(members=1, numbers=1, old=True),
    "plain client": Cast(members=1, numbers=1, plain=True),
    "closed": Cast(members=1, numbers=1, closes=True),
    "lost replies": Cast(clients=1, members=1, losses=True),
}
LONGER = {
    "two deliveries": Cast(),
    "old client, two members": Cast(numbers=1, old=True),
    "old client, two deliveries": Cast(old=True),
    "plain client, two members": Cast(plain=True),
    "closed, two deliveries": Cast(closes=True),
    "lost replies, two members": Cast(clients=1, losses=True),
}
CASTS = {**SHORT, **(LONGER if LONG else {})}


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_the_design_holds_in_every_state(cast: Cast) -> None:
    result = search(cast)
    print(result.states)
    assert not result.broken, str(result)


@pytest.mark.parametrize(
    ("design", "cast", "broken"),
    [
        pytest.param(Design(share_comes_back=False), Cast(), "a message is lost", id="a-dead-member-s-share-stays"),
        pytest.param(Design(late_steps_are_refused=False), Cast(), "in two places", id="late-settlements-count"),
        pytest.param(Design(returns_are_marked=False), Cast(), "was not marked", id="returns-unmarked"),
        pytest.param(Design(buffer_is_assured=False), Cast(), "was not marked", id="an-old-buffer-is-handed-out"),
        pytest.param(
            Design(last_returns_role=False), Cast(members=1, numbers=1), "never gets free", id="the-last-keeps-the-role"
        ),
        pytest.param(
            Design(latest_deadline=False),
            Cast(numbers=1, old=True),
            "lost its share",
            id="the-earliest-deadline-counts",
        ),
        pytest.param(
            Design(receives_are_ordered=False),
            Cast(clients=1, members=1, losses=True),
            "in hand that went back",
            id="receives-overtake",
        ),
    ],
)
def test_a_bad_design_is_found_out(design: Design, cast: Cast, broken: str) -> None:
    result = search(cast, design)
    print(result)
    assert broken in result.broken
