"""What a loss of power leaves of Spark's files in a checkpoint, and what is put back from the
commit log; Spark itself is in tests/crash."""

import json
import os
import shutil

import pytest

from onceforall.cli import main
from onceforall.commit_log import CommitLog, LocalStore, binding
from onceforall.errors import CheckpointMismatchError, CommitLogError, OptionError
from onceforall.protocol.entries import Claim, Commit, Done
from onceforall.spark import mending, repairs
from spark.test_state_paths import SCHEMA, Place
from support.syncing import Recorder

ID = "7d0c1b6e-0000-4000-8000-000000000000"
HEADER = ("v1", '{"batchWatermarkMs":7000,"batchTimestampMs":1795264652177,"conf":{"a":"b"}}')
OFFSETS = ('{"clicks":{"0":3}}', "-")
PLAN = "\n".join((*HEADER, *OFFSETS))
COMMITTED = 'v1\n{"nextBatchWatermarkMs":7000}'
SALTED = "state/0/1/2_942eaa0c-5286-404f-89ab-7dd24a2047d0.changelog"
"""What batch 1 has written with state of format 2."""


class Checkpoint:
    """A checkpoint in which batch 0 is complete, and batch 1 is decided."""

    def __init__(self, path, header=HEADER, offsets=OFFSETS):
        self.path = path
        for part in ("offsets", "commits", "sources/0"):
            (path / part).mkdir(parents=True)
        self.write("metadata", json.dumps({"id": ID}, separators=(",", ":")))
        plan = "\n".join((*HEADER, *offsets))
        self.write("offsets/0", plan.replace("7000", "0").replace(":3", ":1"))
        self.write("offsets/1", plan)
        self.write("commits/0", COMMITTED)
        self.log = CommitLog(LocalStore(path / "onceforall"))
        self.generation = self.log.claim(Claim(ID, "run", str(path))).generation
        self.log.append(self.generation, Commit(0, offsets, {}, header=header))
        self.log.append(self.generation, Done(0))
        self.log.append(self.generation, Commit(1, offsets, {}, header=header))

    def write(self, name, text):
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def lose(self, name):
        (self.path / name).unlink()

    def text(self, name):
        return (self.path / name).read_text()

    def files(self):
        """Return the files that Spark reads."""
        found = (file for file in self.path.rglob("*") if file.is_file())
        return {
            str(file.relative_to(self.path)): file.read_bytes()
            for file in found
            if "onceforall" not in str(file.relative_to(self.path))
        }

    def set_aside(self):
        return sorted(
            file.name.rpartition(".")[0] for file in (self.path / mending.SET_ASIDE).glob("*")
        )


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "cp")


@pytest.mark.parametrize(
    "torn", ["", PLAN[:20], PLAN[:-3], "\n".join(PLAN.split("\n")[:-1]), "\0" * 40], ids=range(5)
)
def test_the_torn_plan_of_a_decided_batch_is_put_back_as_it_was(checkpoint, torn):
    before = checkpoint.files()
    checkpoint.write("offsets/1", torn)
    checkpoint.write("offsets/.1.crc", "crc of something else")
    assert len(mending.put_back(checkpoint.path).steps) == 1
    assert checkpoint.files() == before
    assert checkpoint.set_aside() == ["offsets.1"]


def test_the_checksum_of_a_plan_that_is_gone_goes_too(checkpoint):
    """Spark would take the plan that is put back for damaged."""
    checkpoint.lose("offsets/1")
    checkpoint.write("offsets/.1.crc", "crc of what is gone")
    mending.put_back(checkpoint.path)
    assert checkpoint.text("offsets/1") == PLAN
    assert not (checkpoint.path / "offsets" / ".1.crc").exists()


def test_a_plan_that_is_gone_is_put_back_durably_before_spark_reads_it(checkpoint, monkeypatch):
    checkpoint.lose("offsets/1")
    recorder = Recorder(monkeypatch)
    mending.put_back(checkpoint.path)
    assert checkpoint.text("offsets/1") == PLAN
    linked = recorder.linked(checkpoint.path / "offsets" / "1")
    assert any(call[0] == "sync" and ".1." in call[1].name for call in recorder.calls[:linked])
    assert recorder.synced(checkpoint.path / "offsets") > linked


def test_where_nothing_is_wrong_nothing_is_changed(checkpoint, capsys):
    before = checkpoint.files()
    assert mending.put_back(checkpoint.path).steps == ()
    assert main(["checkpoint", "mend", str(checkpoint.path)]) == 0
    assert "Nothing is to be mended" in capsys.readouterr().out
    assert checkpoint.files() == before


def test_a_plan_that_the_command_puts_back_is_not_called_missing_for_good(checkpoint, capsys):
    before = checkpoint.files()
    checkpoint.lose("offsets/1")
    for dry_run in (["--dry-run"], []):
        assert main(["checkpoint", "mend", str(checkpoint.path), *dry_run]) == 0
        said = capsys.readouterr().out
        assert "offsets/1 is missing, though batch 1 is decided" in said
        assert "edited, restored" not in said
    assert checkpoint.files() == before


def test_what_was_mended_is_told_though_a_look_behind_it_fails(checkpoint, monkeypatch, caplog):
    checkpoint.lose("offsets/1")
    foretold = mending.mend(checkpoint.path, dry_run=True).steps
    known, looks = mending._known, []

    def fails_behind(*arguments, **options):
        looks.append(1)
        if (checkpoint.path / "offsets" / "1").exists():
            raise CommitLogError("the store is away")
        return known(*arguments, **options)

    monkeypatch.setattr(mending, "_known", fails_behind)
    assert mending.mend(checkpoint.path) == mending.Mended(foretold)
    assert len(looks) == 2
    assert "the store is away" in caplog.text


