"""All states that a role can be in: the design holds in each, and the designs that fail are found out."""

from __future__ import annotations

import pytest

from tests.property.role_model import INVARIANTS, Design, Invariant, no_message_wronged, one_token, search


def test_the_design_holds_in_every_state() -> None:
    result = search(Design())
    assert not result.broken, str(result)
    # A model that forgets what can happen would pass as well.
    assert result.states > 10_000


@pytest.mark.parametrize(
    ("design", "invariants", "broken"),
    [
        pytest.param(Design(wait_pops=True), INVARIANTS, "the token is in 0 places", id="waiting-pops-the-token"),
        pytest.param(Design(wait_pops=True), (no_message_wronged,), "never gets free", id="which-leaves-it-stuck"),
        pytest.param(Design(acks_are_checked=False), (one_token,), "in 2 places", id="acks-without-token-check"),
        pytest.param(
            Design(acks_are_checked=False), (no_message_wronged,), "acknowledged by one who had", id="which-ack-others"
        ),
        pytest.param(Design(claims_end=False), INVARIANTS, "never gets free", id="claims-without-end"),
        pytest.param(Design(late_lease_stays=False), INVARIANTS, "in 0 places", id="leases-that-vanish"),
        pytest.param(Design(returns_in_front=False), INVARIANTS, "the order is lost", id="returned-at-the-wrong-end"),
        pytest.param(Design(deleted_heals=False), INVARIANTS, "never gets free", id="deleted-queues-do-not-heal"),
    ],
)
def test_a_bad_design_is_found_out(design: Design, invariants: tuple[Invariant, ...], broken: str) -> None:
    result = search(design, invariants)
    print(result)
    assert broken in result.broken
