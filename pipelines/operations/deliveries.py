"""What an application's sinks have put aside, as dead letters of the stage ``delivery``.

The rows themselves stay where the publisher put them (``weir.state.commit.refused``): there is no copy.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import polars as pl

from weir.infra.settings import Settings
from weir.pipelines.operations.registry import require
from weir.pipelines.operations.rows import as_dictionaries
from weir.state.commit.outbox import REFUSED_FOLDER
from weir.state.commit.refused import Refused
from weir.state.storage.contract import Folder
from weir.state.storage.places import folder_at, tables_in

DELIVERY = "delivery"
"""The stage of such a letter."""
_SHOWN_ROWS = 20


def undelivered(settings: Settings, application: str) -> pl.DataFrame:
    """A letter for each row, or batch, that a sink has refused, oldest first of each sink: ``id``, ``timestamp`` of the
    refusal, ``stage``, ``operator``, which is the sink, ``reason``, ``rows``, ``epoch``, ``first_row``, ``number``.

    Raises:
        OperationError: The folder does not know the application.
    """
    folder = folder_at(settings.warehouse) / require(settings, application)
    sinks = tables_in(folder / REFUSED_FOLDER)
    return pl.concat([_NONE, *(_letters(folder, sink, application) for sink in sinks)])


def undelivered_letter(settings: Settings, application: str, letter: dict[str, Any]) -> dict[str, Any]:
    """A row of ``undelivered`` with the first of the rows that were refused, as they leave, in ``first_rows``."""
    refused = Refused(folder_at(settings.warehouse) / application, letter["operator"], application)
    rows = as_dictionaries(refused.rows(letter["number"]).head(_SHOWN_ROWS).drop("_epoch"))
    return {**{name: value for name, value in letter.items() if name != "number"}, "first_rows": rows}


def discard_undelivered(settings: Settings, application: str, letters: pl.DataFrame) -> int:
    """Delete letters as ``undelivered`` has them; returns how many. The application may be running."""
    for (sink,), of_sink in letters.group_by("operator"):
        Refused(folder_at(settings.warehouse) / application, str(sink), application).discard(
            of_sink["number"].to_list()
        )
    return letters.height


def of_ids(letters: pl.DataFrame, ids: Collection[str]) -> pl.DataFrame:
    """Those with these ids."""
    return letters.filter(pl.col("id").is_in(list(ids)))


def _letters(folder: Folder, sink: str, application: str) -> pl.DataFrame:
    # no topic has a colon in its name, so the id is that of no other letter
    return (
        Refused(folder, sink, application)
        .all()
        .select(
            id=pl.format("{}:{}-{}", pl.lit(sink), "epoch", "first_row"),
            timestamp=pl.col("refused_at"),
            stage=pl.lit(DELIVERY),
            operator=pl.lit(sink),
            reason=pl.col("reason"),
            rows=pl.col("rows"),
            epoch=pl.col("epoch"),
            first_row=pl.col("first_row"),
            number=pl.col("number"),
        )
    )


_NONE = pl.DataFrame(
    schema={
        **{"id": pl.String(), "timestamp": pl.Datetime("ms", "UTC")},
        **{name: pl.String() for name in ("stage", "operator", "reason")},
        **{name: pl.Int64() for name in ("rows", "epoch", "first_row", "number")},
    }
)
