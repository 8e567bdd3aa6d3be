"""As on any store of objects; and a query that has its commit log on Azure, too."""

from __future__ import annotations

import signal

import pytest

from sinks.files_objects.queries import *  # noqa: F403
from sinks.files_objects.queries import Query

pytestmark = [
    pytest.mark.spark,
    pytest.mark.azure,
    pytest.mark.long,
    pytest.mark.timeout(600),
]


def test_a_query_with_its_commit_log_on_azure_is_killed_and_started_again(place, azurite, tmp_path):
    """By obstore."""
    query = Query(
        place,
        tmp_path,
        **{
            "onceforall.commitLog": f"az://{place.container}/logs/ads",
            "onceforall.store.account_name": azurite.account,
            "onceforall.store.account_key": azurite.key,
            "onceforall.store.endpoint": azurite.endpoint,
        },
    )
    for n in range(3):
        query.give((2 * n, "a"), (2 * n + 1, "b"))
    assert query.run("append_commit.after=kill@2") == -signal.SIGKILL, query.said[-3000:]
    query.runs()
    assert place.numbers() == list(range(6))
    assert len(place.files().batches) == 3
    assert place.left() == []
    with place.client() as client:
        logged = [each.name for each in client.list_blobs("logs/ads/")]
        kept = [client.download_blob(name).readall() for name in logged]
    assert logged
    assert not [content for content in kept if azurite.key.encode() in content]
    assert query.shows_no_secret()
