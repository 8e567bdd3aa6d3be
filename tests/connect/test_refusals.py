"""What a start in Spark Connect refuses, in one sentence and before data moves; why a query has
failed; and that no secret value stands where it can be read."""

import sys
from urllib.parse import urlsplit

import psycopg
import pytest

from support.connect_server import PASSWORD
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


def refused(pipeline, server, **config):
    """Start a client whose query is refused at its start, and return class and message."""
    status = pipeline.start(server, **config).status()
    assert status["at"] == "start", status
    return status["class"], status["error"], status["raised"]


def test_what_a_start_can_see_is_refused_by_start_itself_and_nothing_is_written(
    connect_server, pipeline, database
):
    def refusal(**config):
        kind, error, raised = refused(pipeline, connect_server, **config)
        assert raised == kind, "start() raises the error as what it is"
        return kind, error

    kind, error = refusal(checkpoint="relative/checkpoint")
    assert (kind, "relative path" in error) == ("OptionError", True), error
    kind, error = refusal(checkpoint="hdfs://127.0.0.1:1/checkpoint")
    assert (kind, "Hadoop's client" in error) == ("UnsupportedQueryError", True), error
    kind, error = refusal(sinks=["postgres"], database=f"{database}-absent")
    assert (kind, "-absent" in error) == ("SinkCheckError", True), error
    assert not (pipeline.checkpoint / "offsets").exists()


@pytest.mark.long  # by the same way as the others
def test_more_that_a_start_can_see_is_refused_and_nothing_is_written(connect_server, pipeline):
    kind, error, raised = refused(pipeline, connect_server, holds_lock=True)
    assert (kind, raised, "can't be taken there" in error) == ("OptionError", "OptionError", True)
    kind, error, _ = refused(pipeline, connect_server, aggregate=True, output_mode="update")
    assert (kind, "'update'" in error) == ("UnsupportedQueryError", True), error
    kind, error, raised = refused(
        pipeline, connect_server, door="exactly_once", checkpoint="hdfs://127.0.0.1:1/checkpoint"
    )
    assert kind == "UnsupportedQueryError", "error_of finds it in what Spark raises"
    assert raised not in {kind, "PySparkPicklingError"}
    assert not (pipeline.checkpoint / "offsets").exists()


@pytest.mark.long
def test_a_module_that_the_server_lacks_and_a_path_that_it_cannot_know_are_refused(
    connect_server, pipeline, tmp_path
):
    (tmp_path / "onceforall_jobs.py").write_text("def same(frame):\n    return frame\n")
    kind, error, raised = refused(pipeline, connect_server, imports_from=str(tmp_path))
    assert (kind, raised) == ("ExecutorCheckError", "ExecutorCheckError"), error
    assert "No module named 'onceforall_jobs'" in error
    kind, error, _ = refused(pipeline, connect_server, files="relative/files")
    assert (kind, "relative path" in error) == ("OptionError", True), error
    assert not (pipeline.checkpoint / "offsets").exists()


@pytest.mark.long
def test_exactly_once_names_the_queries_own_checkpoint_or_nothing_is_written(
    connect_server, pipeline, tmp_path
):
    status = pipeline.start(
        connect_server, door="exactly_once", named_checkpoint=str(tmp_path / "another")
    ).status()
    assert (status["at"], status["class"]) == ("run", "CheckpointMismatchError"), status
    assert "Name the same one" in status["ours"]
    assert not list((tmp_path / "files").rglob("part-*"))
    # One in which another query runs: that one isn't fenced, and goes on.
    stop_file = tmp_path / "stop"
    running = pipeline.start(
        connect_server,
        checkpoint=str(tmp_path / "other"),
        until_batch=1000,
        stop_file=str(stop_file),
    )
    commits = tmp_path / "other" / "commits"
    until(lambda: (commits / "0").exists(), 60, running.log)
    status = pipeline.start(
        connect_server,
        door="exactly_once",
        named_checkpoint=str(tmp_path / "other"),
        files=str(tmp_path / "foreign"),
    ).status()
    assert (status["at"], status["class"]) == ("run", "CheckpointMismatchError"), status
    assert "Name the same one" in status["ours"]
    assert not list((tmp_path / "foreign").rglob("part-*"))
    newest = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
    until((commits / str(newest + 2)).exists, 60, running.log)
    # The server is other tests', too, and would go on with it.
    stop_file.touch()
    assert running.status()["error"] is None


@pytest.mark.long  # write_stream does so at its start
def test_exactly_once_refuses_an_output_mode_that_a_sink_cannot_serve_at_the_first_batch(
    connect_server, pipeline
):
    status = pipeline.start(
        connect_server, door="exactly_once", aggregate=True, output_mode="update"
    ).status()
    assert (status["at"], status["class"]) == ("run", "UnsupportedQueryError"), status
    assert "'update'" in status["ours"]


@pytest.mark.long
def test_why_a_query_has_failed_is_known_to_its_client(connect_server, pipeline):
    status = pipeline.start(connect_server, raises="of the user's").status()
    # Python 3.10 prints no notes, in which the batch stands.
    batch = 0 if sys.version_info >= (3, 11) else None
    told = (status["at"], status["class"], status["batch"])
    assert told == ("run", "AttemptFailedError", batch), status
    assert "of the user's" in status["ours"]


@pytest.fixture
def guarded(database):
    """A role with a password, and how to connect as it."""
    with psycopg.connect(database) as connection:
        connection.execute(f"CREATE ROLE guarded LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    parts = urlsplit(database)
    yield parts._replace(netloc=f"guarded@{parts.hostname}:{parts.port}").geturl()
    with psycopg.connect(database) as connection:
        connection.execute("DROP OWNED BY guarded; DROP ROLE guarded")


def test_a_password_reaches_driver_and_tasks_and_stands_in_no_log(
    connect_server, pipeline, guarded
):
    pipeline.run(
        connect_server, sinks=["postgres"], database=guarded, password=PASSWORD, until_batch=0
    )
    looked_at = [
        *(path for path in connect_server.events.rglob("*") if path.is_file()),
        connect_server.folder / "log.txt",
        *(path for path in pipeline.folder.rglob("*") if path.is_file()),
    ]
    told = [
        path
        for path in looked_at
        if PASSWORD.encode() in path.read_bytes() and path.name != "config.json"
    ]
    assert (connect_server.folder / "log.txt").stat().st_size > 10_000
    assert len(looked_at) > 10
    assert told == []
