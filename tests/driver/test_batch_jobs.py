"""Which writes share a job."""

from types import SimpleNamespace

import pytest

from onceforall.driver.batch_jobs import groups_of, is_one_group
from onceforall.errors import SchemaError

FRAME = object()


def sinks(**keys):
    return {
        name: SimpleNamespace(capabilities=SimpleNamespace(one_task_per_key=each))
        for name, each in keys.items()
    }


def projections(*places):
    """What writes are computed to: where each of them has its key."""
    found = SimpleNamespace(places=lambda write, _: (places[write],))
    return SimpleNamespace(of_writes=lambda *_: found)


@pytest.mark.parametrize(("places", "groups"), [((0, 0), [[0, 1]]), ((0, 2), [[0], [1]])])
def test_writes_with_a_key_of_one_name_share_a_job_where_they_write_the_same(places, groups):
    both = sinks(a=("id",), b=("id",))
    made = groups_of([("a", FRAME), ("b", FRAME)], both, FRAME, projections(*places))
    assert [group.writes for group in made] == groups
    assert is_one_group(FRAME, both, projections(*places)) == (len(groups) == 1)


def test_a_frame_that_a_sink_cannot_take_is_no_error_before_it_is_written():
    """The write says so, and names the sink."""

    def refuse(*_):
        raise SchemaError("no column id")

    both = sinks(a=("id",), b=("id",))
    assert not is_one_group(FRAME, both, SimpleNamespace(of_writes=refuse))
