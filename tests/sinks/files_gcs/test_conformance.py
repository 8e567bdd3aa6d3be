"""The conformance suite, on an emulator of Google Cloud Storage: kill -9 between any two calls and
within them, in real processes."""

import pytest

from sinks.files_objects.conformance import check

pytestmark = [pytest.mark.gcs, pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_the_file_sink_keeps_the_contract(place, form):
    assert len(check(place, form)) > 20