def test_a_log_that_was_moved_with_its_checkpoint_is_looked_at_where_it_is_now(tmp_path):
    """The start with adoptCheckpoint and commitLog looks before it binds the log there."""
    made = Checkpoint(tmp_path / "cp")
    shutil.rmtree(made.path / "onceforall")
    home = LocalStore(made.path / "onceforall")
    bound = binding.bind(home, str(made.path), (tmp_path / "log").as_uri(), query_id=ID)
    bound.log().claim(Claim(ID, "run", str(made.path)))
    made.write("offsets/2", "")
    there = Place(made.path, f"file:/was/{SCHEMA}")
    (tmp_path / "log").rename(tmp_path / "moved")
    new = made.path.rename(tmp_path / "renamed")
    location = (tmp_path / "moved").as_uri()
    pointers = sorted((new / "onceforall" / "pointer").iterdir())
    done = mending.put_back(new, location, adopt=True)
    assert [step.partition(" ")[0] for step in done.steps] == [
        str(new / "offsets" / "2"),
        str(new / there.file.relative_to(made.path)),
    ]
    assert sorted((new / "onceforall" / "pointer").iterdir()) == pointers
    assert mending.put_back(new, location, adopt=True).steps == ()


def test_what_is_planned_and_not_decided_is_only_set_aside_where_it_is_torn(checkpoint):
    checkpoint.write("commits/1", COMMITTED)
    checkpoint.write("offsets/2", PLAN.replace(":3", ":9"))
    assert mending.put_back(checkpoint.path).steps == ()
    checkpoint.write("offsets/2", "")
    mending.put_back(checkpoint.path)
    assert checkpoint.set_aside() == ["offsets.2"]
    assert not (checkpoint.path / "offsets" / "2").exists()


def test_sparks_torn_entry_of_the_decided_batch_is_set_aside_and_a_whole_one_stays(checkpoint):
    checkpoint.write("commits/1", "")
    mending.put_back(checkpoint.path)
    assert checkpoint.set_aside() == ["commits.1"]
    assert checkpoint.text("commits/0") == COMMITTED


@pytest.mark.parametrize("entry", ["", "\0" * 30, None], ids=["empty", "zeros", "gone"])
def test_what_is_planned_behind_a_decided_batch_whose_entry_is_lost_goes_with_it(checkpoint, entry):
    """Spark finds state of format 2 by that entry; of format 1 it needs none."""
    checkpoint.write("offsets/2", PLAN.replace(":3", ":9"))
    checkpoint.write("state/0/1/2.changelog", "of format 1")
    assert mending.put_back(checkpoint.path).steps == ()
    checkpoint.write(SALTED, "of batch 1")
    if entry is not None:
        checkpoint.write("commits/1", entry)
    checkpoint.write("offsets/3", PLAN.replace(":3", ":12"))
    foretold = mending.put_back(checkpoint.path, dry_run=True).steps
    assert mending.put_back(checkpoint.path).steps == foretold
    assert {"offsets.2", "offsets.3"} == {*checkpoint.set_aside()} - {"commits.1"}
    assert checkpoint.text("offsets/1") == PLAN
    assert mending.put_back(checkpoint.path).steps == ()


def test_a_plan_stays_whose_run_has_only_just_written_the_entry_before_it(
    checkpoint, before_it_is_set_aside
):
    checkpoint.write(SALTED, "of batch 1")
    checkpoint.write("offsets/2", PLAN.replace(":3", ":9"))
    before_it_is_set_aside(lambda: checkpoint.write("commits/1", COMMITTED))
    mending.put_back(checkpoint.path)
    assert checkpoint.text("offsets/2") == PLAN.replace(":3", ":9")


def test_a_plan_behind_a_batch_that_has_no_plan_any_more_is_left_to_the_start(checkpoint):
    checkpoint.write(SALTED, "of batch 1")
    checkpoint.lose("offsets/1")
    checkpoint.lose("offsets/0")
    checkpoint.write("offsets/2", PLAN.replace(":3", ":9"))
    mending.put_back(checkpoint.path)
    assert checkpoint.text("offsets/2") == PLAN.replace(":3", ":9")


def test_sparks_torn_entries_of_a_plain_query_are_not_touched_for_its_rows_are_visible(tmp_path):
    made = Checkpoint(tmp_path / "plain")
    for file in (made.path / "onceforall").rglob("0*.json"):
        file.unlink()
    made.log = CommitLog(LocalStore(made.path / "onceforall"))
    made.log.claim(Claim(ID, "run", str(made.path)))
    made.write("commits/0", "")
    made.write("sources/0/0", "")
    made.write("commits/1", COMMITTED)
    assert mending.put_back(made.path).steps == ()


def test_a_torn_id_is_the_one_that_the_newest_claim_has(checkpoint):
    before = checkpoint.text("metadata")
    checkpoint.write("metadata", "")
    mending.put_back(checkpoint.path)
    assert checkpoint.text("metadata") == before


def test_an_id_that_is_missing_altogether_is_not_put_back_for_somebody_may_have_begun_anew(
    checkpoint,
):
    checkpoint.lose("metadata")
    mending.put_back(checkpoint.path)
    assert not (checkpoint.path / "metadata").exists()


def test_of_a_file_source_only_what_no_decided_batch_has_read_is_set_aside(tmp_path):
    made = Checkpoint(tmp_path / "cp")
    made.log.append(made.generation, Done(1))
    made.log.append(made.generation, Commit(2, ('{"logOffset":4}', "-"), {}, header=HEADER))
    made.write("offsets/2", "\n".join((*HEADER, '{"logOffset":4}', "-")))
    for number in (3, 4, 5):
        made.write(f"sources/0/{number}", "")
    made.write("sources/0/6", 'v1\n{"path":"file:///a","timestamp":1,"batchId":6}')
    made.write("sources/1/0", "")
    mending.put_back(made.path)
    assert made.set_aside() == ["sources.0.5"]


