"""All states that members of the consumer role can be in: the design holds in each, and bad designs are found out."""

from __future__ import annotations

import pytest

from tests.chaos.support import LONG
from tests.property.member_model import Cast, Design, search

SHORT = {
    "members alone": Cast(),
    "old client": Cast(numbers=1, old=True),
    "plain client": Cast(members=1, numbers=1, plain=True),
    "closed": Cast(numbers=1, closes=True),
    "lost replies": Cast(numbers=1, losses=True),
}
LONGER = {
    "two messages": Cast(messages=2),
    "old client, two deliveries": Cast(old=True),
    "plain client, two members": Cast(plain=True),
    "closed, two deliveries": Cast(closes=True),
    "lost replies, two deliveries": Cast(losses=True),
}


@pytest.mark.parametrize("cast", [pytest.param(cast, id=name) for name, cast in {**SHORT, **(LONGER if LONG else {})}.items()])
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
        pytest.param(Design(last_returns_role=False), Cast(), "never gets free", id="the-last-keeps-the-role"),
        pytest.param(
            Design(latest_deadline=False), Cast(numbers=1, old=True), "lost its share", id="the-earliest-deadline-counts"
        ),
        pytest.param(
            Design(receives_are_ordered=False), Cast(losses=True), "in hand that went back", id="receives-overtake"
        ),
        pytest.param(
            Design(deleted_ends_all=False), Cast(numbers=1, plain=True), "the token is", id="deletion-ends-one-lease"
        ),
    ],
)
def test_a_bad_design_is_found_out(design: Design, cast: Cast, broken: str) -> None:
    result = search(cast, design)
    print(result)
    assert broken in result.broken
