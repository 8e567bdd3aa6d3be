"""As on any store of objects."""

import pytest

from sinks.files_objects.faults import *  # noqa: F403

pytestmark = [
    pytest.mark.gcs,
    pytest.mark.long,
    # Google's client leaves the connection of a download that was refused to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