def test_a_plan_that_says_something_else_is_left_to_the_command_which_keeps_it(checkpoint, capsys):
    checkpoint.write("offsets/1", PLAN.replace(":3", ":9"))
    checkpoint.write("offsets/2", PLAN)
    assert mending.put_back(checkpoint.path).steps == ()
    command = ["checkpoint", "mend", str(checkpoint.path)]
    before = checkpoint.files()
    assert main([*command, "--dry-run"]) == 0
    assert "Nothing is changed" in capsys.readouterr().out
    assert checkpoint.files() == before
    assert main(command) == 0
    assert checkpoint.text("offsets/1") == PLAN
    assert checkpoint.set_aside() == ["offsets.1", "offsets.2"]


def test_a_plan_that_says_something_else_of_a_batch_that_spark_has_finished_is_no_loss_of_power(
    checkpoint,
):
    checkpoint.write("offsets/1", PLAN.replace(":3", ":9"))
    checkpoint.write("commits/1", COMMITTED)
    with pytest.raises(CheckpointMismatchError, match="no loss of power does that"):
        mending.mend(checkpoint.path)


def test_a_decision_of_an_earlier_release_takes_the_plans_settings_from_the_batch_before(tmp_path):
    made = Checkpoint(tmp_path / "cp", header=())
    made.lose("offsets/1")
    mending.put_back(made.path)
    lines = made.text("offsets/1").split("\n")
    assert tuple(lines[2:]) == OFFSETS
    # The watermark is what the batch before has left behind.
    assert json.loads(lines[1]) == {
        "batchWatermarkMs": 7000,
        "batchTimestampMs": 1795264652177,
        "conf": {"a": "b"},
    }


def test_state_is_not_rebuilt_with_settings_that_nobody_knows(tmp_path):
    made = Checkpoint(tmp_path / "cp", header=())
    made.write("state/0/0/1.delta", "x")
    made.lose("offsets/0")
    made.write("offsets/1", "")
    with pytest.raises(CheckpointMismatchError, match="earlier release"):
        mending.put_back(made.path)


@pytest.mark.parametrize(
    "gone", [("metadata",), ("offsets/0",), ("sources/0/2",), ("state", "commits/0")], ids="+".join
)
def test_a_missing_plan_is_not_put_back_where_spark_could_not_run_its_batch(tmp_path, gone):
    """A checkpoint that was restored or edited: the start refuses it by what it is, as ever."""
    made = Checkpoint(tmp_path / "cp", offsets=('{"logOffset":2}',))
    made.write("sources/0/2", "v1\n{}")
    if gone[0] == "state":
        made.write("state/0/0/1.delta", "x")
        gone = gone[1:]
    made.lose("offsets/1")
    for name in gone:
        made.lose(name)
    before = made.files()
    assert mending.put_back(made.path).steps == ()
    assert made.files() == before


def test_a_missing_plan_is_put_back_where_all_that_it_needs_is_there(tmp_path):
    made = Checkpoint(tmp_path / "cp", offsets=('{"logOffset":2}',))
    made.write("sources/0/2", "v1\n{}")
    made.lose("offsets/1")
    assert len(mending.put_back(made.path).steps) == 1
    assert made.text("offsets/1").splitlines()[2:] == ['{"logOffset":2}']


@pytest.mark.parametrize("torn", [None, ""], ids=["gone", "empty"])
def test_a_plan_whose_input_a_source_does_not_know_any_more_is_planned_anew(tmp_path, torn):
    made = Checkpoint(tmp_path / "cp", offsets=('{"logOffset":2}',))
    for number in (0, 1, 2):
        made.write(f"sources/0/{number}", "v1\n{}")
    for number in (2, 3):
        made.write(f"offsets/{number}", "\n".join((*HEADER, f'{{"logOffset":{number + 1}}}')))
    made.write("sources/0/4", "v1\n{}")
    if torn is not None:
        made.write("sources/0/3", torn)
    mending.put_back(made.path)
    assert [name for name in made.set_aside() if name.startswith("offsets")] == [
        "offsets.2",
        "offsets.3",
    ]


def test_a_plan_whose_input_the_sources_know_stays(tmp_path):
    made = Checkpoint(tmp_path / "cp", offsets=('{"logOffset":2}',))
    for name in ("2.compact", "3", "4"):
        made.write(f"sources/0/{name}", "v1\n{}")
    for number in (2, 3):
        made.write(f"offsets/{number}", "\n".join((*HEADER, f'{{"logOffset":{number + 1}}}')))
    before = made.files()
    assert mending.put_back(made.path).steps == ()
    assert made.files() == before


def test_a_first_plan_goes_with_the_first_offsets_of_its_source(tmp_path):
    """Spark would begin at today's end of a topic, and the plan says less."""
    made = new_checkpoint(tmp_path / "cp")
    made.write("sources/0/0", "")
    mending.put_back(made.path)
    assert {"offsets.0", "sources.0.0"} <= set(made.set_aside())


@pytest.mark.parametrize("lines", [("0:17", "name-1:x"), ('0:{"logOffset":2}',)])
def test_plans_that_a_plain_query_has_finished_are_left_alone(tmp_path, lines):
    """In a checkpoint that is adopted nothing is decided yet."""
    made = new_checkpoint(tmp_path / "cp")
    for number in (0, 1):
        made.write(f"offsets/{number}", "\n".join(("v2", HEADER[1], *lines)))
        made.write(f"commits/{number}", COMMITTED)
    before = made.files()
    mending.put_back(made.path)
    assert {name: before[name] for name in before if "state" not in name} == {
        name: content for name, content in made.files().items() if "state" not in name
    }


