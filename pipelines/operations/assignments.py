"""The newest times that tasks or standbys of an application got other places, as its drivers have recorded them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from weir.infra.control import ControlDatabase
from weir.pipelines.operations.errors import OperationError


def application_assignments(database: ControlDatabase, application: str) -> dict[str, Any]:
    """Those that the control database keeps, oldest first, as plain values.

    Raises:
        OperationError: There are none.
    """
    found = database.assignments(application)
    if not found:
        raise OperationError(
            f"no run of {application!r} has recorded an assignment; start one with `weir run MODULE:APP`"
        )
    return {
        "application": application,
        "assignments": [
            {
                "at": datetime.fromtimestamp(row.at_ms / 1000, UTC),
                "reason": row.reason,
                "seconds": row.seconds,
                "executors": dict(row.executors),
                "moves": list(row.moves),
            }
            for row in found
        ],
    }
