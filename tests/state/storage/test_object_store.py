"""What only object stores have: answers that get lost, and stores that let a second writer win."""

from __future__ import annotations

import obstore
import pytest
from obstore.store import MemoryStore

from weir.state.errors import ConditionalPutError
from weir.state.storage import object_store
from weir.state.storage.object_store import ObjectFolder, require_conditional_puts


@pytest.fixture
def folder() -> ObjectFolder:
    return ObjectFolder("memory://", "app", MemoryStore())


def test_a_put_whose_answer_was_lost_finds_its_own_file_when_it_is_repeated(folder, monkeypatch):
    def put_twice(*arguments, put=obstore.put, **options):
        put(*arguments, **options)
        return put(*arguments, **options)

    monkeypatch.setattr(object_store.obstore, "put", put_twice)
    assert folder.put_if_absent("1.json", b"mine")
    assert not folder.put_if_absent("1.json", b"mine"), "the same content is no sign of the same writer"


def test_a_store_that_refuses_a_second_put_is_taken_and_nothing_is_left_there(folder, s3_folder):
    for each in (folder, s3_folder("app")):
        require_conditional_puts(each)
        assert [part for part in obstore.list(each.store)] == []


def test_a_store_that_lets_a_second_writer_win_is_refused(folder, monkeypatch):
    def put(*arguments, put=obstore.put, mode="overwrite", **options):
        return put(*arguments, **options)

    monkeypatch.setattr(object_store.obstore, "put", put)
    with pytest.raises(ConditionalPutError, match=r"does not refuse a second put .* or a folder of a local disk"):
        require_conditional_puts(folder)
    assert list(obstore.list(folder.store)) == []
