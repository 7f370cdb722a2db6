"""The section on SQL of docs/sinks.md: its example prints what the page says, and its types are those of the code."""

import re
from contextlib import redirect_stdout
from datetime import date, datetime, time
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import polars as pl
import pytest
from sqlalchemy.dialects import postgresql, sqlite

from weir.pipelines.publishing.sql_types import column_type
from weir.pipelines.serdes.shapes import field_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "sinks.md"
SECTION = re.search(r"^## SQL\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]
KINDS: dict[str, Any] = {
    "`str`": str,
    "`int`": int,
    "`float`": float,
    "`bool`": bool,
    "`bytes`": bytes,
    "`datetime`": datetime,
    "`date`": date,
    "`time`": time,
    "`Decimal` of 12 digits": Annotated[Decimal, pl.Decimal(12, 2)],
    "`UUID`": UUID,
    "a list": list[int],
}


def test_the_example_prints_what_the_page_says():
    said = StringIO()
    with redirect_stdout(said):
        for block in re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL):
            exec(compile(block, str(PAGE), "exec", dont_inherit=True), {"__name__": "sql_section"})
    assert said.getvalue() == "".join(re.findall(r"```text\n(.*?)```", SECTION, re.DOTALL))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_have_the_types_that_the_page_says(kind):
    (row,) = (line for line in SECTION.splitlines() if line.startswith(f"| {kind}"))
    _, in_postgresql, in_sqlite, _ = (cell.strip() for cell in row.strip("|").split("|"))
    for cell, dialect in ((in_postgresql, postgresql.dialect()), (in_sqlite, sqlite.dialect())):
        found = column_type(field_of(KINDS[kind], "a field"), dialect.name)
        assert cell.startswith(f"`{found.compile(dialect=dialect)}`")
