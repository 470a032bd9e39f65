"""Each class of the contract is used, and each kind of queue keeps all that it can."""

from __future__ import annotations

import pytest

from apressure.testing import contract
from apressure.testing.contract import (
    AddedLetterContract,
    BrowseContract,
    CostContract,
    DedupContract,
    DedupUntilDoneContract,
    ExpiryContract,
    FrozenContract,
    KeyContract,
    LimitContract,
    RequestContract,
    SpendContract,
    WholeContract,
)
from tests.contract import test_contract, test_envelopes, test_frozen, test_matrix, test_remote

CLASSES = {getattr(contract, name) for name in contract.__all__ if name.endswith("Contract")} - {WholeContract}

OF_THE_MATRIX = CLASSES & {*test_matrix.TestMatrix.__mro__, FrozenContract}
"""They run with each of `KINDS`."""

WITHOUT_IDS = {CostContract, DedupUntilDoneContract, ExpiryContract, KeyContract, RequestContract}
DEDUP = {DedupContract, DedupUntilDoneContract}

CANNOT: dict[type[object], set[type[object]]] = {
    test_contract.TestAsyncQueue: WITHOUT_IDS,
    test_contract.TestEventQueue: set(),
    test_contract.TestTaskQueue: set(),
    test_contract.TestMemoryQueue: set(),
    test_contract.TestFileQueue: {
        LimitContract, SpendContract, CostContract, KeyContract, RequestContract, *DEDUP,
    },
    test_remote.TestServerOfOurs: {
        SpendContract, CostContract, KeyContract, RequestContract, AddedLetterContract, BrowseContract, *DEDUP,
    },
}  # fmt: skip
"""What each kind of queue refuses, or has not."""


def test_each_class_is_used() -> None:
    modules = (test_contract, test_envelopes, test_frozen, test_matrix, test_remote)
    tests = [one for module in modules for name, one in vars(module).items() if name.startswith("Test")]
    assert CLASSES - {base for one in tests for base in one.__mro__} == set()


@pytest.mark.parametrize("kind", CANNOT)
def test_each_kind_keeps_what_it_can(kind: type[object]) -> None:
    assert CLASSES - OF_THE_MATRIX - {*kind.__mro__} == CANNOT[kind]
