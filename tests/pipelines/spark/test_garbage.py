"""When Python looks for garbage."""

from __future__ import annotations

import gc

from weir.pipelines.spark.garbage import no_collections


def test_nothing_is_looked_for_while_modules_are_loaded():
    before = gc.get_stats()[0]["collections"]
    with no_collections():
        found = [[number] for number in range(10 * gc.get_threshold()[0])]
        assert gc.get_stats()[0]["collections"] == before
    assert gc.isenabled()
    assert found


def test_where_it_was_switched_off_it_stays_so():
    gc.disable()
    try:
        with no_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
