"""What a detachment sets aside: its own log, and nobody else's."""

import pytest

from onceforall.commit_log.envelope import FORMAT, encode_fields
from onceforall.spark import setting_aside


@pytest.mark.parametrize("there", ["its own", "another one's", "none"])
def test_only_the_log_that_was_detached_is_renamed_in_its_place(tmp_path, there):
    """A detachment that is repeated may find another query's log there by now."""
    place, told = tmp_path / "log", []
    if there != "none":
        place.mkdir()
        name = "mine" if there == "its own" else "theirs"
        binding_file = {"onceforall": FORMAT, "kind": "LOG", "id": name, "checkpoint": "/cp"}
        (place / "binding.json").write_bytes(encode_fields(binding_file))
    setting_aside.set_aside_elsewhere(
        tmp_path / "onceforall.detached-1", "mine", place.as_uri(), told.append
    )
    renamed = tmp_path / "log.detached-1"
    if there == "its own":
        assert renamed.is_dir()
        assert not place.exists()
        assert told == [f"Its entries lie in {renamed}. That folder may be deleted."]
    else:
        assert told == []
        assert not renamed.exists()
        assert place.exists() == (there != "none")
