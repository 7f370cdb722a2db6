"""A run with a clock by hand: records come evenly, and an epoch reads those that came before its look."""

import itertools
import random

import pytest

from weir.pipelines.spark.beat import LOOK_S, QUIET_S, TOLD_LOOK_S, Beat


class Run:
    """Follows a beat as the driver does; ``epochs`` are looks and ends, ``commits`` when they began."""

    def __init__(self, interval_s: float, epoch_s, commit_s: float = 0.01) -> None:
        self.now_s, self.epoch_s, self.commit_s = 100.0, epoch_s, commit_s
        self.beat = Beat(interval_s, lambda: self.now_s)
        self.epochs: list[tuple[float, float]] = []
        self.commits: list[float] = []
        self.seen: list[tuple[float, float]] = []
        """The look before which records came that a commit made visible, and when it ended."""

    def until(self, end_s: float, *, comes) -> None:
        has_uncommitted = False
        while self.now_s < end_s:
            self.now_s = max(self.now_s, self.beat.next_look_s(has_uncommitted=has_uncommitted))
            self.beat.looked()
            look_s = self.now_s
            if comes(look_s):
                self.now_s += (seconds := self.epoch_s())
                self.beat.took(seconds, has_left_some=False)
                has_uncommitted = True
            self.epochs.append((look_s, self.now_s))
            if has_uncommitted and self.beat.is_commit_due():
                self.commits.append(self.now_s)
                self.beat.committed(self.now_s)
                self.now_s += self.commit_s
                self.seen.append((look_s, self.now_s))
                has_uncommitted = False


def test_a_short_interval_has_one_epoch_which_ends_when_the_commit_is_due():
    run = Run(0.1, lambda: 0.03)
    run.until(110.0, comes=lambda _: True)
    last = run.commits[-50:]
    assert [after - before for before, after in itertools.pairwise(last)] == pytest.approx([0.1] * 49, abs=2e-3)
    assert len([look for look, _ in run.epochs if look > last[0]]) <= 50
    # A record that came just after the look of one commit is seen at the end of the next.
    oldest = [end - before for (before, _), (_, end) in zip(run.seen[-50:], run.seen[-49:], strict=False)]
    assert max(oldest) == pytest.approx(0.1 + 0.03 + 0.01, abs=5e-3)


def test_epochs_of_different_length_leave_the_interval_as_it_is_on_average():
    rng = random.Random(7)
    run = Run(0.1, lambda: rng.uniform(0.01, 0.06))
    run.until(150.0, comes=lambda _: True)
    last = run.commits[-400:]
    assert (last[-1] - last[0]) / 399 == pytest.approx(0.1, rel=0.02)


def test_an_epoch_that_is_late_once_puts_off_no_other():
    long = iter([*[0.03] * 50, 0.07, *[0.03] * 1_000])
    run = Run(0.1, lambda: next(long))
    run.until(110.0, comes=lambda _: True)
    last = run.commits[60:]
    assert (last[-1] - last[0]) / (len(last) - 1) == pytest.approx(0.1, rel=0.01)
    assert (last[0] - run.commits[40]) / 20 == pytest.approx(0.1, rel=0.03)


def test_a_run_that_was_held_up_for_long_does_not_make_up_for_the_commits_it_missed():
    long = iter([*[0.03] * 50, 5.0, *[0.03] * 1_000])
    run = Run(0.1, lambda: next(long))
    run.until(120.0, comes=lambda _: True)
    gaps = [after - before for before, after in zip(run.commits, run.commits[1:], strict=False)]
    assert min(gaps[5:]) > 0.05


@pytest.mark.parametrize(("interval_s", "longest_s"), [(0.05, 0.25), (0.1, 0.25), (1.0, 0.25), (2.0, 0.5), (60.0, 1.0)])
def test_a_record_after_silence_is_noticed_soon_and_committed_at_once(interval_s, longest_s):
    run = Run(interval_s, lambda: 0.01)
    run.until(1_000.0, comes=lambda _: False)
    quiet = [look for look, _ in run.epochs if look > 500.0]
    assert max(after - before for before, after in itertools.pairwise(quiet)) == pytest.approx(longest_s)
    assert min(after - before for before, after in itertools.pairwise(quiet)) == pytest.approx(longest_s)
    came_s = run.now_s + 0.001
    run.until(run.now_s + 3.0, comes=lambda look_s: look_s >= came_s > look_s - 2 and not run.commits)
    (commit_s,) = run.commits
    assert commit_s - came_s <= longest_s + 0.02


def test_while_records_come_a_long_interval_is_read_in_between():
    run = Run(10.0, lambda: 0.01)
    run.until(130.0, comes=lambda _: True)
    looks = [look for look, _ in run.epochs if look > 110.0]
    assert max(after - before for before, after in itertools.pairwise(looks)) <= LOOK_S + 0.02
    assert len(run.commits) == pytest.approx(3, abs=1)


@pytest.mark.parametrize("interval_s", [0.001, 0.01])
def test_an_interval_shorter_than_an_epoch_does_not_keep_the_driver_awake(interval_s):
    run = Run(interval_s, lambda: 0.0)
    run.until(101.0, comes=lambda _: False)
    assert len(run.epochs) <= 51


def test_a_run_that_is_told_of_records_looks_seldom_after_a_while_and_at_once_when_told():
    now_s = 100.0
    beat = Beat(0.1, lambda: now_s, is_told=True)
    looks = [now_s]
    while now_s < 120.0:
        now_s = beat.next_look_s(has_uncommitted=False)
        beat.looked()
        looks.append(now_s)
    gaps = {before: after - before for before, after in itertools.pairwise(looks)}
    assert max(gap for at_s, gap in gaps.items() if at_s < 100.0 + QUIET_S) <= LOOK_S + 0.001
    assert {round(gap, 3) for at_s, gap in gaps.items() if at_s > 101.0 + QUIET_S} == {TOLD_LOOK_S}
    now_s += 0.3
    beat.heard()
    assert beat.next_look_s(has_uncommitted=False) <= now_s
    beat.looked()
    beat.took(0.01, has_left_some=False)
    assert not beat.is_quiet
