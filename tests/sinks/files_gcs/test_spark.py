"""As on any store of objects."""

import pytest

from sinks.files_objects.queries import *  # noqa: F403

pytestmark = [pytest.mark.spark, pytest.mark.gcs, pytest.mark.long, pytest.mark.timeout(600)]
