"""What of a program's sinks can be seen to be wrong before a run begins."""

from __future__ import annotations

from collections.abc import Sequence

from weir.pipelines.publishing.http import check_headers
from weir.pipelines.publishing.sql import check_sql_tables
from weir.pipelines.sinks.sink import Sink


def check_sinks(sinks: Sequence[Sink], sql_url: str) -> None:
    """See that variables are set and tables fit. Whatever does not answer is left to the publishers, which try again.

    Raises:
        SinkHeaderError: A header of a request cannot be had; all of them are named.
        SinkTableError: A table does not take the rows; all of them are named.
        SinkAddressError: A SQL sink has no database.
    """
    check_headers(sinks)
    check_sql_tables(sinks, sql_url)
