"""What a table's Delta log says, read without the code under test."""

from __future__ import annotations

import json
from pathlib import Path

from weir.state.commit.checkpoints import LOG


def transactions(table: Path) -> list[int]:
    """The versions of its transactions, in the order of the log; all are of one application."""
    entries = sorted((table / LOG).glob("*.json"))
    actions = (json.loads(line) for entry in entries for line in entry.read_text().splitlines())
    return [action["txn"]["version"] for action in actions if "txn" in action]
