"""As on any store of objects; and blocks that arrive late or changed."""

from __future__ import annotations

import pytest

from onceforall.sink import Sweep
from sinks.files.building import QUERY, permit
from sinks.files_objects.faults import *  # noqa: F403
from sinks.files_objects.faults import assert_whole, written

pytestmark = [pytest.mark.azure, pytest.mark.long]


def test_a_block_that_arrives_late_changes_nothing_of_the_blob(place, proxy, far, requests):
    late = proxy.late(**requests["part"])
    sink, kept = written(far)
    assert len(sink.commit(permit(), kept).completed) == 1
    late.release()
    assert place.numbers() == [0, 1, 2, 3]
    assert place.sink().recover(Sweep(QUERY, "out", 1)) == 0
    assert_whole(place)


def test_a_block_that_was_changed_on_its_way_is_refused(place, far, monkeypatch):
    """By its MD5, which Azure compares."""
    from azure.storage.blob import BlobClient

    stage = BlobClient.stage_block
    sent = []

    def tampered(blob, block_id, data, length=None, **options):
        sent.append(options)
        return stage(blob, block_id, data, length, **options)

    monkeypatch.setattr(BlobClient, "stage_block", tampered)
    written(far)
    assert all(options["validate_content"] for options in sent)
