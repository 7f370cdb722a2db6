"""Applications: a topology and the settings that belong to the program, and how one is loaded by name.

Settings of an installation (brokers, folders, slots) are not part of an application.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Literal

from weir.pipelines.arguments import not_negative_ms, positive_ms, what_it_is
from weir.pipelines.dsl.builder import StreamsBuilder
from weir.pipelines.dsl.graph import check_name
from weir.pipelines.dsl.streams import KStream, KTable
from weir.pipelines.errors import ApplicationLoadError, TopologyError
from weir.pipelines.on_error import ErrorHandling, OnError, checked
from weir.pipelines.sinks.dead_letters import dead_letter_sink
from weir.pipelines.sinks.kafka import KafkaTopic
from weir.pipelines.topology.naming import names_over
from weir.state.commit.record import CommitRecord
from weir.state.stores.custom import FollowingStore
from weir.state.types import IsolationLevel

NO_LIMIT = -1


class Application:
    """One topology under one id. The topology is built here, so that its errors show at once."""

    def __init__(
        self,
        id: str,
        builder: StreamsBuilder,
        *,
        commit_interval: timedelta = timedelta(seconds=1),
        on_error: OnError = "fail",
        on_processing_error: OnError = "fail",
        on_delivery_error: Literal["wait", "dead_letter"] = "wait",
        on_task_error: Literal["stop", "isolate"] = "stop",
        dead_letter_topic: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        max_skew: timedelta | None = None,
        max_task_idle: timedelta | None = timedelta(0),
        max_source_wait: timedelta | None = None,
        uncommitted_max_bytes: int = 64 << 20,
        uncommitted_max_rollback: timedelta | None = timedelta(milliseconds=500),
        state_isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        own_stores: Mapping[str, Callable[[Path], FollowingStore]] | None = None,
    ) -> None:
        """
        Args:
            id: Names the application, its folder and its transactions: letters, digits, dash and underscore.
            builder: What the program describes; later additions to it are not seen.
            commit_interval: The longest that results wait for their commit.
            on_error: What to do with a record that cannot be read: stop the run ("fail"), leave it out and count it
                ("continue"), or put it into the dead letters ("dead_letter"); or a function that is given each such
                record, a ``BadRecord``, and returns one of these.
            on_processing_error: The same for a record on which an operator or a sink's serde fails, or a ``Retry``. A
                record that is left out leaves no trace in the stores and results of the task that it failed in.
            on_delivery_error: What to do with a committed row that a topic or database will never take: wait at it
                until somebody decides ("wait"), or put it into the dead letters and go on ("dead_letter").
            on_task_error: What to do when a task cannot go on, at a record for which ``on_error`` says "fail" or for
                another reason: commit what the others have done and stop the run ("stop"), or have them go on while it
                tries again after a second, two, and so on up to a minute ("isolate"). Runs until caught up stop.
            dead_letter_topic: A Kafka topic that gets each dead letter too, exactly once, with its key, value, time
                and headers, and headers that say what happened (KIP-1034).
            start: Where to begin in a topic without a committed offset.
            max_skew: How far one partition may run ahead of another in event time while a run catches up. By default,
                partitions whose rows meet downstream keep about the same pace, and others any.
            max_task_idle: How long a task that reads several topics waits for one that has no records while others
                have some. A task always waits for records that are on the brokers, and for rows on their way from
                other tasks, that come before what it has: so results do not depend on what was read first. With None
                it waits for nothing, and they do.
            max_source_wait: How long rows wait for a partition that has unread records but does not move, because it
                is being restored or its broker is away; after that the others go on without it. None: for ever.
            uncommitted_max_bytes: Commit early once the uncommitted state reaches this; a task that nearly has its
                share of it, or exceeds it by one batch of records, stops reading. -1 means no limit.
            uncommitted_max_rollback: Commit early once undoing what is uncommitted would take about this long after a
                crash. None means no limit.
            state_isolation: What queries of the stores see by default: only committed epochs, or the newest too.
            own_stores: Stores of your own (``weir.FollowingStore``), each under the name of the store of the topology
                that it follows: what opens it, given a folder for its files. They receive only committed rows.

        Raises:
            TopologyError: The topology or a setting is invalid.
        """
        if not isinstance(id, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", id):
            raise TopologyError(
                f"the application id {id!r} is invalid; use letters, digits, dashes and underscores, and begin with "
                "a letter or digit"
            )
        if not isinstance(builder, StreamsBuilder):
            raise TopologyError(
                f"the application {id!r} got {what_it_is(builder)} as its builder; pass the "
                "StreamsBuilder that describes its topology"
            )
        positive_ms(commit_interval, "commit_interval")
        if max_skew is not None:
            not_negative_ms(max_skew, "max_skew")
        if max_task_idle is not None:
            not_negative_ms(max_task_idle, "max_task_idle (None waits for nothing)")
        if max_source_wait is not None:
            positive_ms(max_source_wait, "max_source_wait")
        if start not in ("earliest", "latest"):
            raise TopologyError(f'start is {start!r}; it must be "earliest" or "latest"')
        if on_delivery_error not in ("wait", "dead_letter"):
            raise TopologyError(f'on_delivery_error is {on_delivery_error!r}; it must be "wait" or "dead_letter"')
        if on_task_error not in ("stop", "isolate"):
            raise TopologyError(f'on_task_error is {on_task_error!r}; it must be "stop" or "isolate"')
        if uncommitted_max_bytes != NO_LIMIT and (
            not isinstance(uncommitted_max_bytes, int) or uncommitted_max_bytes < 1
        ):
            raise TopologyError(
                f"uncommitted_max_bytes is {uncommitted_max_bytes!r}; it must be a whole number above "
                "zero, or -1 for no limit"
            )
        if uncommitted_max_rollback is not None:
            positive_ms(uncommitted_max_rollback, "uncommitted_max_rollback (None is no limit)")
        if state_isolation not in list(IsolationLevel):
            raise TopologyError(
                f'state_isolation is {state_isolation!r}; it must be "read_committed" or "read_uncommitted"'
            )
        self.id = id
        self.commit_interval, self.max_skew = commit_interval, max_skew
        self.max_task_idle, self.max_source_wait = max_task_idle, max_source_wait
        self.on_error = checked(on_error, "on_error")
        self.on_processing_error = checked(on_processing_error, "on_processing_error")
        self.on_delivery_error, self.start = on_delivery_error, start
        self.on_task_error = on_task_error
        self.uncommitted_max_bytes, self.uncommitted_max_rollback = uncommitted_max_bytes, uncommitted_max_rollback
        self.state_isolation = IsolationLevel(state_isolation)
        self.topology = builder.build()
        if dead_letter_topic is not None:
            self.topology = replace(self.topology, dead_letters=self._dead_letters(dead_letter_topic))
        self.own_stores = dict(own_stores or {})
        stores = [store for sub_topology in self.topology.sub_topologies for store in sub_topology.stores]
        known = {store.name for store in stores}
        if unknown := sorted(self.own_stores.keys() - known):
            raise TopologyError(
                f"own_stores names {', '.join(unknown)}, which the topology does not have; its stores "
                f"are {', '.join(sorted(known)) or 'none'}"
            )
        rebuilt = sorted(store.name for store in stores if store.is_rebuilt)
        if rebuilt and self.on_error not in ("fail", "continue"):
            raise TopologyError(
                f"store {rebuilt[0]!r} has no changelog, and if it is lost, it would be computed again without what "
                'was put aside and then replayed; add on_loss="empty" to it, leave logging=False out, or give '
                'on_error as "fail" or "continue"'
            )
        if rebuilt and self.on_processing_error != "fail":
            raise TopologyError(
                f"store {rebuilt[0]!r} has no changelog, and if it is lost, it would be computed again from records "
                'that other operators failed on, too; add on_loss="empty", or leave logging=False or '
                "on_processing_error out"
            )
        for sub_topology in self.topology.sub_topologies:
            aside = [node for node in sub_topology.expectations if node.on_violation == "dead_letter"]
            for store in sub_topology.stores if aside else ():
                if store.is_rebuilt:
                    raise TopologyError(
                        f"store {store.name!r} has no changelog, and if it is lost, it would be computed again without "
                        f"regard to what the expectation {aside[0].expectation!r} put aside; leave logging=False out, "
                        'add on_loss="empty", or write on_violation="drop"',
                        places=[aside[0].place],
                    )
        if unlogged := sorted(store.name for store in stores if store.name in self.own_stores and not store.is_logged):
            raise TopologyError(
                f"own_stores names {', '.join(unlogged)}, which has no changelog that a store could follow; leave "
                "logging=False out"
            )

    def __repr__(self) -> str:
        return f"Application({self.id!r})"

    @property
    def error_handling(self) -> ErrorHandling:
        """Its decisions about records that fail."""
        return ErrorHandling(deserialization=self.on_error, processing=self.on_processing_error)

    def _dead_letters(self, topic: str) -> KafkaTopic:
        puts_aside = any(
            callable(each) or "dead_letter" in (each, getattr(each, "then", ""))
            for each in (self.on_error, self.on_processing_error)
        )
        expectations = self.topology.expectations.values()
        if not puts_aside and not any(node.on_violation == "dead_letter" for node in expectations):
            raise TopologyError(
                f"dead_letter_topic={topic!r} would get nothing, since no record becomes a dead letter; write "
                'on_error="dead_letter", on_processing_error="dead_letter" or both, or leave it out'
            )
        global_topics = [table.source.topic for table in self.topology.global_tables]
        if topic in (*self.topology.topics(), *global_topics, *self.topology.matched([topic])):
            raise TopologyError(
                f"dead_letter_topic={topic!r} is a topic that the program reads, so a record that fails would come "
                "again for ever; name another topic"
            )
        if topic in {sink.name for sink in self.topology.outside_sinks}:
            raise TopologyError(
                f"dead_letter_topic={topic!r} is also the name of a sink; name another topic, or give the sink "
                'another name: to(..., name="...")'
            )
        return dead_letter_sink(check_name("topic", topic))

    def over(self, committed: CommitRecord | None, topics: Iterable[str] | None = None) -> Application:
        """The same, with the names that its stores have in a commit where its own are made up; its patterns stand for
        those of ``topics`` that they match, by default of the commit's."""
        names, before = names_over(self.topology, committed), topics_before(committed)
        return self.under(names, self.topology.reading(before if topics is None else topics, before))

    def under(self, names: Mapping[str, str], topics: Iterable[str] = ()) -> Application:
        """The same, with other names for stores and edges, and topics for its patterns; see ``Topology.under``."""
        found = copy.copy(self)
        found.topology = self.topology.under(names, topics)
        return found


