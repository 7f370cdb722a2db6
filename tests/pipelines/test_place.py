"""Errors of a topology name the calls that made the nodes they are about."""

import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from weir import CoPartitioningError, StreamsBuilder, String, TopologyError
from weir.pipelines.application import load_application
from weir.pipelines.place import Place

HEAD = """
from datetime import timedelta
from polars import col
from weir import *

builder = StreamsBuilder()
orders = builder.stream("orders", key=String("id"), value=Int64("cents"))
customers = builder.table("customers", key=Int64("number"), value=String("name"), store="customers")
"""


def places_of(text: str) -> list[str]:
    """What follows the message: one entry for each place."""
    return re.split(r"; at (?=\S+\.py:\d+)", text)[1:]


def load(folder: Path, monkeypatch, body: str, name: str) -> Exception:
    """What the import of a program in the current folder raises."""
    (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(body))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(TopologyError) as error:
        load_application(f"{name}:app")
    return error.value


def line_of(folder: Path, name: str, text: str) -> int:
    lines = (folder / f"{name}.py").read_text().splitlines()
    (found,) = (number for number, line in enumerate(lines, start=1) if text in line)
    return found


@pytest.mark.parametrize(
    ("name", "body", "calls"),
    [
        ("one_call", 'orders.filter(col("dollars") > 1)\n', ['orders.filter(col("dollars") > 1)']),
        (
            "a_chain",
            """
            (
                orders.filter(col("cents") > 1)
                .map_values(
                    dollars="price",
                )
                .to_delta("dollars")
            )
            """,
            [".map_values(..."],
        ),
        ("a_setting", 'app = Application("shop", builder, start="never")\n', ['app = Application("shop", builder, st']),
        ("a_window", "TimeWindows.of_size_with_no_grace(timedelta(0))\n", ["TimeWindows.of_size_with_no_grace("]),
        (
            "the_keys_of_a_join",
            """
            renamed = orders.filter(col("cents") > 1)
            renamed.join(customers)
            """,
            ["renamed.join(customers)", "renamed = orders.filter", "customers = builder.table"],
        ),
        (
            "the_keys_of_a_join_after_a_new_key",
            """
            by_cents = orders.select_key("cents")
            views = builder.stream("views", key=String("user"), value=String("page"))
            by_cents.join(views, windows=JoinWindows.of_time_difference_with_no_grace(timedelta(1)), store="s")
            """,
            ["by_cents.join(views", "by_cents = orders.select_key", "views = builder.stream"],
        ),
        (
            "a_foreign_key",
            """
            bills = builder.table("bills", key=String("bill"), value=String("customer"), store="bills")
            bills.join(customers, foreign_key="customer")
            """,
            ["bills.join(customers", "bills = builder.table", "customers = builder.table"],
        ),
        (
            "a_merge",
            """
            views = builder.stream("views", key=String("id"), value=String("page"))
            orders.merge(views)
            """,
            ["orders.merge(views)", "orders = builder.stream", "views = builder.stream"],
        ),
        (
            "a_cogroup",
            """
            one = customers.to_stream().group_by_key()
            one.cogroup(n=Count()).cogroup(orders.group_by_key(), m=Count())
            """,
            ["one.cogroup(n=Count())", "one = customers.to_stream()", "orders = builder.stream"],
        ),
        (
            "two_builders",
            """
            stock = StreamsBuilder().stream("stock", key=String("id"), value=Int64("cents"))
            orders.merge(stock)
            """,
            ["orders.merge(stock)", "orders = builder.stream", "stock = StreamsBuilder()"],
        ),
        (
            "a_table_that_expires",
            """
            short = builder.table("short", key=String("k"), value=String("v"), store="short", ttl=timedelta(1))
            orders.join(short)
            """,
            ["orders.join(short)", 'short = builder.table("short"'],
        ),
        (
            "a_table_without_history",
            """
            names = builder.table("names", key=String("k"), value=String("v"), store="names")
            orders.join(names, grace=timedelta(1), store="held")
            """,
            ["orders.join(names", "names = builder.table"],
        ),
        (
            "two_stores",
            """
            orders.group_by_key().count("counts")
            orders.filter(col("cents") > 1).group_by_key().count("counts")
            app = Application("shop", builder)
            """,
            ["orders.group_by_key().count(", "orders.filter(col"],
        ),
        (
            "two_topics",
            """
            again = builder.stream("orders", key=String("id"), value=Int64("cents"))
            app = Application("shop", builder)
            """,
            ["orders = builder.stream", "again = builder.stream"],
        ),
        (
            "two_tables",
            """
            orders.to_delta("out")
            customers.to_delta("out")
            app = Application("shop", builder)
            """,
            ['orders.to_delta("out")', 'customers.to_delta("out")'],
        ),
        (
            "two_repartitions",
            """
            orders.repartition("moved").to_delta("a")
            customers.to_stream().repartition("moved").to_delta("b")
            app = Application("shop", builder)
            """,
            ["orders.repartition(", "customers.to_stream().repartition("],
        ),
        (
            "nothing_is_read",
            'app = Application("shop", StreamsBuilder())\n',
            ['app = Application("shop", StreamsBuilder())'],
        ),
    ],
)
def test_an_error_ends_with_the_calls_it_is_about(tmp_path, monkeypatch, name, body, calls):
    error = load(tmp_path, monkeypatch, body, name)
    assert [place.partition(": ")[0] for place in places_of(str(error))] == [
        f"{name}.py:{line_of(tmp_path, name, call.removesuffix('...'))}" for call in calls
    ]
    for place, call in zip(places_of(str(error)), calls, strict=True):
        assert place.partition(": ")[2].startswith(call)
    assert "\n" not in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_topics_with_different_partition_counts_are_named_with_their_calls_and_the_join(tmp_path, monkeypatch):
    (tmp_path / "uneven.py").write_text(
        HEAD
        + textwrap.dedent(
            """
            names = builder.table("names", key=String("id"), value=String("name"), store="names")
            orders.filter(col("cents") > 1).join(names).to_delta("named")
            app = Application("shop", builder)
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    topology = load_application("uneven:app").topology
    with pytest.raises(CoPartitioningError, match="names has 3, orders has 2") as error:
        topology.partition_counts({"orders": 2, "names": 3, "customers": 1})
    assert [place.partition(": ")[0] for place in places_of(str(error.value))] == [
        f"uneven.py:{line_of(tmp_path, 'uneven', call)}"
        for call in (".join(names)", "names = builder", "orders = builder")
    ]
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_the_same_program_further_down_a_file_has_the_same_fingerprint_names_and_description(tmp_path, monkeypatch):
    body = textwrap.dedent(
        """
        orders.group_by("cents").count("counts").to_delta("out")
        app = Application("shop", builder)
        """
    )
    (tmp_path / "upper.py").write_text(HEAD + body)
    (tmp_path / "lower.py").write_text("\n" * 40 + HEAD + "\n\n" + body)
    monkeypatch.syspath_prepend(str(tmp_path))
    upper, lower = (load_application(f"{name}:app").topology for name in ("upper", "lower"))
    assert upper.nodes[0].place != lower.nodes[0].place
    assert upper.fingerprint == lower.fingerprint
    assert upper.describe() == lower.describe()
    assert [each.stored_name for each in upper.sub_topologies] == [each.stored_name for each in lower.sub_topologies]
    assert not any("lower.py" in repr(node) for node in lower.nodes)


def test_a_file_elsewhere_is_named_in_full_and_a_program_without_a_file_by_its_line():
    place = Place.of_call()
    assert place == Place(__file__, place.line)
    assert str(Place("/elsewhere/shop.py", 3)) == "/elsewhere/shop.py:3"
    failing = "from weir import *\nStreamsBuilder().stream('a b', key=String(), value=String())"
    found = subprocess.run([sys.executable, "-c", failing], capture_output=True, text=True)
    assert found.stderr.rstrip().endswith("; at <string>:2")


def test_weirs_own_frames_are_no_place_but_its_examples_are():
    namespace = {"__name__": "weir.pipelines.examples.mine", "builder": StreamsBuilder(), "String": String}
    with pytest.raises(TopologyError) as error:
        exec(compile("\n\nbuilder.stream('a b', key=String(), value=String())", "mine.py", "exec"), namespace)
    assert str(error.value).endswith("; at mine.py:3")


def test_a_node_is_placed_without_reading_source(monkeypatch):
    monkeypatch.setattr("linecache.getline", lambda *_: pytest.fail("read source"))
    stream = StreamsBuilder().stream("t", key=String("k"), value=String("v"))
    assert stream._node.place.file == __file__