def test_a_plan_that_is_as_it_was_decided_is_whole_whatever_its_offsets_look_like(tmp_path):
    odd = ('0:{"k":"a\u2028b"}', "1:[not JSON")
    made = Checkpoint(tmp_path / "cp", offsets=odd, header=())
    for number in (0, 1):
        made.write(f"offsets/{number}", "\n".join(("v2", HEADER[1], *odd)))
    before = made.files()
    assert mending.put_back(made.path).steps == ()
    assert made.files() == before


@pytest.mark.parametrize(
    "line",
    ["17", "any text: of a source of one's own", '0:{"t":{"0":3}}', "my-source:-", '"quoted"'],
)
def test_offsets_that_are_no_json_are_not_taken_for_torn(checkpoint, line):
    checkpoint.write("offsets/2", "\n".join((*HEADER, line, "-")))
    before = checkpoint.files()
    assert mending.put_back(checkpoint.path).steps == ()
    assert checkpoint.files() == before


def new_checkpoint(path):
    """Return one in which a run has begun its first batch, and decided nothing."""
    made = Checkpoint(path)
    for name in ("commits/0", "offsets/1"):
        made.lose(name)
    for file in (path / "onceforall").rglob("0*.json"):
        file.unlink()
    CommitLog(LocalStore(path / "onceforall")).claim(Claim(ID, "run", str(path)))
    made.write("state/0/0/_metadata/schema", "")
    made.write("state/0/0/1.delta", "x")
    return made


def test_state_without_a_plan_is_set_aside_as_a_whole_for_spark_begins_anew_without_any(tmp_path):
    made = new_checkpoint(tmp_path / "cp")
    made.write("offsets/0", "")
    mending.put_back(made.path)
    assert made.set_aside() == ["offsets.0", "state"]
    assert not (made.path / "state").exists()


def test_of_the_state_of_a_first_batch_that_is_planned_only_empty_files_are_set_aside(tmp_path):
    made = new_checkpoint(tmp_path / "cp")
    made.write("sources/0/0", 'v1\n{"clicks":{"0":0}}')
    mending.put_back(made.path)
    assert made.set_aside() == ["state.0.0._metadata.schema"]


@pytest.fixture
def before_it_is_set_aside(monkeypatch):
    """Let others act where a start or a command stands still before its first rename."""

    def do(act):
        real = repairs._set_aside

        def woken(path, target):
            monkeypatch.setattr(repairs, "_set_aside", real)
            act()
            return real(path, target)

        monkeypatch.setattr(repairs, "_set_aside", woken)

    return do


@pytest.mark.parametrize("door", [mending.put_back, mending.mend])
def test_a_plan_that_another_run_has_made_and_decided_meanwhile_stays(
    checkpoint, before_it_is_set_aside, door
):
    checkpoint.write("offsets/2", "")

    def others():
        mending.put_back(checkpoint.path)
        checkpoint.write("offsets/2", PLAN)
        generation = checkpoint.log.claim(Claim(ID, "run", str(checkpoint.path))).generation
        checkpoint.log.seal_below(generation)
        checkpoint.log.append(generation, Commit(2, OFFSETS, {}, header=HEADER))

    before_it_is_set_aside(others)
    assert door(checkpoint.path).steps == ()
    assert checkpoint.text("offsets/2") == PLAN


def test_an_id_that_another_run_has_put_back_meanwhile_stays(checkpoint, before_it_is_set_aside):
    before = checkpoint.text("metadata")
    checkpoint.write("metadata", "")
    before_it_is_set_aside(lambda: mending.put_back(checkpoint.path))
    assert mending.put_back(checkpoint.path).steps == ()
    assert checkpoint.text("metadata") == before


@pytest.mark.parametrize("claims", [True, False])
def test_state_of_a_run_that_has_begun_meanwhile_stays(tmp_path, before_it_is_set_aside, claims):
    """Also what its tasks have written while it was gone."""
    made = new_checkpoint(tmp_path / "cp")
    made.write("offsets/0", "")

    def others():
        mending.put_back(made.path)
        made.write("offsets/0", PLAN)
        made.write("sources/0/0", 'v1\n{"clicks":{"0":0}}')
        made.write("state/0/0/_metadata/schema", "of the new run")
        made.write("state/0/0/.1.delta.crc", "its checksum")
        if claims:
            made.log.claim(Claim(ID, "run", str(made.path)))

    # Of offsets/0 and state, which are judged in one go, it stands still before the second.
    real, calls = repairs.carry_out, []

    def carry_out(*args):
        calls.append(args)
        if len(calls) == 2:
            others()
        return real(*args)

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(mending, "carry_out", carry_out)
        mending.put_back(made.path)
    assert made.text("offsets/0") == PLAN
    if claims:
        assert made.text("state/0/0/_metadata/schema") == "of the new run"
        assert made.text("state/0/0/.1.delta.crc") == "its checksum"
    else:
        # Nobody claims: nothing can have been decided on it.
        assert not (made.path / "state").exists()


def put_aside(checkpoint, name, mark="0a0b0c0d", ending=".taken"):
    aside = checkpoint.path / mending.SET_ASIDE
    aside.mkdir(exist_ok=True)
    (checkpoint.path / name).rename(aside / f"{name.replace('/', '.')}.{mark}{ending}")


NEEDED = '{"logOffset":3}'


