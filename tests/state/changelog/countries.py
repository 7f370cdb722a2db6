"""Countries' values as commits bring them, and as a plain list of what was ever written says they should be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from weir.state.changelog.upserts import Upserts
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TableSwap
from weir.state.commit.swap import note_of_swaps
from weir.state.commit.tables import AppendTable
from weir.state.types import StateId, TableSpec

Key = tuple[str | None, int]
"""A country, and a year."""

UPDATES = TableSpec(
    name="_updates/countries",
    keys=("country", "year"),
    schema=pl.Schema(
        {
            "country": pl.String(),
            "year": pl.Int64(),
            "n": pl.Int64(),
            "_ts": pl.Datetime("ms", "UTC"),
            "_epoch": pl.Int64(),
            "_seq": pl.Int64(),
            "_deleted": pl.Boolean(),
        }
    ),
)


@dataclass(frozen=True)
class Written:
    """A row that a commit has brought."""

    epoch: int
    key: Key
    value: int | None
    """None for a deletion."""


@dataclass
class Countries:
    """An application with one output; ``written`` is its history, which a swap rewrites."""

    warehouse: Path
    epoch: int = 0
    written: list[Written] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start()

    @property
    def app(self) -> Path:
        return self.warehouse / "app"

    @property
    def folder(self) -> Path:
        return self.app / "countries"

    def start(self) -> None:
        """A new driver, which fences the one before it."""
        self.driver = Committer(self.warehouse, "app", (UPDATES,), fingerprint="f")
        self.generation = self.driver.claim().generation

    def upserts(self, on_step: Callable[[str], None] = lambda step: None, **sizes: int) -> Upserts:
        return Upserts(self.app, UPDATES, "app", on_step=on_step, **{"rows_a_file": 8, "held_rows": 30, **sizes})

    def commit(self, rows: Iterable[tuple[Key, int | None]]) -> None:
        """One commit with ``rows`` in this order, over two epochs."""
        files = []
        rows = list(rows)
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            self.epoch += 1
            if part:
                files.append(write_file(self.app, UPDATES, self._frame(part, self.epoch)))
            self.written += [Written(self.epoch, key, value) for key, value in part]
        self.driver.commit(self._record(files=tuple(files)))

    def swap(self, rows: Mapping[Key, int], cut_epoch: int) -> None:
        """Replace everything up to the epoch by ``rows``; raises ``SwapRefusedError`` if that is no longer possible."""
        added = (write_file(self.app, UPDATES, self._frame(list(rows.items()), cut_epoch)),) if rows else ()
        swap = TableSwap(
            backfill=f"b{self.epoch}",
            table=UPDATES.name,
            column=None,
            start_ms=self.epoch,
            end_ms=self.epoch + 1,
            cut_epoch=cut_epoch,
            files=added,
        )
        self.driver.check_swap(note_of_swaps([swap], 0), [swap], 1e12)
        self.epoch += 1
        self.driver.commit(self._record(swaps=(swap,)))
        later = [row for row in self.written if row.epoch > cut_epoch]
        self.written = [*(Written(cut_epoch, key, value) for key, value in rows.items()), *later]

    def standing(self) -> dict[Key, int]:
        """What the table should show: the last value of each key, by looking at every row."""
        found: dict[Key, int] = {}
        for row in sorted(self.written, key=lambda row: row.epoch):
            if row.value is None:
                found.pop(row.key, None)
            else:
                found[row.key] = row.value
        return found

    def shown(self) -> dict[Key, int]:
        """What a reader of Delta sees."""
        rows = pl.read_delta(str(self.folder)).select("country", "year", "n").rows()
        found = {(country, year): n for country, year, n in rows}
        assert len(found) == len(rows), "a key has two rows"
        return found

    def transactions(self) -> list[int]:
        """The versions of the commits that the table has shown, oldest first."""
        found = []
        for version in range(DeltaTable(self.folder).version() + 1):
            at = DeltaTable(self.folder, version=version).transaction_version("app") or 0
            if not found or found[-1] != at:
                found.append(at)
        return found

    def promised(self) -> int:
        """The version of the newest commit that wrote updates."""
        return AppendTable(self.app / UPDATES.name, UPDATES.name, "app").version

    def _frame(self, rows: list[tuple[Key, int | None]], epoch: int) -> pl.DataFrame:
        return pl.DataFrame(
            {
                "country": [key[0] for key, _ in rows],
                "year": [key[1] for key, _ in rows],
                "n": [value for _, value in rows],
                "_ts": [epoch] * len(rows),
                "_epoch": [epoch] * len(rows),
                "_seq": list(range(len(rows))),
                "_deleted": [value is None for _, value in rows],
            },
            schema={name: pl.Int64() if name == "_ts" else dtype for name, dtype in UPDATES.schema.items()},
        )

    def _record(self, **what) -> CommitRecord:
        state = StateId(self.generation, self.epoch)
        return CommitRecord(
            kind="commit", generation=state.generation, epoch=state.epoch, at_ms=0, fingerprint="f", **what
        )
