"""docs/do/integrations.md shows the code of the examples, which other tests run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_each_block_is_code_of_an_example() -> None:
    examples = [path.read_text() for path in (ROOT / "examples").rglob("*.py")]
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "do" / "integrations.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        assert any(block in example for example in examples), block
