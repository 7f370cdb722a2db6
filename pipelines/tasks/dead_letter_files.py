"""Reads the table of dead letters: of its files and columns only what is asked for, since there may be very many.

What the table has, and how rows get there, is in ``weir.pipelines.tasks.dead_letters``.
"""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from weir.pipelines.tasks.dead_letters import DEAD_LETTERS, REPLAYED
from weir.state.commit.damage import naming_damage
from weir.state.commit.files import scan_files, stored_schema
from weir.state.commit.tables import file_actions
from weir.state.storage.places import Place, is_table, table_at

PLACE = ("_epoch", "topic", "partition", "offset")
"""What orders letters."""
_REASON = pl.col("reason")
KIND_OF_REASON = _REASON.str.replace_all(r"\d+", "#").str.replace(
    "answered #", pl.format("answered {}", _REASON.str.extract(r"answered (\d{3})\b").fill_null("#"))
)
"""Reasons that differ by numbers only are of one kind, but for the status that a server has answered."""
_IS_MARK = pl.col("stage").eq_missing(REPLAYED)


class DeadLetterFiles:
    """The table in an application's folder as it is now; empty before the first commit.

    Letters have the columns of ``DEAD_LETTERS`` and ``replayed``: null for one that waits, else "processed", or why it
    failed again.
    """

    def __init__(self, app_folder: Place) -> None:
        self._folder = app_folder / DEAD_LETTERS.name
        self._files = pl.DataFrame(schema=_FILES)
        if is_table(self._folder):
            with naming_damage(self._folder):
                self._files = _known(file_actions(table_at(self._folder)))

    def count(self) -> int:
        """How many letters there are, those included that were replayed. Reads files with marks only."""
        marks = self._rows(self._files.filter("has_marks")).filter(_IS_MARK)
        return int(self._files["rows"].sum()) - int(self._collected(marks.select(pl.len())).item())

    def count_by_reason(self) -> pl.DataFrame:
        """How many wait of each ``stage``, ``operator`` and ``KIND_OF_REASON``, most first. Reads these columns
        only."""
        waiting = self._letters(self._files).filter(pl.col("replayed").is_null())
        counts = waiting.group_by("stage", "operator", KIND_OF_REASON).agg(pl.len().alias("letters"))
        return self._collected(counts.sort("letters", "stage", "operator", "reason", descending=[True, *[False] * 3]))

    def newest(self, columns: Collection[str], at_most: int | None = None) -> pl.DataFrame:
        """The newest letters, newest epoch first: of all files, or of those that have ``at_most`` of them."""
        files = self._files
        if at_most is not None:
            sure = files.filter(~pl.col("has_marks")).sort("oldest", descending=True)
            enough = sure.filter(pl.col("rows").cum_sum() >= at_most)
            if enough.height:
                files = files.filter(pl.col("newest") >= enough["oldest"][0])
        order = [True, *[False] * (len(PLACE) - 1)]
        letters = self._letters(files).select({*columns, *PLACE}).sort(PLACE, descending=order)
        return self._collected((letters if at_most is None else letters.head(at_most)).select(*columns))

    def waiting(self, ids: Collection[str] = (), without: Collection[str] = ()) -> pl.DataFrame:
        """The letters that wait, oldest first: those with these ids, or all with one, ``without`` some."""
        letters = self._letters(self._files).filter(pl.col("replayed").is_null() & pl.col("id").is_not_null())
        letters = letters.filter(~pl.col("id").is_in(list(without)))
        if ids:
            letters = letters.filter(pl.col("id").is_in(list(ids)))
        return self._collected(letters.sort(PLACE))

    def with_ids(self, ids: Collection[str]) -> pl.DataFrame:
        """The letters with these ids, oldest first."""
        return self._collected(self._letters(self._files, ids).sort(PLACE))

    def outcomes(self, ids: Collection[str]) -> dict[str, str]:
        """What became of the letters with these ids that were replayed. Reads files with marks only."""
        return dict(self._collected(self._marks(self._files).filter(pl.col("id").is_in(list(ids)))).iter_rows())

    def _letters(self, files: pl.DataFrame, ids: Collection[str] | None = None) -> pl.LazyFrame:
        rows = self._rows(files).filter(~_IS_MARK)
        if ids is not None:
            rows = rows.filter(pl.col("id").is_in(list(ids)))
        if not files["has_marks"].any():
            return rows.with_columns(replayed=pl.lit(None, pl.String()))
        return rows.join(self._marks(files), on="id", how="left")

    def _marks(self, files: pl.DataFrame) -> pl.LazyFrame:
        marks = self._rows(files.filter("has_marks")).filter(_IS_MARK)
        return marks.select("id", replayed=pl.col("reason").fill_null("processed")).unique("id")

    def _rows(self, files: pl.DataFrame) -> pl.LazyFrame:
        return scan_files(self._folder, files["path"], stored_schema(DEAD_LETTERS))

    def _collected(self, rows: pl.LazyFrame) -> pl.DataFrame:
        with naming_damage(self._folder):
            return rows.collect()


_FILES = {
    "path": pl.String(),
    "rows": pl.Int64(),
    "oldest": pl.Int64(),
    "newest": pl.Int64(),
    "has_marks": pl.Boolean(),
}


def _known(files: pl.DataFrame) -> pl.DataFrame:
    """What the commit log says of each file. Of the stages, ``REPLAYED`` is the last by the alphabet; files of versions
    without stages have no marks."""
    if files.is_empty():
        return pl.DataFrame(schema=_FILES)
    stage = pl.col("max.stage") if "max.stage" in files.columns else pl.lit(None, pl.String())
    return files.select(
        "path",
        pl.col("num_records").cast(pl.Int64).alias("rows"),
        pl.col("min._epoch").cast(pl.Int64).alias("oldest"),
        pl.col("max._epoch").cast(pl.Int64).alias("newest"),
        stage.eq(REPLAYED).fill_null(False).alias("has_marks"),
    )
