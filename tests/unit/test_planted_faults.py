"""The faults that the simulation must find still fit the source.

`nox -s simulate -- --planted` proves that it finds them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import apressure
from tests.simulation.planted import FAULTS, Fault, StaleError

PACKAGE = Path(apressure.__path__[0])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_fits_the_source_once(fault: Fault) -> None:
    text = (PACKAGE / fault.path).read_text()
    assert fault.planted_in(text) != text


def test_a_fault_that_does_not_fit_is_stale() -> None:
    fault = Fault("", "", "two", "three", "")
    for text in ("one", "two, two"):
        with pytest.raises(StaleError, match="not once"):
            fault.planted_in(text)


def test_there_are_ten_of_different_names() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 10