@pytest.mark.parametrize(
    ("name", "is_needed"),
    [
        ("sources/0/3", True),
        ("sources/0/2.compact", True),
        ("sources/0/4", False),
        ("state", True),
    ],
)
def test_what_was_set_aside_late_by_somebody_who_was_killed_then_is_laid_back(
    tmp_path, name, is_needed
):
    made = Checkpoint(tmp_path / "cp", offsets=(NEEDED, "-"))
    for file in ("sources/0/3", "sources/0/2.compact", "sources/0/4"):
        made.write(file, 'v1\n{"path":"x"}')
    made.write("state/0/0/2.delta", "x")
    made.write("state/0/0/.2.delta.crc", "y")
    before = made.files()
    put_aside(made, name)
    steps = mending.put_back(made.path).steps
    if is_needed:
        assert len(steps) == 1
        assert "laid back" in steps[0]
        assert made.files() == before
        assert made.set_aside() == []
    else:
        assert steps == ()
    assert mending.put_back(made.path).steps == ()


@pytest.mark.parametrize(
    ("name", "text", "is_needed"),
    [
        ("state/0/1/2.delta", "x", True),
        ("state/0/1/left-keyToNumValues/2_6c3d0a50-6e0c.zip", "x", True),
        ("state/0/_metadata/metadata", "x", True),
        ("state/0/1/3.delta", "of a batch that is not decided", False),
        ("state/0/1/2.delta", "", False),
        ("sources/1/0", 'v1\n{"clicks":{"0":0}}', True),
        ("sources/1/0", "in a form of its own", True),
        ("sources/1/0", "v1", False),
        ("sources/1/of/its/own/7", "x", True),
        ("sources/1/of/its/own/7", "\0\0", False),
        ("sources/2/0", "of a source that the query doesn't have", False),
    ],
)
@pytest.mark.parametrize("was_looked_at", [False, True])
def test_one_file_that_was_taken_for_torn_and_is_whole_is_laid_back(
    tmp_path, name, text, is_needed, was_looked_at
):
    """Somebody stood still behind his look, and was killed when he had set another one aside."""
    made = Checkpoint(tmp_path / "cp", offsets=(NEEDED, '{"clicks":{"0":2}}'))
    made.write("state/0/1/.1.delta.crc", "y")
    made.write(name, text)
    before = made.files()
    put_aside(made, name, mark="7-0a0b0c0d", ending="" if was_looked_at else ".taken")
    steps = mending.put_back(made.path).steps
    if is_needed and not was_looked_at:
        assert len(steps) == 1
        assert "laid back" in steps[0]
        assert made.files() == before
    else:
        assert steps == ()
    assert mending.put_back(made.path).steps == ()


def test_a_file_of_state_is_not_laid_back_where_the_query_keeps_none_or_its_folders_are_gone(
    checkpoint,
):
    checkpoint.write("state/0/1/2.delta", "x")
    put_aside(checkpoint, "state/0/1/2.delta")
    shutil.rmtree(checkpoint.path / "state")
    assert mending.put_back(checkpoint.path).steps == ()
    checkpoint.write("state/0/_metadata/metadata", "x")
    assert len(mending.put_back(checkpoint.path).steps) == 1
    assert checkpoint.text("state/0/1/2.delta") == "x"
    put_aside(checkpoint, "state/0/1/2.delta")
    shutil.rmtree(checkpoint.path / "state/0")
    assert mending.put_back(checkpoint.path).steps == ()


def test_what_is_torn_or_of_another_query_or_of_no_decided_batch_is_not_laid_back(tmp_path):
    made = Checkpoint(tmp_path / "cp", offsets=(NEEDED, "-"))
    made.write("sources/0/3", "v1")
    put_aside(made, "sources/0/3")
    made.write("state/0/0/1.delta", "of a batch that came to nothing")
    put_aside(made, "state")
    assert mending.put_back(made.path).steps == ()
    assert not (made.path / "state").exists()
    assert not (made.path / "sources/0/3").exists()


def test_an_id_of_another_query_is_not_laid_back_but_the_logs_own(checkpoint):
    checkpoint.write("metadata", json.dumps({"id": "another"}))
    put_aside(checkpoint, "metadata")
    [step] = mending.put_back(checkpoint.path).steps
    assert "was set aside" in step
    assert json.loads(checkpoint.text("metadata")) == {"id": ID}


def test_what_has_come_meanwhile_stays_and_the_rest_is_laid_back_beside_it(tmp_path):
    aside = tmp_path / "aside"
    for name in ("a/1", "a/.1.crc", "b/c/2"):
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        (aside / name).write_text("old")
    (tmp_path / "state" / "a").mkdir(parents=True)
    (tmp_path / "state" / "a" / "1").write_text("new")
    repairs._lay_back(aside, tmp_path / "state")
    found = {
        file.relative_to(tmp_path / "state").as_posix(): file.read_text()
        for file in (tmp_path / "state").rglob("*")
        if file.is_file()
    }
    assert found == {"a/1": "new", "a/.1.crc": "old", "b/c/2": "old"}
    assert [file.read_text() for file in aside.rglob("*") if file.is_file()] == ["old"]


class Killed(BaseException):
    """Stands for SIGKILL."""


def killed_at(monkeypatch, name, call):
    """Kill whoever calls a function of ``repairs`` so often."""
    real, calls = getattr(repairs, name), []

    def dying(*args):
        calls.append(args)
        if len(calls) == call:
            raise Killed
        return real(*args)

    monkeypatch.setattr(repairs, name, dying)


