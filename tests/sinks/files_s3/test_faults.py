"""As on any store of objects; and answers that only S3 gives."""

from __future__ import annotations

import pytest

from onceforall.errors import SinkUnavailableError
from sinks.files.building import permit
from sinks.files_objects.faults import *  # noqa: F403
from sinks.files_objects.faults import MANY, assert_whole, written

pytestmark = pytest.mark.s3

ERROR_IN_200 = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>InternalError</Code><Message>by the test</Message></Error>"
)


@pytest.mark.parametrize("count", [1, MANY])
def test_an_error_in_a_200_is_no_success(place, proxy, far, requests, count):
    sink, kept = written(far)
    fault = proxy.say(ERROR_IN_200, **requests["complete"], count=count)
    if count == MANY:
        with pytest.raises(SinkUnavailableError, match="Cannot commit batch 0"):
            sink.commit(permit(), kept)
        assert place.files().rows == 0
        fault.end()
    assert len(sink.commit(permit(), kept).completed) == 1
    assert len(fault.requests) >= 1
    assert_whole(place)


def test_a_manifest_that_is_refused_for_a_race_is_put_again(place, proxy, far, requests):
    """409 stores nothing."""
    fault = proxy.answer(409, **requests["manifest"])
    sink, kept = written(far)
    assert len(sink.commit(permit(), kept).completed) == 1
    assert len(fault.requests) == 1
    assert_whole(place)


def test_completing_again_is_a_success_where_the_server_forgets_what_it_completed(
    place, proxy, far, requests
):
    """As MinIO does; moto remembers."""
    sink, kept = written(far)
    for key in ("p=a/", "p=b/"):
        proxy.lose(**requests["complete"], key=key)
    gone = proxy.answer(404, **requests["complete"], count=2)
    assert len(sink.commit(permit(), kept).completed) == 1
    assert len(gone.requests) == 2
    assert_whole(place)
