"""The examples of docs/sinks.md print what the page says, and its sinks do it."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import polars as pl
import pytest

from tests.pipelines.publishing.batches import drain
from weir.pipelines.publishing.connect import connect
from weir.pipelines.publishing.publisher import Publisher
from weir.pipelines.topology.topology import table_spec
from weir.state.commit.files import write_file
from weir.state.commit.outbox import Outbox
from weir.state.commit.refused import Refused
from weir.state.commit.tables import AppendTable

PAGE = Path(__file__).resolve().parent.parent / "docs" / "sinks.md"
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def page():
    names = {"__name__": "sinks_page"}
    said = StringIO()
    with redirect_stdout(said):
        for kind, block in BLOCKS:
            if kind == "python":
                exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    return names, said.getvalue()


def test_the_example_prints_what_the_page_says(page):
    assert page[1] == "".join(block for kind, block in BLOCKS if kind == "text")


def test_the_sink_of_the_page_writes_receipts_and_refuses_negative_ones(page, tmp_path):
    (node,) = (node for node in page[0]["shop"].topology.sinks if node.table.endswith("receipts"))
    node.sink.target.folder = str(tmp_path)
    table = AppendTable.create(tmp_path, table_spec(node), "shop")
    for epoch, cents in ((1, [500, 700]), (2, [-1]), (3, [900])):
        rows = {"customer": "ann", "cents": cents, "_ts": epoch, "_deleted": False}
        outgoing = node.sink.outgoing(pl.DataFrame(rows))
        table.append(epoch, [write_file(tmp_path, table_spec(node), outgoing.with_columns(_epoch=epoch))])
    outbox, refused = Outbox(tmp_path, "receipts", "shop"), Refused(tmp_path, "receipts", "shop")
    drain(
        Publisher(
            outbox, "receipts", lambda: connect("shop", node.sink, outbox, {}, ""), application="shop", refused=refused
        )
    )
    lines = (tmp_path / "receipts.ndjson").read_text().splitlines()
    assert [json.loads(line)["cents"] for line in lines] == [500, 700, 900]
    assert refused.count() == 1