@pytest.mark.parametrize("lost", [None, "offsets/0"])
@pytest.mark.parametrize("torn", ["metadata", "offsets/1"])
@pytest.mark.parametrize("where", ["_create", "_settle"])
def test_whoever_is_killed_between_set_aside_and_put_back_is_gone_on_from(
    checkpoint, monkeypatch, torn, where, lost
):
    """Also where the disk is full then, and where not all is there that a missing plan needs."""
    before = checkpoint.text(torn)
    checkpoint.write(torn, "")
    if lost is not None:
        checkpoint.lose(lost)
    with monkeypatch.context() as patched:
        killed_at(patched, where, 1)
        with pytest.raises(Killed):
            mending.mend(checkpoint.path)
    assert not (checkpoint.path / torn).exists()
    assert any(torn in step for step in mending.put_back(checkpoint.path).steps)
    assert checkpoint.text(torn) == before
    assert mending.put_back(checkpoint.path).steps == ()


def test_state_that_was_set_aside_rightly_stays_there_when_a_batch_is_decided_without_any(
    tmp_path, monkeypatch
):
    made = new_checkpoint(tmp_path / "cp")
    made.write("offsets/0", "")
    made.write("state/0/0/1.delta", "of a batch that came to nothing")
    for killed in (True, False):
        with monkeypatch.context() as patched:
            if killed:
                killed_at(patched, "_settle", 2)
                with pytest.raises(Killed):
                    mending.put_back(made.path)
            else:
                [step] = mending.put_back(made.path).steps
                assert "stays set aside in" in step
    assert not (made.path / "state").exists()
    made.write("offsets/0", PLAN)
    generation = made.log.claim(Claim(ID, "run", str(made.path))).generation
    made.log.append(generation, Commit(0, OFFSETS, {}, header=HEADER))
    assert mending.put_back(made.path).steps == ()
    assert not (made.path / "state").exists()


OF_THE_HDFS_PROVIDER = (
    "0/0/2.delta", "0/1/2.delta", "0/_metadata/metadata", "0/0/_metadata/schema"
)  # fmt: skip
OF_ROCKSDB = (
    "0/0/2.zip", "0/0/SSTs/000008-a3.sst", "0/1/2.zip", "0/1/SSTs/000009-a3.sst", "0/0/logs/7.log"
)  # fmt: skip
OF_FORMAT_2 = (
    "0/0/2_6c3d0a50-6e0c-4d3c.zip", "0/0/SSTs/000008-a3.sst", "0/0/2_6c3d0a50-6e0c-4d3c.changelog",
    "0/0/logs/7.log",
)  # fmt: skip


@pytest.mark.parametrize("files", [OF_THE_HDFS_PROVIDER, OF_ROCKSDB, OF_FORMAT_2])
@pytest.mark.parametrize("call", range(1, 8))
def test_a_lay_back_that_was_killed_is_finished(tmp_path, monkeypatch, files, call):
    made = Checkpoint(tmp_path / "cp")
    for file in files:
        made.write(f"state/{file}", file)
    before = made.files()
    put_aside(made, "state")
    with monkeypatch.context() as patched:
        killed_at(patched, "sync_folder", call)
        with pytest.raises(Killed):
            mending.put_back(made.path)
    mending.put_back(made.path)
    assert made.files() == before
    assert mending.put_back(made.path).steps == ()
    assert made.set_aside() == []


def test_what_a_version_refers_to_is_laid_back_though_the_version_is_in_place(tmp_path):
    """An earlier release laid versions back first, and was killed."""
    made = Checkpoint(tmp_path / "cp")
    for file in OF_ROCKSDB:
        made.write(f"state/{file}", file)
    before = made.files()
    put_aside(made, "state")
    aside = made.path / mending.SET_ASIDE / "state.0a0b0c0d.taken"
    for file in ("0/0/2.zip", "0/1/2.zip", "0/0/SSTs/000008-a3.sst"):
        (made.path / "state" / file).parent.mkdir(parents=True, exist_ok=True)
        (aside / file).rename(made.path / "state" / file)
    mending.put_back(made.path)
    assert made.files() == before


@pytest.mark.parametrize("boot", ["of this machine", "before"])
@pytest.mark.parametrize("door", [mending.put_back, mending.mend])
def test_state_of_an_undecided_first_batch_goes_by_hand_where_the_machine_was_started_since(
    tmp_path, monkeypatch, boot, door
):
    """Spark checks what its schema says, and it may be torn in any way. A start leaves it: whoever
    wrote it may be alive on another machine."""
    made = new_checkpoint(tmp_path / "cp")
    made.write("offsets/0", PLAN)
    made.write("sources/0/0", 'v1\n{"clicks":{"0":0}}')
    made.write("state/0/0/_metadata/schema", "half of i")
    made.log.claim(Claim(ID, "run", str(made.path), boot_id=boot))
    monkeypatch.setattr(mending, "boot_id", lambda: "of this machine")
    goes = boot == "before" and door is mending.mend
    assert len(door(made.path).steps) == goes
    assert (made.path / "state").exists() == (not goes)