def topics_before(committed: CommitRecord | None) -> tuple[str, ...]:
    """The topics that a commit's program read, in the order that they had at equal merge times."""
    if committed is None:
        return ()
    form = committed.topology
    return tuple(sorted(committed.topics)) if form is None or form.topics is None else tuple(form.topics)


def load_application(name: str) -> Application:
    """The application that ``package.module:attribute`` names.

    Raises:
        ApplicationLoadError: The name does not lead to an application.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        found = _applications_in(module_name)
        way_out = (
            f"the module has {' and '.join(f'{module_name}:{each}' for each in found)}"
            if found
            else "write package.module:attribute, for example weir.pipelines.examples.flights:app"
        )
        raise ApplicationLoadError(f"{name!r} does not name an application; {way_out}")
    if "/" in module_name or module_name.endswith(".py"):
        raise ApplicationLoadError(
            f"{name!r} names a file; name its module, as in {Path(module_name).stem}:{attribute}, "
            "and run from the folder that holds it"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            way_out = (
                f"Weir's examples are imported as weir.{module_name} now: write weir.{name}"
                if renamed_example(module_name)
                else "run from the folder that holds it, or install its package"
            )
            raise ApplicationLoadError(f"there is no module {error.name!r}; {way_out}") from None
        raise ApplicationLoadError(
            f"module {module_name!r} imports {error.name!r}, which is not installed; install it in this environment"
        ) from error
    except (AttributeError, ImportError, NameError, SyntaxError, TypeError, ValueError) as error:
        raise ApplicationLoadError(
            f"module {module_name!r} cannot be loaded: {_place(error)}"
            f"{type(error).__name__}: {error}{_near(error)}; correct the program"
        ) from error
    if not hasattr(module, attribute):
        found = _applications_in(module_name)
        way_out = f"it has {', '.join(found)}" if found else "define it as Application(...) at module level"
        raise ApplicationLoadError(f"module {module_name!r} has no {attribute!r}; {way_out}")
    application = getattr(module, attribute)
    if not isinstance(application, Application):
        raise ApplicationLoadError(
            f"{name} is {what_it_is(application)}, not an Application; name the object made by Application(...)"
        )
    return application


def _applications_in(module_name: str) -> list[str]:
    """The attributes of a module that are applications; none if it cannot be imported."""
    try:
        module = importlib.import_module(module_name)
    except Exception:  # whatever the program raises: it is reported once an application of it is asked for
        return []
    return [key for key, value in vars(module).items() if isinstance(value, Application)]


def renamed_example(module_name: str) -> Path | None:
    """The file of the Weir example that had this name before the import name became ``weir``, or None."""
    parts = module_name.split(".")
    file = Path(__file__).resolve().parents[1].joinpath(*parts).with_suffix(".py")
    return file if parts[:2] == ["pipelines", "examples"] and file.exists() else None


def _near(error: Exception) -> str:
    """What the object has instead of a missing attribute: names that begin with it or resemble it, or for a table
    that its stream has it."""
    if not isinstance(error, AttributeError) or not error.name:
        return ""
    if isinstance(error.obj, KTable) and hasattr(KStream, error.name):
        return f", its stream has it: write .to_stream().{error.name}(...)"
    names = [name for name in dir(error.obj) if not name.startswith("_")]
    near = [name for name in names if name.startswith(error.name)] or difflib.get_close_matches(error.name, names)
    return f", it has {', '.join(near)}" if near else ""


def _place(error: Exception) -> str:
    """The line at which the import of a module failed; empty for a syntax error, which names its line itself."""
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name == "<module>"]
    return "" if isinstance(error, SyntaxError) or not lines else f"{lines[-1].filename}, line {lines[-1].lineno}: "


@cache
def load_step_hook(reference: str | None) -> Callable[[str], None]:
    """The function that ``MODULE:FUNCTION`` names; without a reference, one that does nothing."""
    if reference is None:
        return lambda name: None
    module, _, name = reference.partition(":")
    hook: Callable[[str], None] = getattr(importlib.import_module(module), name)
    return hook
