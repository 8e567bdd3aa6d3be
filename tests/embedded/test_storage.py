"""Formatting a data folder: what a user is told when it does not come to that."""

import pytest

from onceforall.embedded.storage import format_folder
from onceforall.errors import EmbeddedServerError


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("exec sleep 60", r"could not be formatted in 1 s"),
        ("echo no room >&2; exit 3", "StorageTool said:\nno room"),
    ],
    ids=["slow", "failing"],
)
def test_a_folder_that_is_not_formatted_is_named_with_the_reason(tmp_path, program, says):
    with pytest.raises(EmbeddedServerError, match=says) as caught:
        format_folder(
            tmp_path, ["sh", "-c", program], deadline_s=1.0 if "sleep" in program else 30.0
        )
    assert str(tmp_path) in str(caught.value)