@pytest.mark.parametrize(
    "version",
    [
        "{}.delta",
        "{}.zip",
        "{}_6c3d0a50-6e0c-4d3c-9b0d-1d0f6e5a7f11.zip",
        "{}_6c3d0a50-6e0c-4d3c-9b0d-1d0f6e5a7f11.changelog",
    ],
)
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("killed", [True, False])
def test_state_of_a_run_that_was_alive_comes_back_when_it_has_decided(
    tmp_path, monkeypatch, killed, batches, version
):
    """The query was not stopped before the command."""
    made = new_checkpoint(tmp_path / "cp")
    made.write("offsets/0", PLAN)
    made.write("sources/0/0", 'v1\n{"clicks":{"0":0}}')
    first = f"state/0/0/{version.format(1)}"
    made.write(first, "of the first batch")
    made.write("state/0/_metadata/metadata", "a schema")
    generation = made.log.claim(Claim(ID, "run", str(made.path), boot_id="elsewhere")).generation
    with monkeypatch.context() as patched:
        if killed:
            killed_at(patched, "_settle", 1)
            with pytest.raises(Killed):
                mending.mend(made.path)
        else:
            assert mending.mend(made.path).steps
    assert not (made.path / "state").exists()
    for batch in range(batches):
        made.write(f"offsets/{batch}", PLAN)
        made.log.append(generation, Commit(batch, OFFSETS, {}, header=HEADER))
        made.log.append(generation, Done(batch))
        if batch:
            made.write(f"state/0/0/{version.format(batch + 1)}", "of the next batch")
    [step] = mending.put_back(made.path).steps
    assert "laid back" in step
    assert made.text(first) == "of the first batch"
    assert made.text("state/0/_metadata/metadata") == "a schema"


@pytest.mark.parametrize("planned", [True, False])
def test_state_before_the_first_claim_goes_by_hand_only_for_a_start_may_be_writing_it(
    tmp_path, planned
):
    """Spark writes schemas before it calls for the first batch, in which a run claims."""
    made = new_checkpoint(tmp_path / "cp")
    for file in (made.path / "onceforall").rglob("0*.json"):
        file.unlink()
    binding.bind(LocalStore(made.path / "onceforall"), str(made.path), None, query_id=ID)
    made.write("state/0/0/_metadata/schema", "half of i")
    made.write("sources/0/0", 'v1\n{"clicks":{"0":0}}')
    if not planned:
        made.lose("offsets/0")
    assert mending.put_back(made.path).steps == ()
    [step] = mending.mend(made.path).steps
    assert "/state " in step
    assert not (made.path / "state").exists()


def test_a_command_that_claims_hides_nothing_of_the_run_before_it(tmp_path, monkeypatch):
    """A move of the log claims on the machine as it is started now."""
    made = new_checkpoint(tmp_path / "cp")
    made.write("offsets/0", PLAN)
    made.write("sources/0/0", 'v1\n{"clicks":{"0":0}}')
    made.write("state/0/0/_metadata/schema", "half of i")
    monkeypatch.setattr(mending, "boot_id", lambda: "of this machine")
    made.log.claim(Claim(ID, "run", str(made.path), boot_id="before"))
    made.log.claim(Claim(ID, "move-1", str(made.path), boot_id="of this machine"))
    assert mending.put_back(made.path).steps == ()
    [step] = mending.mend(made.path).steps
    assert "state was written before the machine was started" in step


def test_what_a_source_keeps_in_a_form_of_its_own_stays(tmp_path):
    """Iceberg's source has one line of JSON, in a folder of its own."""
    made = new_checkpoint(tmp_path / "cp")
    offset = '{"version":1,"snapshot_id":123,"position":0,"scan_all_files":true}'
    made.write("offsets/0", "\n".join((*HEADER, offset, "-")))
    made.write("sources/0/offsets/0", offset)
    made.write("sources/1/0", "7\nany form")
    made.write("state/0/0/1.delta", "of the first batch")
    made.lose("state/0/0/_metadata/schema")
    assert mending.put_back(made.path).steps == ()
    made.write("sources/0/offsets/0", "\0" * 40)
    assert sorted(str(step).partition(" ")[0] for step in mending.put_back(made.path).steps) == [
        f"{made.path}/{name}" for name in ("offsets/0", "sources/0/offsets/0", "state")
    ]


@pytest.mark.parametrize("torn", ["", "\0" * 40, "v", "v1", 'v1\n{"path":'])
def test_of_the_first_batch_behind_a_plain_query_the_sources_torn_entries_go_too(tmp_path, torn):
    """Spark's file source doesn't start with one."""
    made = new_checkpoint(tmp_path / "cp")
    shutil.rmtree(made.path / "state")
    for batch in range(3):
        plan = "\n".join((*HEADER, f'{{"logOffset":{batch}}}'))
        made.write(f"offsets/{batch}", plan)
        made.write(f"sources/0/{batch}", 'v1\n{"path":"x"}')
        if batch < 2:
            made.write(f"commits/{batch}", COMMITTED)
    made.write("sources/0/1", torn)
    assert mending.put_back(made.path).steps == ()
    made.write("sources/0/1", 'v1\n{"path":"x"}')
    made.write("sources/0/2", torn)
    mending.put_back(made.path)
    assert made.set_aside() == ["offsets.2", "sources.0.2"]
    assert mending.put_back(made.path).steps == ()


def test_a_plan_beside_a_source_that_has_nothing_yet_stays(tmp_path):
    made = new_checkpoint(tmp_path / "cp")
    made.write("offsets/0", "\n".join((*HEADER, '{"logOffset":0}', "-")))
    made.write("sources/0/0", 'v1\n{"path":"x"}')
    (made.path / "sources" / "1").mkdir()
    made.write("state/0/0/1.delta", "of the first batch")
    made.write("state/0/0/_metadata/schema", "a schema")
    made.log.claim(Claim(ID, "run", str(made.path)))
    assert mending.put_back(made.path).steps == ()


def test_a_plan_and_its_state_go_at_once(tmp_path):
    made = new_checkpoint(tmp_path / "cp")
    made.write("offsets/0", PLAN)
    (made.path / "sources" / "0").mkdir(parents=True, exist_ok=True)
    made.write("state/0/0/1.delta", "of a batch that came to nothing")
    made.log.claim(Claim(ID, "run", str(made.path)))
    foretold = mending.put_back(made.path, dry_run=True).steps
    assert mending.put_back(made.path).steps == foretold
    assert len(foretold) == 2
    assert not (made.path / "state").exists()
    assert mending.put_back(made.path).steps == ()


