"""Tables of upserts, kept up to date beside a run: refreshed after commits, as often as the program asks for.

A refresh of a large table takes long, so after each comes a rest of three times as long: at most a quarter of the time
goes into it.
"""

from __future__ import annotations

import logging

from weir.pipelines.application import Application
from weir.pipelines.spark.afterwards import Afterwards
from weir.pipelines.topology import TableSinkNode
from weir.pipelines.topology.topology import table_spec
from weir.state.changelog.upserts import Upserts, refresh_at_rest, updates_but
from weir.state.storage.places import Place

log = logging.getLogger("weir.driver")

REST_TIMES = 3.0


def refreshing(application: Application, app_folder: Place) -> list[Afterwards[object]]:
    """For each table of upserts, what refreshes it after being called; closing refreshes it once more if that is due.

    One more, when it is first called, refreshes the tables of outputs that the program no longer has: a driver that
    died may have left them behind. Call them only once the application is claimed: a claim creates the tables.
    """
    return [
        *(
            _refreshing(application, app_folder, sink, sink.refresh_ms / 1000)
            for sink in application.topology.sinks
            if sink.refresh_ms is not None
        ),
        _refreshing_others(application, app_folder),
    ]


def _refreshing_others(application: Application, app_folder: Place) -> Afterwards[object]:
    known = {table_spec(sink).name for sink in application.topology.sinks}
    done: list[bool] = []

    def refresh(_: object) -> None:
        if not done:
            refresh_at_rest(app_folder, updates_but(app_folder, known), application.id)
            done.append(True)

    return Afterwards("upserts of earlier outputs", refresh, Exception, "tables of earlier outputs may be behind")


def _refreshing(application: Application, app_folder: Place, sink: TableSinkNode, every_s: float) -> Afterwards[object]:
    opened: list[Upserts] = []

    def refresh(_: object) -> None:
        if not opened:
            opened.append(Upserts(app_folder, table_spec(sink), application.id))
        done = opened[0].refresh()
        if done is not None:
            log.debug("%s shows epoch %s: %s rows written", sink.table, done.epoch, done.rows_written)

    return Afterwards(
        f"upserts of {sink.table}",
        refresh,
        Exception,
        f"table {sink.table!r} is behind",
        lambda took_s: max(every_s - took_s, REST_TIMES * took_s),
    )
