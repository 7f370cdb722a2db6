"""The runs of a bench without services: its sides are stand-ins, whose results are known."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from bench import apps, report, workloads
from bench.chart import chart
from bench.events import LARGE_BYTES, SMALL_BYTES
from bench.jobs import BESIDE, DISTINCT_JOB, FEWEST_CLOSING, JOBS, LARGE_JOBS, OF_PEERS, OTHER_JOBS, planned
from bench.kept import CHART, RESULTS, UNFINISHED, Kept
from bench.peers import DEFAULT, PEERS, QUICK, java
from bench.peers.peer import Run
from bench.processes import BenchError, Measured
from bench.raw_read import read_all
from bench.truth import truth
from bench.workload import RAW, WEIR, Workload
from bench.workloads import Bench, require_equal
from tests.pipelines.spark.log_consumer import log_reader
from weir import Application
from weir.infra.java import MissingJavaError

EVENTS = 1_000
ALL_JOBS, SIZES = (*JOBS, *OTHER_JOBS), (SMALL_BYTES, LARGE_BYTES)
STREAMS, FLINK = PEERS[:2]
PYTHON = {"bytewax", "quix", "pyflink"}


def runs(*seconds):
    return [Measured(records=1_000, seconds=each, peak_bytes=1 << 20, cpu_seconds=0.5) for each in seconds]


def turn(job, event_bytes):
    """What the sides are asked in one run."""
    return [(WEIR, job), (RAW, f"events_{event_bytes}"), (STREAMS.name, job), (FLINK.name, job)]


@pytest.fixture
def sides(monkeypatch):
    """Stand-ins for all sides, which note what they are asked to run; ``wrong`` has those whose results are wrong."""

    class Sides:
        def __init__(self):
            self.asked, self.wrong, self.ended_by = [], set(), None

        def result(self, side, job):
            self.asked.append((side, job))
            if self.ended_by == (side, job):
                raise KeyboardInterrupt
            events = next(work.events for work in planned([job], EVENTS, EVENTS, [SMALL_BYTES]))
            total = pl.col("total") + (pl.col("key") == pl.col("key").max()).cast(pl.Int64) * (side in self.wrong)
            return truth(job, events).with_columns(total)

    found = Sides()

    def weir(self, application, records):
        job = application.rpartition("_")[0]
        names = {"key": "page" if job == "repartition_sum" else "user"}
        return runs(1)[0], found.result(WEIR, job).rename(names | ({"total": "value"} if job == "python_sum" else {}))

    def raw(self, topic, events):
        found.asked.append((RAW, topic))
        return runs(0.5)[0]

    def peer(peer, job, client, topic, output, folder, closed_by_ms):
        found.output = found.result(peer.name, DISTINCT_JOB if output.startswith(DISTINCT_JOB) else job)
        return runs(4)[0]

    monkeypatch.setattr(Bench, "_make_events", lambda *given: None)
    monkeypatch.setattr(workloads, "make_events", lambda *given: None)
    monkeypatch.setattr(Bench, "_weir", weir)
    monkeypatch.setattr(Bench, "_raw", raw)
    monkeypatch.setattr(workloads, "run_peer", peer)
    monkeypatch.setattr(workloads, "read_output", lambda *given: found.output)
    monkeypatch.setattr(workloads.cluster, "properties", lambda client: {})
    monkeypatch.setattr(report.cluster, "embedded", lambda folder: contextlib.nullcontext(Path("client.properties")))
    for each in PEERS:
        monkeypatch.setattr(type(each), "install", lambda self, folder: None)
    return found


@pytest.fixture
def bench(tmp_path):
    """Runs the jobs of running sums over ``EVENTS`` events; returns the object that it prints."""

    def run(**options):
        given = {"jobs": ["sum_per_key", "repartition_sum"], "peers": [STREAMS.name, FLINK.name], "events": EVENTS}
        report.main(**{**given, "dir": tmp_path, "quick": True, **options})
        return json.loads((tmp_path / "bench-results" / RESULTS).read_text())

    return run


@pytest.mark.parametrize("wrong", [["a", "b", "c"], ["a"], ["a", "x"], ["a", "b", "b"], []])
def test_a_result_with_a_wrong_row_is_refused(wrong):
    def frame(keys):
        return pl.DataFrame(
            {"key": keys, "total": [len(keys)] * len(keys)}, schema={"key": pl.String, "total": pl.Int64}
        )

    exact = pl.DataFrame({"key": ["a", "b"], "total": [2, 2]})
    require_equal(exact[::-1], exact, "Weir's sum")
    with pytest.raises(BenchError, match=r"Weir's sum: the result is wrong: \d rows instead of 2"):
        require_equal(frame(wrong), exact, "Weir's sum")
    with pytest.raises(BenchError, match="2 rows instead of 2, of which 1 are not in the exact one"):
        require_equal(exact.with_columns(total=pl.Series([2, 3])), exact, "Weir's sum")
    with pytest.raises(BenchError):  # a bench without any result has measured nothing
        require_equal(frame([]), frame([]), "Weir's sum")


def test_all_sides_take_turns(sides, bench):
    bench(quick=False, jobs=["sum_per_key"])
    assert sides.asked == turn("sum_per_key", 68) * 3 + turn("sum_per_key", 400) * 3


def test_a_bench_that_was_ended_goes_on_with_the_next_job(sides, bench, tmp_path):
    jobs = ["sum_per_key", "repartition_sum", "sum_to_topic"]
    sides.ended_by = (FLINK.name, "repartition_sum")
    with pytest.raises(KeyboardInterrupt):
        bench(jobs=jobs)
    assert (tmp_path / "bench-results" / UNFINISHED).exists()
    sides.asked.clear()
    sides.ended_by = None
    found = bench(jobs=jobs)
    assert [job for side, job in sides.asked if side == WEIR] == jobs[1:]  # the first was there
    assert sides.asked[:4] == turn("repartition_sum", 68)
    assert [each["name"] for each in found["workloads"]] == jobs
    sides.asked.clear()
    bench(jobs=jobs)  # the results are complete, so this is a new bench
    assert len(sides.asked) == 12


@pytest.mark.parametrize("options", [{"fresh": True}, {"peers": [STREAMS.name]}, {"events": EVENTS, "quick": False}])
def test_a_bench_of_another_kind_begins_anew(options, sides, bench):
    sides.ended_by = (WEIR, "repartition_sum")
    with pytest.raises(KeyboardInterrupt):
        bench()
    sides.asked.clear()
    sides.ended_by = None
    bench(**options)
    assert sides.asked[0] == (WEIR, "sum_per_key")


def test_a_peer_with_a_wrong_result_is_left_out_and_the_others_go_on(sides, bench, capsys):
    sides.wrong.add(STREAMS.name)
    found = bench(jobs=["sum_per_key"])
    for each in found["workloads"]:
        assert list(each["runs"]) == [WEIR, RAW, FLINK.name]
        assert "Kafka Streams: sum_per_key: the result is wrong" in each["not_run"][STREAMS.name]
    assert "not run: Kafka Streams, sum_per_key: Kafka Streams: sum_per_key: the result is" in capsys.readouterr().out


def test_a_wrong_result_of_weir_ends_the_bench(sides, bench):
    sides.wrong.add(WEIR)
    with pytest.raises(BenchError, match="Weir's sum_per_key: the result is wrong"):
        bench()


def test_a_peer_that_cannot_be_installed_is_not_run_and_the_reason_is_told(sides, bench, monkeypatch, capsys):
    monkeypatch.undo()  # the peers install themselves
    monkeypatch.setattr(java, "java_executable", lambda name="java": (_ for _ in ()).throw(MissingJavaError()))
    for peer in PEERS[:2]:
        found, not_run = report._install([peer], Path("classes"), print)
        assert found == []
        assert "no Java found" in not_run[peer.name]
    assert "Flink SQL, RocksDB is not run: no Java found" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "peers"),
    [({"weir_alone": True}, set()), ({"peers": ()}, set(QUICK)), ({"peers": (), "quick": False}, set(DEFAULT))],
)
def test_the_peers_are_those_that_were_chosen(options, peers, sides, bench):
    found = bench(jobs=["sum_per_key", "python_sum"], **options)
    assert set(found["setup"]["peers"]) == {side for side, _ in sides.asked} - {WEIR, RAW} == peers
    functions = {side for side, job in sides.asked if job == "python_sum"}
    assert functions == {WEIR} | peers & PYTHON


def test_the_fewest_events_of_a_bench_close_windows_of_all_kinds():
    jobs = ("hopping_final", "hopping_60_final", "joined_text")
    assert all(truth(job, FEWEST_CLOSING).height > 0 for job in jobs)
    assert {work.events for work in planned(jobs, 1, 1, [SMALL_BYTES])} == {FEWEST_CLOSING}
    assert truth("window_final", report.QUICK_EVENTS).height > 0


def test_distinct_keys_are_summed_once_however_many_runs_there_are(sides, bench):
    bench(quick=False, jobs=[DISTINCT_JOB])
    assert sides.asked == [
        (WEIR, DISTINCT_JOB),
        (RAW, "events_distinct"),
        (STREAMS.name, DISTINCT_JOB),
        (FLINK.name, DISTINCT_JOB),
    ]


def test_a_topic_has_the_same_events_for_all_jobs_that_read_it():
    """It is made once."""
    events = {
        (work.topic, work.events, work.event_bytes, work.keys)
        for work in planned(ALL_JOBS, 2_000_000, 5_000_000, SIZES)
    }
    assert len({topic for topic, *_ in events}) == len(events)


def test_each_job_has_its_events_and_what_they_are_joined_with(monkeypatch):
    made = []
    monkeypatch.setattr(workloads, "make_events", lambda client, *given: made.append(given[:2]))
    bench = Bench(Path("folder"), Path("client.properties"), lambda text: None)
    names = set()
    for work in planned(["sum_per_key", *BESIDE, "session_sum"], 600_000, 500_000, SIZES):
        bench._make_topics(work, names)
    assert made == [
        ("events_68", 600_000),
        ("events_400", 600_000),
        ("events_part", 150_000),
        ("events_part_clicks", 75_000),
        ("events_wide", 150_000),
        ("events_wide_users", 1_000_000),
        ("events_orders", 150_000),
        ("events_orders_pages", 877),
    ]


def test_only_jobs_that_are_slow_for_peers_have_a_part_of_the_events():
    for is_alone, number in ((False, len(JOBS) + len(LARGE_JOBS)), (True, len(ALL_JOBS) - 1 + len(LARGE_JOBS))):
        work = planned(ALL_JOBS, 3_000_000, 5_000_000, SIZES, is_alone=is_alone)
        assert sum(each.events == 3_000_000 for each in work) == number
        assert min(each.events for each in work) == (3_000_000 if is_alone else 250_000)


def test_every_job_that_is_planned_has_its_program():
    for work in planned(ALL_JOBS, EVENTS, EVENTS, SIZES):
        assert isinstance(getattr(apps, f"{work.job}_{work.topic.removeprefix('events_')}"), Application)


def test_a_quick_bench_has_the_jobs_of_its_peers_over_small_events(sides, bench, monkeypatch):
    assert set(ALL_JOBS) - set(report._jobs([STREAMS])) == {"hopping_60_final", "python_sum", "joined_text"}
    assert report._jobs([]) == list(ALL_JOBS)
    monkeypatch.setattr(report, "_jobs", lambda peers: ["sum_per_key"] if peers else [])
    found = bench(jobs=(), peers=())
    assert [(each["name"], each["event_bytes"]) for each in found["workloads"]] == [("sum_per_key", SMALL_BYTES)]
    assert "memory" not in found


def test_unknown_names_are_refused_with_those_that_are_known(bench):
    with pytest.raises(BenchError, match="there is no peer storm; the peers are kafka-streams, flink-sql-rocksdb"):
        bench(peers=["storm"])
    with pytest.raises(BenchError, match="there is no job sums; the jobs are sum_per_key"):
        bench(jobs=["sums"])


def test_a_report_is_printed_from_its_file(tmp_path, capsys):
    work = Workload(
        name="sum_per_key",
        event_bytes=68,
        events=1_000,
        runs={WEIR: runs(1, 9, 2), RAW: runs(0.6, 1.8, 1.5), STREAMS.name: runs(4, 5, 5)},
        not_run={FLINK.name: "no checkpoint"},
    )
    kept = Kept(tmp_path, {"machine": "2 cores"})
    kept.keep(work)
    found = json.loads(kept.finish({"not_run": {PEERS[2].name: "no Java found"}}).read_text())
    assert Workload.from_json(found["workloads"][0]) == work
    assert found["workloads"][0]["figures"][STREAMS.name] == {
        "median_per_s": 200,
        "spread_per_s": [200, 250],
        "ratio": 2.5,
        "cpu_s_per_million": 500,
        "peak_bytes": 1 << 20,
    }
    assert found["workloads"][0]["figures"][RAW]["ratio"] == 0.6
    report.show(found, Console(width=100))
    printed = capsys.readouterr().out
    assert [" ".join(line.split()[:-2]) for line in printed.splitlines() if "reading alone │" in line] == [
        "│ reading alone │ 1 │ 1, 2 │ 60 % │ 500.0 │"
    ]
    assert "not run: Flink SQL, RocksDB, sum_per_key: no checkpoint" in printed
    assert f"not run: {PEERS[2].title}: no Java found" in printed
    assert not tmp_path.joinpath(CHART).exists()


def test_the_chart_has_a_bar_for_each_side_as_long_as_its_rate():
    sides = {WEIR: runs(1, 1, 1), STREAMS.name: runs(2, 4, 4)}
    drawn = chart([Workload(name="sum_per_key", event_bytes=68, events=1, runs=sides, not_run={})], report.TITLES)
    assert 'width="520.0"' in drawn
    assert 'width="130.0"' in drawn  # a quarter
    assert '<line x1="334.0" y1="62.0" x2="464.0"' in drawn  # from the slowest run to the fastest
    assert "Kafka Streams" in drawn
    assert "(Weir: 4.00 times)" in drawn


def test_the_chart_says_what_share_of_reading_alone_weir_has():
    sides = {WEIR: runs(2), RAW: runs(1)}
    drawn = chart([Workload(name="sum_per_key", event_bytes=68, events=1, runs=sides, not_run={})], report.TITLES)
    assert "1 (Weir: 50 %)" in drawn


def test_reading_alone_counts_the_records_of_all_partitions():
    rows = [[(b"k", b"v", 0)] * 3, [None, *[(b"k", b"v", 0)] * 4, None], []]
    readers = {log_reader("t", each, lambda each=each: rows[each]): len(rows[each]) for each in range(3)}
    assert read_all(readers) == 7


def test_reading_alone_says_which_partition_gives_nothing():
    with pytest.raises(BenchError, match="t-0: nothing comes from offset 2 on"):
        read_all({log_reader("t", 0, lambda: [(b"k", b"v", 0)] * 2): 3})


def test_peers_have_names_of_their_own_and_jobs_that_there_are():
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert peer.jobs <= {*JOBS, *OTHER_JOBS} - OF_PEERS.keys()
    assert {*DEFAULT, *QUICK} <= {peer.name for peer in PEERS}


def test_settings_of_a_peer_in_java_are_on_its_command_line():
    run = Run(
        job="sum_per_key",
        client=Path("/broker/client.properties"),
        topic="events",
        output="out",
        state=Path("/state"),
        closed_by_ms=5,
    )
    command = FLINK.command(run)
    assert {f"{key}={value}" for key, value in FLINK.settings.items()} <= set(command)
    assert {"execution.checkpointing.interval=1 s", "table.exec.mini-batch.enabled=true"} <= set(command)
    assert STREAMS.command(run)[-2:] == ["2", str(64 << 20)]
