"""The program and the queries of docs/sql.md about one row per key, and the orders whose answers the page prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from weir import Application

_SECTION = (
    (Path(__file__).parents[3] / "docs" / "sql.md")
    .read_text(encoding="utf-8")
    .partition("\n## One row per key\n")[2]
    .partition("\n## ")[0]
)
PROGRAM, PANDAS, POLARS, DUCKDB, SQL = re.findall(r"```(?:python|sql)\n(.*?)```", _SECTION, re.DOTALL)
PANDAS_ANSWER, POLARS_ANSWER, DUCKDB_ANSWER, SQL_ANSWER = re.findall(r"```text\n(.*?)```", _SECTION, re.DOTALL)
ORDERS = [
    ("AT", 1_250),
    ("DE", 4_000),
    ("CH", 990),
    ("DE", 1_999),
    ("FR", 12_000),
    ("AT", 750),
    ("IT", 3_300),
    ("FR", 500),
    ("DE", 1),
    ("IT", 2_100),
]
"""Countries and cents, a second apart from ``FIRST_MS``."""
FIRST_MS = 1_704_103_200_000


def program() -> Application:
    """What the page declares."""
    names: dict[str, object] = {"__name__": __name__}
    exec(PROGRAM, names)
    app = names["app"]
    assert isinstance(app, Application)
    return app


def at(text: str, warehouse: Path) -> str:
    """The page's code over another warehouse."""
    assert ".weir/warehouse" in text
    return text.replace(".weir/warehouse", str(warehouse))


def printed(code: str, warehouse: Path) -> str:
    """What the page's code prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(at(code, warehouse), {})
    return out.getvalue()


def lines(text: str) -> list[str]:
    """Without trailing spaces, which the page does not have."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]


app = program()
