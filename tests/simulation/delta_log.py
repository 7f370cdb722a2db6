"""What a table's Delta log says, read without the code under test."""

from __future__ import annotations

import json
from pathlib import Path

from weir.state.commit.checkpoints import LOG


def transactions(table: Path, application: str) -> list[int]:
    """The versions of the application's transactions, in the order of the log."""
    entries = sorted((table / LOG).glob("*.json"))
    actions = (json.loads(line) for entry in entries for line in entry.read_text().splitlines())
    found = [action["txn"] for action in actions if "txn" in action]
    return [each["version"] for each in found if each["appId"] == application]