def test_what_can_not_be_read_is_named_and_not_taken_for_torn(checkpoint, monkeypatch):
    files = ("metadata", "offsets/1", "commits/0")
    read = type(checkpoint.path).read_bytes
    for name in files:
        before = checkpoint.files()

        def refused(self, name=name):
            if str(self).endswith(f"/{name}"):
                raise PermissionError(13, "Permission denied", str(self))
            return read(self)

        with monkeypatch.context() as patched:
            patched.setattr(type(checkpoint.path), "read_bytes", refused)
            patched.setattr(
                type(checkpoint.path),
                "read_text",
                lambda self, encoding="utf-8", refused=refused: refused(self).decode(encoding),
            )
            with pytest.raises(CommitLogError, match=f"{name} Permission denied"):
                mending.put_back(checkpoint.path)
        assert checkpoint.files() == before


def test_a_file_that_is_wrong_in_two_ways_is_mended_once(checkpoint):
    checkpoint.write("offsets/1", PLAN.replace(":3", ":4"))
    checkpoint.write("offsets/2", "")
    steps = mending.mend(checkpoint.path, dry_run=True).steps
    assert len({step.partition(" ")[0] for step in steps}) == len(steps) == 2
    assert mending.mend(checkpoint.path).steps == steps


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"checkpoint": 123}, "checkpoint"),
        ({"checkpoint": b"/x"}, "checkpoint"),
        ({"checkpoint": "s3a://[b/x"}, "checkpoint"),
        ({"commit_log": 12}, "commit_log"),
        ({"dry_run": "false"}, "dry_run"),
        ({"adopt_checkpoint": 1}, "adopt_checkpoint"),
    ],
)
def test_a_wrong_argument_is_named(checkpoint, arguments, name):
    given = {"checkpoint": checkpoint.path, **arguments}
    with pytest.raises(OptionError, match=f"^{name} is "):
        mending.mend(given.pop("checkpoint"), **given)


def test_runs_that_start_again_and_again_are_told(checkpoint, monkeypatch):
    checkpoint.write("offsets/2", "")
    monkeypatch.setattr(mending, "carry_out", lambda *_: False)
    with pytest.raises(CommitLogError, match="Stop the query"):
        mending.mend(checkpoint.path)


def test_the_plan_before_the_last_decided_one_is_put_back_for_spark_begins_behind_it(checkpoint):
    before = checkpoint.files()
    checkpoint.lose("offsets/0")
    (step,) = mending.put_back(checkpoint.path).steps
    assert "offsets/0 is missing, though batch 0 is decided: put back" in step
    assert checkpoint.text("offsets/0") == PLAN
    assert checkpoint.files().keys() == before.keys()


def test_a_folder_that_can_not_be_read_is_named(checkpoint, monkeypatch):
    real = os.scandir

    def scandir(path):
        if str(path).endswith("sources/0"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(CommitLogError, match="sources/0 Permission denied"):
        mending.mend(checkpoint.path)


@pytest.mark.parametrize("point", ["mend.before", "mend.set_aside", "mend.synced"])
def test_a_crash_at_any_step_is_gone_on_from(checkpoint, armed, monkeypatch, point):
    before = checkpoint.files()
    checkpoint.write("offsets/1", "")
    with monkeypatch.context():
        armed(f"{point}=raise")
        with pytest.raises(Exception, match="failpoint"):
            mending.put_back(checkpoint.path)
    armed("")
    mending.put_back(checkpoint.path)
    assert checkpoint.files() == before


@pytest.mark.parametrize(
    "step",
    ["before@2", "before@3", "set_aside@1", "set_aside@2", "set_aside@3", "synced@1"],
)
def test_a_crash_between_repairs_that_depend_on_each_other_is_gone_on_from(
    checkpoint, armed, monkeypatch, step
):
    """Once the decided plan is back nothing tells any more that those behind it were planned
    behind another one."""
    checkpoint.write("offsets/1", PLAN.replace(":3", ":9"))
    for later in (2, 3):
        checkpoint.write(f"offsets/{later}", PLAN)
    point, _, nth = step.partition("@")
    with monkeypatch.context():
        armed(f"mend.{point}=raise@{nth}")
        with pytest.raises(Exception, match="failpoint"):
            mending.mend(checkpoint.path)
    armed("")
    mending.mend(checkpoint.path)
    assert checkpoint.text("offsets/1") == PLAN
    assert sorted(each[: len("offsets.1")] for each in checkpoint.set_aside()) == [
        "offsets.1",
        "offsets.2",
        "offsets.3",
    ]


def test_another_querys_log_and_a_copy_change_nothing_and_the_command_says_so(checkpoint, tmp_path):
    checkpoint.path.rename(tmp_path / "moved")
    (tmp_path / "moved" / "offsets" / "1").unlink()
    assert mending.put_back(tmp_path / "moved").steps == ()
    with pytest.raises(CheckpointMismatchError, match="adoptCheckpoint"):
        mending.mend(tmp_path / "moved")
    assert len(mending.put_back(tmp_path / "moved", adopt=True).steps) == 1


def test_a_folder_without_a_log_is_refused_by_the_command_and_passed_over_by_a_start(tmp_path):
    assert mending.put_back(tmp_path).steps == ()
    with pytest.raises(OptionError, match="no commit log"):
        mending.mend(tmp_path)


def test_a_disk_that_refuses_is_named(checkpoint, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device", "the file")

    checkpoint.lose("offsets/1")
    monkeypatch.setattr("os.link", refuse)
    with pytest.raises(CommitLogError, match="No space left"):
        mending.put_back(checkpoint.path)
