"""The one context of Spark that modules of tests share: its start and its first job take five to ten seconds of CPU."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from weir.infra.settings import Settings
from weir.infra.spark import session


class SharedSpark:
    """A process has one at a time, so it is kept until a test asks for the other kind, or starts one of its own."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._context: SparkContext | None = None
        self._session: SparkSession | None = None
        self._conf = session._conf
        self._patch = patch.object(session, "_conf", self._after_the_end)
        self._patch.start()

    def context(self) -> SparkContext:
        """The context with two slots that there is, or a new one."""
        if self._context is None:
            self._context = session.slot_context(self._settings(), "tests")
        return self._context

    def session(self) -> SparkSession:
        """The session that reads Delta tables by SQL that there is, or a new one."""
        if self._session is None:
            self._session = session.sql_session(self._settings())
        return self._session

    def close(self) -> None:
        self._end()
        self._patch.stop()

    def _end(self) -> None:
        if self._context is not None:
            session.stop_context(self._context)
        if self._session is not None:
            session.stop_session(self._session)
        self._context = self._session = None

    def _after_the_end(self, *arguments: object, **options: object) -> SparkConf:
        """Replaces ``_conf``, with which every start begins."""
        self._end()
        return self._conf(*arguments, **options)  # type: ignore[arg-type]
