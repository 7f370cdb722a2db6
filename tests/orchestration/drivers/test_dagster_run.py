"""The owner of a driver's lease, and what the driver writes into its run's log."""

from dataclasses import replace

from weir.orchestration.drivers.dagster_run import LOG_EVERY_S, owner_of, progress_logger, run_of
from weir.pipelines.spark.progress import Progress

RUNNING = Progress(
    application="flights",
    generation=1,
    epoch=5,
    committed_epoch=4,
    records_in=1000,
    lag=20,
    records_per_s=500.0,
    commit_ms=9.0,
    state="running",
)


def test_a_run_is_found_by_the_owner_of_a_lease():
    assert owner_of("x") == "dagster run x", "as in leases that exist already"
    assert run_of(owner_of("x")) == "x"
    assert run_of("weir run") is None


def test_a_line_is_logged_when_the_state_changes_and_otherwise_every_five_minutes():
    lines: list[str] = []
    now_s = 0.0
    on_progress = progress_logger(lines.append, lambda: now_s)
    for second in range(7200):
        now_s = float(second)
        on_progress(RUNNING)
    assert len(lines) == 7200 / LOG_EVERY_S
    assert lines[0] == "running: epoch 5, 1,000 records so far, 20 waiting, 500 records/s"
    away = replace(RUNNING, state="waiting", message="no broker answers")
    for progress in (away, away, RUNNING, RUNNING):
        on_progress(progress)
    assert len(lines) == 7200 / LOG_EVERY_S + 2
    assert lines[-2].startswith("waiting: ")
    assert lines[-2].endswith("no broker answers")


def test_a_driver_keeps_running_when_the_runs_log_is_gone():
    def gone(_: str) -> None:
        raise FileNotFoundError("messages")

    progress_logger(gone)(RUNNING)
