"""The pages of integrations show the code of the examples, which other tests run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("page", "count"), [("integrations", 1), ("sync", 1), ("django", 2), ("flask", 2)])
def test_each_block_is_code_of_an_example(page: str, count: int) -> None:
    examples = [path.read_text() for path in (ROOT / "examples").rglob("*.py")]
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "do" / f"{page}.md").read_text(), re.DOTALL)
    assert len(blocks) == count
    for block in blocks:
        assert any(block in example for example in examples), block
