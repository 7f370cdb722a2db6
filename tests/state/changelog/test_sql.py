"""The queries of docs/sql.md return the store's state, before and after a compaction."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from weir.state.changelog.compaction import Compaction
from weir.state.changelog.rows import changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.types import StoreSpec

PAGE = (Path(__file__).parents[3] / "docs" / "sql.md").read_text(encoding="utf-8").partition("\n## Output tables\n")[0]
CHANGES = changelog_spec(
    StoreSpec(name="by_carrier", key=pl.Schema({"carrier": pl.String()}), value=pl.Schema({"flights": pl.Int64()}))
)
STATE = [("AA", 31), ("B6", 12), ("UA", 30)]


@pytest.fixture
def warehouse(tmp_path) -> Path:
    driver = Committer(tmp_path / "warehouse", "flights", [CHANGES], fingerprint="f")
    driver.claim()
    for epoch, carriers in enumerate([("AA", "B6"), ("DL", "UA"), ("AA", "UA", "DL")], 1):
        rows = pl.DataFrame(
            {
                "carrier": carriers,
                "flights": range(epoch * 10 + 1, epoch * 10 + len(carriers) + 1),
                "_ts": epoch,
                "_epoch": epoch,
                "_deleted": [name == "DL" for name in carriers],
            }
        )
        rows = rows.with_columns(flights=pl.when(pl.col("carrier") == "UA").then(epoch * 10).otherwise("flights"))
        driver.commit(
            CommitRecord(
                kind="commit",
                generation=1,
                epoch=epoch,
                at_ms=0,
                fingerprint="f",
                files=(write_file(tmp_path / "warehouse" / "flights", CHANGES, rows, {"task": "0_0", "segment": "0"}),),
            )
        )
    driver.close()
    return tmp_path / "warehouse"


def compact(warehouse: Path) -> None:
    compaction = Compaction(warehouse, "flights", is_whole=True)
    (report, _) = compaction.run(compaction.tables())
    assert (report.rows_before, report.files_after) == (7, 1)


def example(language: str, warehouse: Path) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert ".weir/warehouse" in text
    return text.replace(".weir/warehouse", str(warehouse))


def test_state_is_one_query_through_polars(warehouse):
    def state() -> list[tuple[str, int]]:
        names: dict[str, pl.DataFrame] = {}
        exec(example("python", warehouse), names)
        return names["state"].select("carrier", "flights").rows()

    assert state() == STATE
    compact(warehouse)
    assert state() == STATE


@pytest.mark.spark
def test_state_is_one_query_through_delta_spark(warehouse, session):
    """Delta's own reader agrees with the log entries and checkpoints that appends and compactions leave."""
    query = example("sql", warehouse)
    assert [tuple(row) for row in session.sql(query).select("carrier", "flights").collect()] == STATE
    compact(warehouse)
    assert [tuple(row) for row in session.sql(query).select("carrier", "flights").collect()] == STATE
    history = session.sql(f"DESCRIBE HISTORY delta.`{warehouse}/flights/_changelog/by_carrier`")
    assert [row.operation for row in history.orderBy("version").collect()][1:4] == ["WRITE"] * 3
