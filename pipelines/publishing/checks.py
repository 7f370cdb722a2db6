"""What of a program's sinks can be seen to be wrong before a run begins."""

from __future__ import annotations

from collections.abc import Sequence

from weir.pipelines.publishing.http import SinkHeaderError, check_headers
from weir.pipelines.publishing.sql import check_sql_tables
from weir.pipelines.publishing.sql_address import SinkAddressError
from weir.pipelines.publishing.sql_table import SinkTableError
from weir.pipelines.sinks.sink import Sink

SinkFault = SinkHeaderError | SinkAddressError | SinkTableError


def sink_faults(sinks: Sequence[Sink], sql_url: str) -> list[SinkFault]:
    """See whether variables are set and tables fit. Whatever does not answer is left to the publishers, which try
    again."""
    faults = list[SinkFault]()
    try:
        check_headers(sinks)
    except SinkHeaderError as error:
        faults.append(error)
    try:
        check_sql_tables(sinks, sql_url)
    except (SinkAddressError, SinkTableError) as error:
        faults.append(error)
    return faults


def check_sinks(sinks: Sequence[Sink], sql_url: str) -> None:
    """Refuse to begin with a fault.

    Raises:
        SinkHeaderError: A header of a request cannot be had; all of them are named.
        SinkTableError: A table does not take the rows; all of them are named.
        SinkAddressError: A SQL sink has no database.
    """
    for fault in sink_faults(sinks, sql_url):
        raise fault
