"""The examples of docs/sinks.md are one program, and do what the page says."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "sinks.md"


def test_the_examples_run():
    names = {"__name__": "sinks_page"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    assert "Sink: KSTREAM-SINK" in names["shop"].topology.describe()
