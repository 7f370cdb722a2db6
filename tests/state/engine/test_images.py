"""What an epoch reads of a store, beside a dictionary."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weir.state.engine import images as images_module
from weir.state.engine.images import Images

STORED = {bytes([number]): bytes([number, number]) for number in range(0, 40, 2)}
READS = st.lists(st.integers(0, 40).map(lambda number: bytes([number])), max_size=6)


@pytest.fixture(autouse=True, scope="module")
def _runs_of_two():
    """Reads of two keys are long."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(images_module, "FEW", 1)
        yield


@given(st.lists(st.tuples(READS | READS.map(sorted), st.booleans())))
@example([([b"\x01", b"\x02"], False), ([b"\x01", b"\x02"], False), ([b"\x02", b"\x03"], False), ([b"\x01"], False)])
@example([([b"\x02", b"\x02"], False), ([b"\x02", b"\x02"], False)])
def test_values_are_those_of_the_snapshot_and_a_key_is_fetched_once_in_order(reads):
    images, known = Images(), set()

    def fetch(keys):
        assert keys == sorted(keys)
        assert known.isdisjoint(keys)
        known.update(keys)
        return [STORED.get(key) for key in keys]

    for keys, is_scanned in reads:
        if is_scanned:
            found = sorted({key for key in keys if key in STORED}, reverse=keys[:1] > keys[-1:])
            if found:
                images.add_run(found, [STORED[key] for key in found])
            known.update(found)
            continue
        found = images.of(keys, fetch)
        assert found == [STORED.get(key) for key in keys]
        found.clear()  # what callers do with it changes nothing
        keys.append(b"\xff")
        keys.pop()
