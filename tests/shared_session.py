"""The session of Spark that modules of tests share: each start of one takes ten seconds of CPU with its first query."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

from pyspark import SparkContext
from pyspark.sql import SparkSession

from weir.infra.settings import Settings
from weir.infra.spark import session


class SharedSession:
    """A process has one at a time, so it is kept until a test starts a context or a session of its own."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._session: SparkSession | None = None
        self._start = session._context
        self._patch = patch.object(session, "_context", self._after_the_end)
        self._patch.start()

    def get(self) -> SparkSession:
        """The session that there is, or a new one."""
        if self._session is None:
            self._session = session.sql_session(self._settings())
        return self._session

    def close(self) -> None:
        self._end()
        self._patch.stop()

    def _end(self) -> None:
        if self._session is not None:
            session.stop_session(self._session)
            self._session = None

    def _after_the_end(self, *arguments: object, **options: object) -> SparkContext:
        self._end()
        return self._start(*arguments, **options)  # type: ignore[arg-type]
