"""Whether a long history slows down commits and starts: an application with many commits beside one with ten.

``python -m bench.commit_history [COMMITS]`` makes 20,000 commits of one row in each of two tables, uncompacted, then
commits to both applications in turn, so that changes in the machine's speed affect both. Prints one JSON object, times
in ms. Takes a few minutes.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.log import COMMITS, newest_commit
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.types import StateId, StoreSpec, TableSpec

COMMITS_BEFORE, YOUNG, ROUNDS = 20_000, 10, 300
FACTS = TableSpec(name="facts", schema=pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64()}))
CHANGES = changelog_spec(StoreSpec(name="s", key=pl.Schema({"k": pl.Int64()}), value=pl.Schema({"n": pl.Int64()})))


class History:
    """An application whose commits each add a file to an output and to a changelog."""

    def __init__(self, warehouse: Path, application: str) -> None:
        self.folder, self.epoch = warehouse / application, 0
        self.driver = Committer(warehouse, application, [FACTS, CHANGES], fingerprint="f")
        self.driver.claim()

    def commit(self) -> float:
        """How long a commit took in ms, without writing its files."""
        self.epoch += 1
        changes = pl.DataFrame(
            {"k": [self.epoch % 1000], "n": [1], "_ts": [0], "_epoch": [self.epoch], "_deleted": [False]}
        )
        files = (
            write_file(self.folder, FACTS, pl.DataFrame({"n": [1], "_epoch": [self.epoch]})),
            write_file(self.folder, CHANGES, changes, {"task": "0_0", "segment": str(self.epoch // SEGMENT_EPOCHS)}),
        )
        state = TaskCommit(state=StateId(1, self.epoch), instance="first", positions={"t": {0: self.epoch}})
        record = CommitRecord(
            kind="commit",
            generation=1,
            epoch=self.epoch,
            at_ms=time.time_ns() // 1_000_000,
            fingerprint="f",
            files=files,
            tasks={f"0_{number}": state for number in range(4)},
        )
        began = time.perf_counter()
        self.driver.commit(record)
        return (time.perf_counter() - began) * 1000


def measure(commits: int = COMMITS_BEFORE, few: int = YOUNG) -> dict[str, float]:
    """The median times of a commit after few and after many, and the times to find the newest commit and to claim."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        warehouse = Path(name)
        old, young = History(warehouse, "old"), History(warehouse, "young")
        for history, count in ((old, commits), (young, few)):
            for _ in range(count):
                history.commit()
        pairs = [(young.commit(), old.commit()) for _ in range(ROUNDS)]
        for history in (old, young):
            history.driver.close()
        began = time.perf_counter()
        newest_commit(warehouse, "old")
        looked = time.perf_counter()
        with_claim = Committer(warehouse, "old", [FACTS, CHANGES], fingerprint="f")
        with_claim.claim()
        claimed = time.perf_counter()
        with_claim.close()
        young_ms, old_ms = (statistics.median(side) for side in zip(*pairs, strict=True))
        return {
            "commits": commits,
            "commit_young_ms": round(young_ms, 2),
            "commit_old_ms": round(old_ms, 2),
            "ratio": round(old_ms / young_ms, 2),
            "newest_commit_ms": round((looked - began) * 1000, 1),
            "claim_ms": round((claimed - looked) * 1000, 1),
            "log_files": len(DeltaTable(warehouse / "old" / COMMITS.name).file_uris()),
        }


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:])), indent=2))
