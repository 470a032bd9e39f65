"""What tests of the command line start with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.commands import Commands


@pytest.fixture
def queue(cli: Commands) -> Iterator[str]:
    """A queue of ten, that is deleted after the test."""
    cli.create("orders", 10)
    yield "orders"
    cli.delete("orders")
