"""What messages advise, as Dagster says it: jobs in the place of commands."""

import re

import pytest

from tests.messages import commands, modules
from tests.orchestration.applications import SHOP
from weir.infra.control.database import LeaseHeldError
from weir.orchestration.advice import in_dagster
from weir.orchestration.application import definitions
from weir.pipelines.backfill.errors import LargeChangeError
from weir.pipelines.repartitioning.errors import OwnKeysError
from weir.pipelines.spark.errors import PartitionCountError, TopologyChangedError
from weir.state.changelog.verify import StateDifferenceError

ELSEWHERE = ("pipelines/cli", "pipelines/examples")
"""What a command line prints, and programs."""


def advised() -> set[str]:
    """The commands that messages may show in Dagster, with their arguments as ``x``."""
    return {
        command for path, tree in modules().items() if not path.startswith(ELSEWHERE) for _, command in commands(tree)
    }


def test_what_has_no_job_is_left_to_the_host():
    """Everything else names a job or a check, or the log."""
    left = {command for command in advised() if "on the host" in in_dagster(f"`{command}` or ", "shop")}
    assert left == {
        "weir kafka create TOPIC",
        "weir kafka create x",
        "weir kafka create x --partitions 1",
        "weir kafka list",
        "weir package x",
        "weir reset x",
        "weir setup",
        "weir show x TABLE",
        "weir stop x --drain",
    }


def test_each_job_that_is_named_exists():
    names = {job.name for job in definitions(SHOP).get_repository_def().get_all_jobs()}
    said = [in_dagster(f"`{command}`", "shop") for command in advised()]
    jobs = {job for text in said for job in re.findall(r"the job (\w+)", text)}
    assert len(jobs) > 8
    assert jobs <= names


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PartitionCountError("shop", 2, 4, "orders has 4"),
            "keep the state and deal it out among them with the job weir_repartition with the partition shop and "
            "dry_run: false in its config, start over "
            "with the command weir reset shop on the host, give the program another id and read from the "
            'start, as in Application("other-id", ...), or begin with empty stores with the job shop_run with '
            "accept_state_loss: true in its config",
        ),
        (
            OwnKeysError("shop", ("carts", "visits")),
            "if they are the keys of the records, say so with keyed_by_record: [carts, visits] in the run's config, or "
            "begin with empty stores with the job shop_run with accept_state_loss: true in its config",
        ),
        (
            TopologyChangedError("shop", "the store counts would be gone"),
            "compute what the new one would hold with the job weir_rebuild with the partition shop",
        ),
        (
            LeaseHeldError("shop", "dagster run 1", "here", 7, 0),
            "stop it with the job weir_stop with the partition shop, or replace it with the job shop_run with "
            "take_over: true in its config",
        ),
        (
            LargeChangeError("shop", "20260302-1", "shop:app", 0.1, ("totals",), "/there"),
            "Swap it in anyway with the job weir_swap_backfill with the partition shop:20260302-1 and max_change: 1.0 "
            "in its config, or discard it with the job weir_discard_backfill with the partition shop:20260302-1",
        ),
        (
            StateDifferenceError("counts-0", "counts", "user='ann'", "1", "2", "shop", "0_0"),
            "the changelog is the truth: the job weir_restore with the partition shop:0_0 and from_changelog: true in "
            "its config while the application runs",
        ),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_an_error_names_the_job_with_its_partition_and_its_configuration(error, said):
    text = in_dagster(str(error), "shop")
    assert said in text
    assert "`weir " not in text
    assert "--" not in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "`weir run OLD_MODULE:APP --until-caught-up`",
            "the job my_shop_run with the old program and until_caught_up: true in its config",
        ),
        (
            "`weir run MODULE:APP --bootstrap-servers HOST:PORT`",
            "the job my_shop_run with bootstrap_servers: HOST:PORT in the resource weir",
        ),
        (
            "`weir backfill run my-shop FIRST END --from TOPIC=PATH`",
            "the days of the asset my-shop/backfill with paths: {TOPIC: PATH} in its config",
        ),
        (
            "`weir compact my-shop --engine process` needs no Spark",
            "the job weir_compaction with the partition my-shop and engine: process in its config needs no Spark",
        ),
        ("`weir logs my-shop` says why", "the log file logs/my-shop.log in Weir's folder says why"),
        (
            "run `weir sink resume my-shop by user` now",
            "run the job weir_sink_resume with the partition my-shop:by user now",
        ),
        (
            "start with `weir demo` or `weir run MODULE:APP`, or name another folder with `--dir DIR`",
            "start with the job my_shop_run, or name another folder with dir: DIR in the resource weir",
        ),
        ("for `weir.read_table` or `delta`", "for `weir.read_table` or `delta`"),
        (
            "accept that with --empty-stores in the same command",
            "accept that with empty_stores: true in the run's config",
        ),
    ],
)
def test_options_become_fields_of_the_run_or_of_the_resource(text, said):
    assert in_dagster(text, "my-shop") == said
