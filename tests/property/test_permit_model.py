"""All states of the permit beside plain clients: the design holds in each, and the designs that fail are found out."""

from __future__ import annotations

import pytest

from tests.property.permit_model import ROOM, STUCK, Design, search


@pytest.mark.parametrize(("bound", "consumer"), [(1, True), (1, False), (2, False), (5, False)])
def test_the_design_holds_in_every_state(bound: int, consumer: bool) -> None:
    result = search(bound, Design(), consumer)
    assert result.broken == "", result.steps
    assert result.states >= 10  # a model that forgets what can happen would pass as well


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_it_holds_while_the_bound_grows(bound: int) -> None:
    alone, both = search(bound, Design(), consumer=False, grows=2), search(bound, Design(), True, excess=1, grows=2)
    assert (alone.broken, both.broken) == ("", ""), (alone.steps, both.steps)
    assert both.states > alone.states > search(bound, Design(), consumer=False).states


@pytest.mark.parametrize(
    ("bound", "design", "broken"),
    [
        pytest.param(1, Design(withholds=False), ROOM, id="a-permit-for-nothing"),
        pytest.param(5, Design(withholds=False), ROOM, id="a-permit-for-nothing-5"),
        pytest.param(1, Design(leaves_a_place=False), ROOM, id="a-put-that-needs-no-permit"),
        pytest.param(1, Design(took_brings=False), STUCK, id="no-permit-for-a-message"),
        pytest.param(1, Design(doctor_brings=False), STUCK, id="a-doctor-without-permits"),
    ],
)
def test_a_bad_design_is_found_out(bound: int, design: Design, broken: str) -> None:
    result = search(bound, design, consumer=bound == 1)
    print(result)
    assert result.broken == broken


@pytest.mark.parametrize("bound", [2, 3, 5])
def test_plain_clients_exceed_a_larger_bound_by_one_without_us(bound: int) -> None:
    assert search(bound, Design(), consumer=True, ours=False).broken == ROOM
    assert search(bound, Design(), consumer=True, ours=False, excess=1).broken == ""


def test_plain_clients_keep_a_bound_of_one_without_us() -> None:
    assert search(1, Design(), consumer=True, ours=False).broken == ""
