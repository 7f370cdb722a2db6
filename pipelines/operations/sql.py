"""Spark SQL over an application's outputs and changelogs, whether it runs or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weir.infra.settings import Settings
from weir.infra.spark.session import ON_S3, sql_session, stop_session
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import require
from weir.pipelines.operations.tables import readable_tables
from weir.pipelines.spark.sql import SqlSession
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import disks, folder_at


@contextmanager
def opened_sql(
    settings: Settings, application: str, *, on_step: Callable[[str], None] = lambda text: None
) -> Iterator[SqlSession]:
    """A session over the tables of an application; ``on_step`` is told what comes next.

    Raises:
        OperationError: The folder does not know the application, nothing is committed yet, or Spark does not read the
            storage of the warehouse.
        JarsError, MissingJavaError: Set-up is incomplete; the text names the command.
    """
    if newest_commit(folder_at(settings.warehouse), require(settings, application)) is None:
        raise OperationError(f"{application} has committed nothing yet; run it first with `weir run MODULE:APP`")
    if not disks(folder_at(settings.warehouse)) and not str(settings.warehouse).startswith(ON_S3):
        raise OperationError(
            f"Spark SQL reads local disks and S3 only, and the warehouse is {settings.warehouse}; see a table with "
            f"`weir show {application} TABLE`, or read it with any tool for Delta tables"
        )
    on_step("starting Spark")
    session = sql_session(settings)
    try:
        on_step("opening the tables")
        outputs = readable_tables(folder_at(settings.warehouse) / application)
        yield SqlSession(session, folder_at(settings.warehouse), application, outputs)
    finally:
        stop_session(session)
