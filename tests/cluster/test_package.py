"""A program runs from the archive that ``weir package`` has written, on a cluster whose hosts have a bare Python."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from confluent_kafka import Producer

from weir import read_table
from weir.infra.settings import Settings
from weir.infra.spark.standalone import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
WEIR = "from weir.pipelines.cli import main; main()"
LIMIT_S = 200.0
PROGRAM = """
from dataclasses import dataclass
from prices.list import price
from weir import Application, Json, StreamsBuilder, String, Sum

@dataclass(frozen=True)
class Order:
    item: str

@dataclass(frozen=True)
class Priced:
    price: int

def priced(order: Order) -> Priced:
    return Priced(price(order.item))

builder = StreamsBuilder()
orders = builder.stream({topic!r}, key=String("customer"), value=Json(Order))
orders.map_values(priced).group_by_key().agg("spent", spent=Sum("price")).to_delta("spent")
app = Application("shop", builder)
"""


def price_list(cents: int) -> str:
    return f"def price(item):\n    return {cents} * len(item)\n"


@pytest.fixture
def folder(tmp_path, broker, topic) -> Path:
    """A program of a module and a package, whose topic has two records."""
    folder, name = tmp_path / "program", topic(2)
    (folder / "prices").mkdir(parents=True)
    (folder / "prices" / "__init__.py").touch()
    (folder / "prices" / "list.py").write_text(price_list(100))
    (folder / "shop.py").write_text(PROGRAM.format(topic=name))
    producer = Producer({"bootstrap.servers": broker})
    for customer, item in ((b"ann", b"tea"), (b"bob", b"coffee"), (b"ann", b"milk")):
        producer.produce(name, b'{"item": "%s"}' % item, customer)
    assert producer.flush(30) == 0
    return folder


@pytest.fixture
def bare(tmp_path, monkeypatch) -> Path:
    """The Python of the cluster's hosts, which knows neither Weir nor the program."""
    venv.create(tmp_path / "bare", symlinks=True)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bare' / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = tmp_path / "bare" / "bin" / "python"
    assert subprocess.run([python, "-c", "import weir"], cwd=tmp_path, capture_output=True).returncode
    return python


def weir(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WEIR, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_a_program_runs_from_its_archive_and_not_from_that_of_another(folder, bare, broker, tmp_path):
    packed = weir(folder, "package", "shop:app", "--output", "shop.tar.gz")
    assert packed.returncode == 0, packed.stderr
    assert "shop.tar.gz: " in packed.stdout
    assert "prices, shop" in packed.stderr
    with StandaloneCluster(tmp_path / "cluster", Settings(dir=tmp_path / "driver", slots=2), 1) as cluster:
        spark = "".join(f'"{name}" = "{value}"\n' for name, value in cluster.settings.spark.items())
        (folder / "weir.toml").write_text(f"executors = 1\nslots = 2\n[spark]\n{spark}")
        run = ("run", "shop:app", "--until-caught-up", "--master", cluster.url, "--bootstrap-servers", broker)
        place = ("--dir", str(tmp_path / "driver"))
        (folder / "prices" / "list.py").write_text(price_list(200))
        other = weir(folder, *run, *place, "--archive", "shop.tar.gz")
        assert other.returncode == 1
        assert "the module 'prices.list' on " in other.stderr, other.stderr
        assert "is not the driver's; install the same program on all hosts, or pack it again with" in other.stderr
        packed = weir(folder, "package", "shop:app", "--output", "shop.tar.gz")
        assert packed.returncode == 0, packed.stderr
        ran = weir(folder, *run, *place, "--archive", "shop.tar.gz")
        assert ran.returncode == 0, ran.stderr
    spent = read_table(tmp_path / "driver" / "warehouse" / "shop" / "spent")
    assert dict(spent.select("customer", "spent").rows()) == {"ann": 1400, "bob": 1200}
