"""Fixtures of the file sink on HDFS."""

from __future__ import annotations

import pytest

from sinks.files_hdfs.folder import HdfsFolder


@pytest.fixture
def place(hdfs_folder):
    """A folder that is not there yet."""
    return HdfsFolder(f"{hdfs_folder}/lake")
