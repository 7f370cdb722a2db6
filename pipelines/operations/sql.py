"""Spark SQL over an application's outputs and changelogs, whether it runs or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weir.infra.settings import Settings
from weir.infra.spark.session import sql_session, stop_session
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import require
from weir.pipelines.operations.tables import readable_tables
from weir.pipelines.spark.sql import SqlSession
from weir.state.commit.protocol import newest_commit


@contextmanager
def opened_sql(
    settings: Settings, application: str, *, on_start: Callable[[str], None] = lambda text: None
) -> Iterator[SqlSession]:
    """A session over the tables of an application; ``on_start`` is called before Spark is started.

    Raises:
        OperationError: The folder does not know the application, or nothing is committed yet.
        JarsError, MissingJavaError: Set-up is incomplete; the text names the command.
    """
    if newest_commit(settings.warehouse, require(settings, application)) is None:
        raise OperationError(f"{application} has committed nothing yet; run it first with `weir run MODULE:APP`")
    on_start("starting Spark, which takes some seconds")
    session = sql_session(settings)
    try:
        outputs = readable_tables(settings.warehouse / application)
        yield SqlSession(session, settings.warehouse, application, outputs)
    finally:
        stop_session(session)
