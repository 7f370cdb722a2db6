"""Stores of processors answer like dictionaries, in epochs of any size, after rollbacks, crashes and restores."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pipelines.processors.runs import disturbed_run, written
from tests.state.stores.models import ListModel, SessionModel, VersionedModel, WindowModel
from weir import (
    Application,
    Json,
    KeyValueStore,
    ListStore,
    Processor,
    SessionStore,
    StreamsBuilder,
    String,
    VersionedKeyValueStore,
    Windowed,
    WindowStore,
)
from weir.state.stores.versioned import NOT_PUT, VALID_TO_UNDEFINED

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Call:
    """One call of a store; which of the arguments it takes is up to the call."""

    store: str
    call: str
    value: int | None
    first: int
    last: int
    upper: str


@dataclass(frozen=True)
class Value:
    n: int
    note: str | None


@dataclass(frozen=True)
class Pair:
    user: str
    page: str


def value_of(call: Call) -> Value | None:
    return None if call.value is None else Value(call.value, "odd" if call.value % 2 else None)


def at(time_ms: int) -> datetime:
    return EPOCH + time_ms * MS


def ms(time: datetime | None) -> int | None:
    return None if time is None else (time - EPOCH) // MS


def numbers(found) -> list:
    """Entries of a window or session store as the models give them."""
    return [(key.key, ms(key.window_start), ms(key.window_end), value.n) for key, value in found]


def answered(by, key: str, call: Call) -> str:
    """What the call returns, and what the store answers then."""
    answer = getattr(by, f"{call.store}_{call.call}")(key, call)
    return repr((answer, getattr(by, f"{call.store}_read")(key, call)))


class Calls(Processor[str, Call, str, str]):
    """Makes the calls that the records ask for, and reads the store in every way."""

    stores = (
        KeyValueStore("pairs", key=Pair, value=Value),
        WindowStore("windows", key=str, value=Value, size=5 * MS, retention=20 * MS),
        SessionStore("sessions", key=str, value=Value, retention=20 * MS),
        VersionedKeyValueStore("versions", key=str, value=Value, history_retention=20 * MS),
        ListStore("lists", key=str, value=Value),
    )

    def init(self, context):
        self.context = context
        self.pairs, self.windows, self.sessions, self.versions, self.lists = (
            context.state_store(name) for name in ("pairs", "windows", "sessions", "versions", "lists")
        )

    def process(self, record):
        self.context.forward(record.with_value(answered(self, record.key, record.value)))

    def pairs_put(self, key, call):
        self.pairs.put(Pair(key, call.upper), value_of(call))

    def pairs_put_if_absent(self, key, call):
        found = self.pairs.put_if_absent(Pair(key, call.upper), Value(call.first, None))
        return found and found.n

    def pairs_put_all(self, key, call):
        entries = [(Pair(key, str(page)), Value(page, "all")) for page in range(call.first, call.last)]
        self.pairs.put_all([*entries, (Pair(key, call.upper), None)])

    def pairs_delete(self, key, call):
        found = self.pairs.delete(Pair(key, call.upper))
        return found and found.n

    def pairs_put_rows(self, key, call):
        rows = {"user": [key] * 2, "page": ["", call.upper], "n": [call.first, call.last], "note": ["x"] * 2}
        self.pairs.put_rows(pl.DataFrame({**rows, "_ts": [0, 0], "_deleted": [False, call.last % 2 == 1]}))

    def pairs_put_rows_if_absent(self, key, call):
        rows = {"user": [key] * 3, "page": ["", call.upper, ""], "n": [call.first, call.last, 7], "note": ["y"] * 3}
        put = self.pairs.put_rows_if_absent(pl.DataFrame({**rows, "_ts": [0] * 3}))
        return put.select("page", "n").rows()

    def pairs_delete_rows(self, key, call):
        self.pairs.delete_rows(pl.DataFrame({"user": [key, key], "page": [call.upper, "none"]}))

    def pairs_read(self, key, call):
        lower, upper = sorted((key, call.upper), key=str.encode)
        bounds = Pair(lower, ""), Pair(upper, str(call.last))
        ways = (
            (self.pairs.range(*bounds), self.pairs.reverse_range(*bounds)),
            (self.pairs.range(bounds[0]), self.pairs.reverse_range(bounds[0])),
            (self.pairs.range(upper=bounds[1]), self.pairs.reverse_range(upper=bounds[1])),
            (self.pairs.all(), self.pairs.reverse_all()),
        )
        answers = []
        for forward, backward in ways:
            answers.append([(pair.user, pair.page, value.n) for pair, value in forward])
            assert [(pair.user, pair.page, value.n) for pair, value in backward] == answers[-1][::-1]
        for prefix in ((key,), (key, str(call.last)[:1])):
            answers.append([(pair.user, pair.page, value.n) for pair, value in self.pairs.prefix_scan(*prefix)])
            assert self.pairs.prefix_scan_rows(*prefix).select("user", "page", "n").rows() == answers[-1]
        frames = (
            self.pairs.range_rows(*bounds),
            self.pairs.range_rows(bounds[0]),
            self.pairs.range_rows(upper=bounds[1]),
        )
        frames = [frame.select("user", "page", "n").rows() for frame in (*frames, self.pairs.all_rows())]
        assert frames == answers[:4]
        one = self.pairs.get(Pair(key, call.upper))
        row = self.pairs.get_rows(pl.DataFrame({"user": [key], "page": [call.upper]}))
        assert row["n"].item() == (None if one is None else one.n)
        return None if one is None else one.n, answers, self.pairs.approximate_num_entries()

    def windows_put(self, key, call):
        self.windows.put(key, value_of(call), at(call.first))

    def windows_put_rows(self, key, call):
        self.windows.put_rows(
            pl.DataFrame(
                [
                    {"key": key, "window_start": at(start), "n": call.last, "note": None, "_ts": 0}
                    for start in (call.first, call.first + 1)
                ],
                schema_overrides={"note": pl.String},
            )
        )

    def windows_delete_rows(self, key, call):
        self.windows.delete_rows(pl.DataFrame({"key": [key], "window_start": [at(call.first)]}))

    def windows_read(self, key, call):
        first, last = at(call.first), at(call.last)
        found = self.windows.get_rows(pl.DataFrame({"key": [key], "window_start": [first]}))
        one = self.windows.fetch(key, first)
        assert (None if one is None else one.n) == found["n"].item()
        assert one is None or one == Value(one.n, found["note"].item())
        ways = (
            (self.windows.fetch_between(key, first, last), self.windows.backward_fetch_between(key, first, last)),
            (self.windows.fetch_keys(key, call.upper, first), self.windows.backward_fetch_keys(key, call.upper, first)),
            (self.windows.fetch_all(None, last), self.windows.backward_fetch_all(None, last)),
            (self.windows.all(), self.windows.backward_all()),
        )
        answers = []
        for forward, backward in ways:
            answers.append(numbers(forward))
            assert numbers(backward) == answers[-1][::-1]
        rows = self.windows.fetch_all_rows(None, last).select("key", "window_start", "window_end", "n").rows()
        assert [(user, ms(start), ms(end), n) for user, start, end, n in rows] == answers[2]
        return None if one is None else one.n, answers

    def sessions_put(self, key, call):
        self.sessions.put(Windowed(key, at(call.first), at(call.first + call.last % 9)), value_of(call))

    def sessions_put_rows(self, key, call):
        bounds = {"window_start": [at(call.first)], "window_end": [at(call.first + 2)]}
        self.sessions.put_rows(pl.DataFrame({"key": [key], **bounds, "n": [call.last], "note": ["a"], "_ts": [0]}))

    def sessions_remove(self, key, call):
        self.sessions.remove(Windowed(key, at(call.first), at(call.first + call.last % 9)))

    def sessions_delete_rows(self, key, call):
        bounds = {"window_start": [at(call.first)], "window_end": [at(call.first + 2)]}
        self.sessions.delete_rows(pl.DataFrame({"key": [key], **bounds}))

    def sessions_read(self, key, call):
        end, start = at(call.first), at(call.last)
        found = numbers(self.sessions.find_sessions(key, end, start))
        assert numbers(self.sessions.backward_find_sessions(key, end, start)) == found[::-1]
        rows = self.sessions.find_rows(
            pl.DataFrame({"key": [key], "earliest_end_ms": [call.first], "latest_start_ms": [call.last]})
        )
        assert rows["n"].to_list() == [n for *_, n in found]
        one = self.sessions.fetch_session(key, at(call.first), at(call.first + 2))
        every = numbers(self.sessions.fetch(key))
        assert numbers(self.sessions.backward_fetch(key)) == every[::-1]
        ended = sorted(numbers(self.sessions.find_ended(end, start)))
        return found, None if one is None else one.n, every, numbers(self.sessions.fetch_keys(key, call.upper)), ended

    def versions_put(self, key, call):
        kept = self.versions.put(key, value_of(call), at(call.first))
        return None if kept is None else (ms(kept.timestamp), ms(kept.valid_to))

    def versions_put_rows(self, key, call):
        rows = {"key": [key], "n": [call.last], "note": [None], "_ts": [call.first], "_deleted": [False]}
        return self.versions.put_rows(pl.DataFrame(rows, schema_overrides={"note": pl.String})).height

    def versions_delete(self, key, call):
        found = self.versions.delete(key, at(call.first))
        return None if found is None else (found.value.n, ms(found.timestamp), ms(found.valid_to))

    def versions_read(self, key, call):
        answers = [self.versions.get(key), self.versions.get(key, at(call.first))]
        rows = self.versions.get_rows(pl.DataFrame({"key": [key], "as_of_ms": [call.first]}))
        assert rows["n"].to_list() == [None if answers[1] is None else answers[1].value.n]
        answers += self.versions.versions(key, at(call.first), at(call.last))
        oldest_first = list(self.versions.versions(key, at(call.first), at(call.last), oldest_first=True))
        assert oldest_first == answers[2:][::-1]
        return [None if each is None else (each.value.n, ms(each.timestamp), ms(each.valid_to)) for each in answers]

    def lists_append(self, key, call):
        self.lists.append(key, value_of(call) or Value(0, "none"))

    def lists_extend(self, key, call):
        self.lists.extend(key, [Value(n, None) for n in range(call.first, call.last)])

    def lists_append_rows(self, key, call):
        rows = {"key": [key, call.upper, key], "n": [call.first, call.last, 7], "note": ["x"] * 3, "_ts": [0] * 3}
        self.lists.append_rows(pl.DataFrame(rows))

    def lists_delete(self, key, call):
        self.lists.delete(key)

    def lists_delete_rows(self, key, call):
        self.lists.delete_rows(pl.DataFrame({"key": [key, call.upper]}))

    def lists_drain(self, key, call):
        return [value.n for value in self.lists.drain(key)]

    def lists_read(self, key, call):
        found = [value.n for value in self.lists.get(key)]
        assert self.lists.get_rows(pl.DataFrame({"key": [key]}))["n"].to_list() == found
        lists = [(key, [one.n for one in value]) for key, value in self.lists.all()]
        assert self.lists.all_rows().select("key", "n").rows() == [(key, n) for key, found in lists for n in found]
        return found, self.lists.count(key), lists


class Expected:
    """The answers of dictionaries."""

    def __init__(self) -> None:
        self.pairs = dict[tuple[str, str], int]()
        self.windows, self.sessions = WindowModel(20, 5), SessionModel(20)
        self.versions, self.lists = VersionedModel(20), ListModel(None)

    def pairs_put(self, key, call):
        self.pairs.pop((key, call.upper), None)
        if call.value is not None:
            self.pairs[key, call.upper] = call.value

    def pairs_put_if_absent(self, key, call):
        found = self.pairs.get((key, call.upper))
        self.pairs.setdefault((key, call.upper), call.first)
        return found

    def pairs_put_all(self, key, call):
        self.pairs.update({(key, str(page)): page for page in range(call.first, call.last)})
        self.pairs.pop((key, call.upper), None)

    def pairs_delete(self, key, call):
        return self.pairs.pop((key, call.upper), None)

    def pairs_put_rows(self, key, call):
        self.pairs[key, ""] = call.first
        self.pairs.pop((key, call.upper), None)
        if call.last % 2 == 0:
            self.pairs[key, call.upper] = call.last

    def pairs_put_rows_if_absent(self, key, call):
        put = []
        for page, n in (("", call.first), (call.upper, call.last), ("", 7)):
            if (key, page) not in self.pairs:
                self.pairs[key, page] = n
                put.append((page, n))
        return put

    def pairs_delete_rows(self, key, call):
        self.pairs.pop((key, call.upper), None)

    def pairs_read(self, key, call):
        lower, upper = sorted((key, call.upper), key=str.encode)
        rows = sorted((user, page, n) for (user, page), n in self.pairs.items())
        first, last = (lower, ""), (upper, str(call.last))
        answers = [
            [row for row in rows if first <= row[:2] <= last],
            [row for row in rows if first <= row[:2]],
            [row for row in rows if row[:2] <= last],
            rows,
            [row for row in rows if row[0].startswith(key)],
            [row for row in rows if row[0] == key and row[1].startswith(str(call.last)[:1])],
        ]
        return self.pairs.get((key, call.upper)), answers, len(rows)

    def windows_put(self, key, call):
        self.windows.put(key, call.value, call.first)

    def windows_put_rows(self, key, call):
        self.windows.put(key, call.last, call.first)
        self.windows.put(key, call.last, call.first + 1)

    def windows_delete_rows(self, key, call):
        self.windows.rows.pop((call.first, key), None)

    def windows_read(self, key, call):
        fetch = self.windows.fetch
        ways = [(key, key, call.first, call.last), (key, call.upper, call.first, None), (None, None, None, call.last)]
        found = [[(*window, n) for window, n in fetch(*way)] for way in [*ways, (None,) * 4]]
        return next((n for _, n in fetch(key, key, call.first, call.first)), None), found

    def sessions_put(self, key, call):
        self.sessions.put(key, call.value, call.first, call.first + call.last % 9)

    def sessions_put_rows(self, key, call):
        self.sessions.put(key, call.last, call.first, call.first + 2)

    def sessions_remove(self, key, call):
        self.sessions.remove(key, call.first, call.first + call.last % 9)

    def sessions_delete_rows(self, key, call):
        self.sessions.remove(key, call.first, call.first + 2)

    def sessions_read(self, key, call):
        def find(*bounds):
            return [(*window, n) for window, n in self.sessions.find(*bounds)]

        ended = [each for each in find(None, None, call.first, None) if each[2] <= call.last]
        every = find(key, key, None, None)
        one = next((n for _, start, end, n in every if (start, end) == (call.first, call.first + 2)), None)
        return find(key, key, call.first, call.last), one, every, find(key, call.upper, None, None), sorted(ended)

    def versions_put(self, key, call):
        valid_to = self.versions.put(key, call.value, call.first)
        return None if valid_to == NOT_PUT else (call.first, None if valid_to == VALID_TO_UNDEFINED else valid_to)

    def versions_put_rows(self, key, call):
        return 0 if self.versions.put(key, call.last, call.first) == NOT_PUT else 1

    def versions_delete(self, key, call):
        clock_ms = self.versions.clock_ms
        is_old = clock_ms is None or call.first < clock_ms - 20
        found = None if is_old else self.versions.get(key, call.first)
        self.versions.put(key, None, call.first)
        return found and tuple(found)

    def versions_read(self, key, call):
        if self.versions.clock_ms is None:
            return [None, None]
        found = [self.versions.get(key, None), self.versions.get(key, call.first)]
        return [each and tuple(each) for each in (*found, *self.versions.versions(key, call.first, call.last))]

    def lists_append(self, key, call):
        self.lists.rows.setdefault(key, []).append(call.value or 0)

    def lists_extend(self, key, call):
        self.lists.rows.setdefault(key, []).extend(range(call.first, call.last))

    def lists_append_rows(self, key, call):
        for user, n in ((key, call.first), (call.upper, call.last), (key, 7)):
            self.lists.rows.setdefault(user, []).append(n)

    def lists_delete(self, key, call):
        self.lists.rows.pop(key, None)

    def lists_delete_rows(self, key, call):
        self.lists.rows.pop(key, None)
        self.lists.rows.pop(call.upper, None)

    def lists_drain(self, key, call):
        return self.lists.rows.pop(key, [])

    def lists_read(self, key, call):
        found = self.lists.rows.get(key, [])
        return found, len(found), self.lists.all()


NAMES = [name.split("_", 1) for name in vars(Expected) if not name.startswith("_") and not name.endswith("_read")]
KEYS = st.sampled_from(["", "a", "a\x00b"])
CALLS = st.tuples(
    KEYS,
    st.builds(
        lambda name, *arguments: Call(*name, *arguments),
        st.sampled_from(NAMES),
        st.none() | st.integers(0, 9),
        st.integers(0, 30),
        st.integers(0, 30),
        KEYS,
    ),
)


def application() -> Application:
    builder = StreamsBuilder()
    builder.stream("calls", key=String("user"), value=Json(Call)).process(Calls, name="calls").to_delta("answers")
    return Application("calls", builder, commit_interval=MS)


@pytest.mark.hypothesis
@pytest.mark.slow
@given(calls=st.lists(CALLS, min_size=60, max_size=200), seed=st.integers(0, 1000))
@settings(max_examples=examples(12), phases=(Phase.explicit, Phase.generate))  # a run is too slow to shrink
def test_stores_answer_like_dictionaries(calls, seed):
    model, answers = Expected(), []
    for key, call in calls:
        answers.append((key, answered(model, key, call), 0))
    rows = [(key.encode(), msgspec.json.encode(call), 0) for key, call in calls]
    with tempfile.TemporaryDirectory() as folder:
        place = disturbed_run(application(), rows, Path(folder), seed, "calls")
        assert written(place, "answers", "user", "value") == answers
