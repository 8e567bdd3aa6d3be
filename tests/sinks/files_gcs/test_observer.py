"""As on any store of objects."""

import pytest

from sinks.files_objects.observer import *  # noqa: F403

pytestmark = [pytest.mark.gcs, pytest.mark.long]
