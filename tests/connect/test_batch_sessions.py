"""From Spark 4.3 on, a server gives each batch on a clone of the session in which the query was
started, with a client of its own. The kills of ``test_kills`` show the same on real servers of the
version that is installed."""

from types import SimpleNamespace

import pytest

from onceforall.driver import connect
from onceforall.errors import CheckpointMismatchError
from onceforall.spark.connect.run import ConnectRun


class Session:
    """What is asked of a session, and of its client."""

    def __init__(self):
        self.client = self
        self.interrupted = []
        self.closed = 0

    def interruptTag(self, tag):  # noqa: N802
        self.interrupted.append(tag)

    def close(self):
        self.closed += 1


def test_a_stop_interrupts_the_jobs_of_the_session_that_has_the_batch():
    asked = []
    query = SimpleNamespace(
        id="q",
        runId="r",
        name=None,
        isActive=True,
        explain=lambda _: None,
        stop=lambda: asked.append("stop"),
    )
    root, clone = Session(), Session()
    run = ConnectRun(root, query)
    run.jobs(SimpleNamespace(sparkSession=clone))
    run.stop()
    assert len(clone.interrupted) == 1
    assert asked == ["stop"]


def test_the_clients_of_both_sessions_are_closed_when_the_server_is_gone(tmp_path):
    root, clone = Session(), Session()
    function = connect._ServerFunction(SimpleNamespace(), {}, root, tmp_path / "nowhere")
    function.close_clients()
    assert root.closed == 1
    with pytest.raises(CheckpointMismatchError):
        function(SimpleNamespace(sparkSession=clone), 0)
    function.close_clients()
    assert (root.closed, clone.closed) == (1, 1)


def test_a_client_that_can_not_be_closed_is_closed_by_the_next_turn_and_holds_no_other_up(tmp_path):
    root, clone = Session(), Session()
    function = connect._ServerFunction(SimpleNamespace(), {}, root, tmp_path / "nowhere")
    with pytest.raises(CheckpointMismatchError):
        function(SimpleNamespace(sparkSession=clone), 0)

    def fails():
        raise RuntimeError("Set changed size during iteration")

    root.close = fails
    function.close_clients()
    assert (root.closed, clone.closed) == (0, 1)
    del root.close
    function.close_clients()
    assert (root.closed, clone.closed) == (1, 1)
