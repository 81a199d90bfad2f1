"""README's Python block runs as it is printed."""

import re

from conftest import ROOT


def test_block(both):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    out, _ = both.run("-c", block)
    assert "the same bytes: True" in out
