"""The examples of docs/operators.md are one program, and it does what the page says."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operators.md"


def test_the_pages_examples_run_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) > 5
    names = {"__name__": "operators_page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert capsys.readouterr().out.count("Click(page='a/b'") == 10, "peek and for_each show each record"
