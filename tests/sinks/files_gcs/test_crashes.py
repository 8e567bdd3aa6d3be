"""As on any store of objects."""

import pytest

from sinks.files_objects.crashes import *  # noqa: F403

pytestmark = [pytest.mark.gcs, pytest.mark.long, pytest.mark.timeout(600)]
