"""The conformance suite finds what is wrong: each broken sink is told by the case that is there
for it, and the sound one passes."""

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, urlencode

import pyarrow as pa
import pytest

from onceforall.sink import Capabilities, CommitReport, LostTransaction
from onceforall.testing.conformance import ConformanceError, SinkUnderTest, actor, cases, check_sink
from onceforall.testing.conformance.spellings import spellings
from support import torn
from support.own_sink import JsonFileSink

PASSWORD = "correct horse battery staple"


@pytest.fixture(autouse=True)
def _password(monkeypatch):
    # A class that names PASSWORD would take it along when it is pickled by value, as those of a
    # test are.
    monkeypatch.setenv("SINK_PASSWORD", PASSWORD)
    monkeypatch.setenv("HARD_PASSWORD", HARD)


def under_test(folder, kind=JsonFileSink, patience_s=1.0, **more):
    return SinkUnderTest(
        make_sink=lambda: kind(folder),
        rows=lambda numbers: pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())}),
        read=lambda: [
            json.loads(line)["n"]
            for file in folder.glob("*.jsonl")
            for line in file.read_text().splitlines()
        ],
        patience_s=patience_s,
        another_target=lambda: another_folder(folder),
        **{"leftovers": lambda: [path.name for path in folder.glob("*.tmp")], **more},
    )


@contextlib.contextmanager
def another_folder(folder):
    away = folder.rename(f"{folder}-away")
    folder.mkdir()
    yield
    shutil.rmtree(folder)
    away.rename(folder)


def failing(folder, kind, *only, **more):
    with pytest.raises(ConformanceError) as raised:
        check_sink(under_test(folder, kind, **more), only=only or None)
    assert all(
        failure.case in str(raised.value) and failure.what in str(raised.value)
        for failure in raised.value.failures
    )
    return {failure.case: failure.what for failure in raised.value.failures}


def lose(folder):
    return lambda committables: [(folder / f"{c['name']}.tmp").unlink() for c in committables]


class WithSecret(JsonFileSink):
    def __init__(self, folder):
        super().__init__(folder)
        self.password = os.environ["SINK_PASSWORD"]

    def __getstate__(self):
        return {"folder": self.folder}

    def __copy__(self):
        return WithSecret(self.folder)

    def secrets(self):
        return {"password": self.password}

    def begin_transaction(self, attempt):
        assert attempt.secrets == {"password": os.environ["SINK_PASSWORD"]}
        return super().begin_transaction(attempt)


def test_a_sink_whose_tasks_need_a_secret_passes(tmp_path):
    some = [
        "no_secret_is_shown",
        "commit_of_an_unpickled_sinks_work",
        "lost_transactions_are_reported",
    ]
    report = check_sink(
        under_test(tmp_path, WithSecret, secrets=[PASSWORD], lose=lose(tmp_path)), only=some
    )
    assert set(report.passed) == set(some)


@pytest.mark.long
def test_a_sound_sink_passes_every_case_with_a_kill_at_every_line(tmp_path):
    sink = under_test(
        tmp_path,
        WithSecret,
        patience_s=20,
        crash_points=50,
        lose=lose(tmp_path),
        secrets=[PASSWORD],
    )
    report = check_sink(sink)
    assert set(report.skipped) == {"missing_predecessor_is_noticed", "killed_while_confirming"}
    assert all(killed >= 4 for killed in report.kills.values())
    assert set(report.passed) == set(cases(WithSecret(tmp_path))) - set(report.skipped)
    assert len(report.passed) == 46
    assert list(tmp_path.glob("*.jsonl"))


def test_the_report_tells_how_many_were_killed_within_a_call(tmp_path):
    some = ["commit_twice", "killed_while_aborting", "killed_while_confirming"]
    report = check_sink(under_test(tmp_path, crash_points=2), only=some)
    assert report.kills == {"killed_while_aborting": 2}
    assert "no line of the sink's own code" in report.skipped["killed_while_confirming"]


def test_a_case_in_which_no_process_came_to_its_kill_fails(tmp_path):
    found = failing(tmp_path, ConfirmIsLongOnlyOnce, "killed_while_confirming", crash_points=2)
    assert "none came to it" in found["killed_while_confirming"]


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/lib/site-packages/sinks/outer/inner/sink.py", True),
        ("/lib/site-packages/sinks/helper.py", True),
        ("/home/me/helper.py", True),
        ("/lib/site-packages/numpy/core.py", False),
        (json.__file__, False),
        (torn.__file__, True),
        (check_sink.__code__.co_filename, False),
        (Capabilities.__init__.__globals__["__file__"], False),
        ("<string>", False),
        ("<frozen importlib._bootstrap>", False),
    ],
)
def test_where_a_process_may_be_killed(file, own):
    places = frozenset({Path("/lib/site-packages/sinks")})
    assert actor._is_own(places, file) == own


def test_the_packages_of_a_sinks_class_are_its_own_up_to_the_outermost():
    from onceforall.sinks.files.sink import FileSink

    library = Path(check_sink.__code__.co_filename).parents[2]
    places = actor._places(FileSink)
    assert {library, library / "sinks", library / "sinks" / "files"} <= places
    assert library.parent not in places
    assert actor._is_own(places, str(library / "common" / "place.py"))
    assert not actor._is_own(places, check_sink.__code__.co_filename)


HARD = """it's "geh\\eim" pässwört\n€ \U0001f511"""


@pytest.mark.parametrize(
    "secret", [HARD, "it's", 'quo"ted', "back\\slash", "it's spät", "pässwort", "a b/c@d"]
)
@pytest.mark.parametrize(
    "written",
    [
        str,
        repr,
        ascii,
        json.dumps,
        lambda secret: json.dumps({"url": secret}, ensure_ascii=False),
        lambda secret: repr({"url": f"db://me:{secret}@host"}),
        lambda secret: repr(f"{secret} and '\""),
        lambda secret: repr(secret.encode()),
        lambda secret: repr(secret.encode() + b" and '\""),
        lambda secret: pickle.dumps([secret]).decode("latin-1"),
        lambda secret: pickle.dumps(secret.encode()).decode("latin-1"),
        lambda secret: json.dumps({"error": repr(secret)}),
        lambda secret: json.dumps({"entry": json.dumps({"password": secret})}),
        lambda secret: pickle.dumps(json.dumps(secret)).decode("latin-1"),
        lambda secret: pickle.dumps(json.dumps(secret, ensure_ascii=False)).decode("latin-1"),
        lambda secret: f"db://me:{quote(secret, safe='')}@host",
        lambda secret: urlencode({"password": secret}),
    ],
)
def test_a_secret_is_found_however_it_is_spelled(written, secret):
    assert any(spelling in written(secret) for spelling in spellings(secret))
    assert not any(spelling in written("harmless") for spelling in spellings(secret))


class KnowsItsBatches(JsonFileSink):
    """Sees from the files' names which batches are there."""

    def holds(self, start, batch):
        from onceforall.protocol.names import parse_name

        names = [parse_name(path.stem) for path in self.folder.glob("*.jsonl")]
        return any((name.query_id, name.batch) == (start.query_id, batch) for name in names)

    def check(self, start):
        super().check(start)
        self.start = start

    def confirm(self, committables):
        if not all(self.holds(self.start, c["after"]) for c in committables if "after" in c):
            raise ValueError("it is behind")
        return [{**c, "identity": self.identity(self.start)} for c in committables]


def test_a_sink_that_knows_its_batches_passes_the_cases_about_its_target(tmp_path):
    some = [
        "target_has_an_identity",
        "another_target_has_another_identity",
        "missing_predecessor_is_noticed",
    ]
    report = check_sink(under_test(tmp_path, KnowsItsBatches), only=some)
    assert set(report.passed) == set(some)


def old_rows(folder):
    (folder / "old.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in (0, 2, 2, -7)))


def test_rows_that_were_there_before_are_nobodys_fault(tmp_path):
    old_rows(tmp_path)
    names = ("commit_twice", "another_target_has_another_identity", "abort_shows_nothing")
    assert len(check_sink(under_test(tmp_path), only=names).passed) == len(names)


def test_rows_that_were_there_before_must_stay(tmp_path):
    old_rows(tmp_path)
    found = failing(tmp_path, CommitEmptiesTheFolder, "commit_twice")
    assert set(found) == {"all_together"}
    assert "missing are 3 things: -7, 0, 2 (2 times)" in found["all_together"]


def test_one_case_is_not_blamed_for_the_rows_that_another_made_up(tmp_path):
    found = failing(tmp_path, CommitAddsARow, "commit_twice", "abort_shows_nothing")
    assert set(found) == {"commit_twice"}


def test_a_read_that_compares_values_makes_the_suite_find_a_wrong_one(tmp_path):
    def rows(numbers):
        texts = [None if n % 2 else f"row {n}" for n in numbers]
        return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "text": texts})

    def read():
        lines = [
            json.loads(line)
            for file in tmp_path.glob("*.jsonl")
            for line in file.read_text().splitlines()
        ]
        return [row["n"] if [row] == rows([row["n"]]).to_pylist() else -1 for row in lines]

    def sink(kind):
        return replace(under_test(tmp_path, kind), rows=rows, read=read)

    check_sink(sink(JsonFileSink), only=["commit_twice"])
    with pytest.raises(ConformanceError, match="nobody has committed: 1 things: -1"):
        check_sink(sink(WritesNullsAsText), only=["commit_twice"])


def test_leftovers_that_see_nothing_are_found(tmp_path):
    found = failing(
        tmp_path, JsonFileSink, "recover_aborts_what_nobody_decided", leftovers=list, patience_s=0.3
    )
    assert "looks in the wrong place" in found["recover_aborts_what_nobody_decided"]


def test_without_another_target_the_suite_says_what_it_did_not_look_at(tmp_path):
    sink = replace(under_test(tmp_path), another_target=None)
    report = check_sink(
        sink, only=["target_has_an_identity", "another_target_has_another_identity"]
    )
    assert report.passed == ("target_has_an_identity",)
    assert "another_target" in report.skipped["another_target_has_another_identity"]


class Upserts:
    """Files by key: writing a row again replaces it."""

    capabilities = Capabilities(two_phase=False, idempotent=True)


class IdempotentSink(Upserts, JsonFileSink):
    def begin_transaction(self, attempt):
        return []

    def invoke(self, transaction, rows):
        for row in rows.to_pylist():
            path = self.folder / f"{row['n']}.jsonl"
            temporary = path.with_suffix(f".{os.getpid()}.new")
            temporary.write_text(json.dumps(row) + "\n")
            temporary.rename(path)

    def pre_commit(self, transaction):
        return None

    def discard(self, transaction):
        pass


class Doubling(IdempotentSink):
    def invoke(self, transaction, rows):
        for row in rows.to_pylist():
            with (self.folder / f"{row['n']}.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")


def test_an_idempotent_sink_gets_the_cases_for_one(tmp_path):
    report = check_sink(under_test(tmp_path, IdempotentSink))
    assert list(report.skipped) == ["no_secret_is_shown"]
    assert set(report.passed) | set(report.skipped) == set(cases(IdempotentSink(tmp_path)))
    assert "written_twice" in report.passed


def test_a_sink_that_says_it_is_idempotent_and_is_not_is_found(tmp_path):
    found = failing(
        tmp_path, Doubling, "each_row_is_there_once", "written_twice", "two_attempts_of_one_task"
    )
    assert set(found) == {"written_twice", "two_attempts_of_one_task"}
    assert "more than once" in found["written_twice"]


def test_a_sink_that_promises_nothing_does_not_pass_for_lack_of_cases(tmp_path):
    class Careless(JsonFileSink):
        capabilities = Capabilities(two_phase=False, delivery="none")

    with pytest.raises(ConformanceError, match="Not one case ran"):
        check_sink(under_test(tmp_path, Careless))
    with pytest.raises(ConformanceError, match="Not one case ran"):
        check_sink(under_test(tmp_path), only=["no_secret_is_shown"])
    with pytest.raises(ValueError, match="no_such_case"):
        check_sink(under_test(tmp_path), only=["no_such_case"])


class Putting(JsonFileSink):
    """Each row is seen at once."""

    capabilities = Capabilities(two_phase=False, delivery="at_least_once")
    late = False

    def pre_commit(self, file):
        committable = super().pre_commit(file)
        (self.folder / f"{committable['name']}.tmp").rename(
            self.folder / f"{committable['name']}.jsonl"
        )

    def recover(self, sweep):
        return 0


class PuttingTooLate(Putting):
    """It returns before the rows are there: a driver's end takes them along."""

    def pre_commit(self, file):
        file.close()


def test_a_sink_that_is_at_least_once_gets_the_cases_for_that(tmp_path):
    report = check_sink(under_test(tmp_path, Putting, leftovers=list))
    assert {"each_row_is_there", "killed_between_calls", "killed_while_writing"} <= set(
        report.passed
    )
    assert "written_twice" not in report.passed
    names = ("each_row_is_there", "killed_between_calls", "failed_task_is_repeated")
    (tmp_path / "late").mkdir()
    with pytest.raises(ConformanceError) as raised:
        check_sink(under_test(tmp_path / "late", PuttingTooLate, leftovers=list), only=names)
    assert {failure.case for failure in raised.value.failures} == set(names)


def test_what_can_not_be_pickled_is_said_before_anything_starts(tmp_path):
    with (tmp_path / "open").open("w") as file:
        sink = SinkUnderTest(lambda: JsonFileSink(file.name), lambda n: file.name, list, list)
        with pytest.raises(ValueError, match="make_sink and rows can't be pickled"):
            check_sink(sink)


def test_what_can_not_be_loaded_in_another_process_is_said(tmp_path, capfd):
    sink = under_test(tmp_path, preload=["no_such_module"])
    with pytest.raises(ConformanceError, match="preload can't be imported"):
        check_sink(sink, only=["commit_twice"])
    assert "no_such_module" in capfd.readouterr().err


# --- broken sinks, and the cases that must find them ----------------------------------------------


class CommitIsNotIdempotent(JsonFileSink):
    def commit(self, permit, committables):
        for committable in committables:
            name = committable["name"]
            (self.folder / f"{name}.tmp").rename(self.folder / f"{name}.jsonl")
        return CommitReport(completed=tuple(committables))


class CommitAppends(JsonFileSink):
    def commit(self, permit, committables):
        for committable in committables:
            text = (self.folder / f"{committable['name']}.kept").read_text()
            with (self.folder / f"{committable['name']}.jsonl").open("a") as file:
                file.write(text)
            (self.folder / f"{committable['name']}.tmp").unlink(missing_ok=True)
        return CommitReport(completed=tuple(committables))

    def pre_commit(self, file):
        committable = super().pre_commit(file)
        Path(file.name).with_suffix(".kept").write_text(Path(file.name).read_text())
        return committable


class CommitAddsARow(JsonFileSink):
    """Behind each commit a reader sees a row that nobody has written."""

    def commit(self, permit, committables):
        report = super().commit(permit, committables)
        for committable in report.completed:
            (self.folder / f"{committable['name']}.more.jsonl").write_text('{"n": -1}\n')
        return report


class CommitEmptiesTheFolder(JsonFileSink):
    """The first thing that a sink does in a folder is to remove what others have there."""

    def commit(self, permit, committables):
        for path in self.folder.glob("old*.jsonl"):
            path.unlink()
        return super().commit(permit, committables)


class CommitsOnRetire(JsonFileSink):
    """Readers see rows behind ``retire`` only, which a killed driver never calls."""

    def commit(self, permit, committables):
        retired, lost = [], []
        for committable in committables:
            temporary, ready, final = self.paths(committable)
            if temporary.exists():
                temporary.rename(ready)
            if ready.exists() or final.exists():
                retired.append(committable)
            else:
                lost.append(LostTransaction(committable, "deleted"))
        return CommitReport(retired=tuple(retired), lost=tuple(lost))

    def retire(self, committables):
        for committable in committables:
            _, ready, final = self.paths(committable)
            if ready.exists():
                ready.rename(final)

    def paths(self, committable):
        return [self.folder / f"{committable['name']}.{end}" for end in ("tmp", "ready", "jsonl")]


class CommitNeedsThePreparingProcess(JsonFileSink):
    prepared = frozenset()

    def pre_commit(self, file):
        committable = super().pre_commit(file)
        CommitNeedsThePreparingProcess.prepared |= {committable["name"]}
        return committable

    def commit(self, permit, committables):
        known = tuple(c for c in committables if c["name"] in self.prepared)
        super().commit(permit, known)
        return CommitReport(completed=tuple(committables))


class FlushesOver(JsonFileSink):
    """It writes each full buffer over the one before."""

    def begin_transaction(self, attempt):
        path = self.folder / f"{attempt.name}.tmp"
        path.touch()
        return {"path": path, "lines": []}

    def invoke(self, transaction, rows):
        for row in rows.to_pylist():
            transaction["lines"].append(json.dumps(row) + "\n")
            if len(transaction["lines"]) == 100:
                transaction["path"].write_text("".join(transaction["lines"]))
                transaction["lines"] = []

    def pre_commit(self, transaction):
        with transaction["path"].open("a") as file:
            file.write("".join(transaction["lines"]))
        return {"name": transaction["path"].stem}

    def discard(self, transaction):
        transaction["path"].unlink(missing_ok=True)


class NamesByWhat(JsonFileSink):
    """The last name is another one than that of the transaction."""

    def named_by(self, committable, path):
        raise NotImplementedError

    def commit(self, permit, committables):
        completed, lost = [], []
        for committable in committables:
            final = self.folder / f"{committable['final']}.jsonl"
            try:
                (self.folder / f"{committable['name']}.tmp").rename(final)
            except FileNotFoundError:
                if not final.exists():
                    lost.append(LostTransaction(committable, "deleted"))
                    continue
            completed.append(committable)
        return CommitReport(completed=tuple(completed), lost=tuple(lost))

    def pre_commit(self, file):
        committable = super().pre_commit(file)
        return {**committable, "final": self.named_by(committable["name"], Path(file.name))}


class NamesByContent(NamesByWhat):
    def named_by(self, name, path):
        return hashlib.sha256(path.read_bytes()).hexdigest()


class NamesByQueryAndBatch(NamesByWhat):
    def named_by(self, name, path):
        parts = name.split(".")
        return "-".join([parts[1], *parts[-5:-2]])


class CommitsInChunks(JsonFileSink):
    """It forgets the last one that isn't full."""

    def commit(self, permit, committables):
        whole = len(committables) // 10 * 10 or len(committables)
        super().commit(permit, committables[:whole])
        return CommitReport(completed=tuple(committables))


class CommitOmitsOne(JsonFileSink):
    def commit(self, permit, committables):
        return CommitReport(completed=super().commit(permit, committables).completed[1:])


class CommitForgetsTheLibrarysKeys(JsonFileSink):
    def commit(self, permit, committables):
        super().commit(permit, committables)
        return CommitReport(completed=tuple({"name": c["name"]} for c in committables))


class CommitRefusesAfterTheDecision(JsonFileSink):
    def commit(self, permit, committables):
        for committable in committables:
            if not (self.folder / f"{committable['name']}.tmp").read_text():
                raise ValueError("no rows")
        return super().commit(permit, committables)


class CommitReturnsNothing(JsonFileSink):
    def commit(self, permit, committables):
        super().commit(permit, committables)


class CommitReportsLossesAsCommittables(JsonFileSink):
    def commit(self, permit, committables):
        report = super().commit(permit, committables)
        return CommitReport(report.completed, lost=tuple(each.committable for each in report.lost))


class ConfirmReturnsNames(JsonFileSink):
    def confirm(self, committables):
        return [c["name"] for c in committables]


class ConfirmForgetsTheLibrarysKeys(JsonFileSink):
    def confirm(self, committables):
        return [{"name": c["name"]} for c in committables]


class CommitHidesALoss(JsonFileSink):
    def commit(self, permit, committables):
        super().commit(permit, committables)
        return CommitReport(completed=tuple(committables))


class CommitLosesWhatItCanNotFind(JsonFileSink):
    def commit(self, permit, committables):
        report = super().commit(
            permit, [c for c in committables if (self.folder / f"{c['name']}.tmp").exists()]
        )
        missing = [c for c in committables if c not in report.completed]
        return CommitReport(
            report.completed, lost=tuple(LostTransaction(c, "not there") for c in missing)
        )


class VisibleBeforeCommit(JsonFileSink):
    def pre_commit(self, file):
        committable = super().pre_commit(file)
        path = Path(file.name)
        path.with_suffix(".jsonl").write_text(path.read_text())
        return committable


class PreCommitDoesNotFlush(JsonFileSink):
    open_files: ClassVar = []

    def pre_commit(self, file):
        self.open_files.append(file)
        return {"name": Path(file.name).stem}


class CommittableIsNoJson(JsonFileSink):
    def pre_commit(self, file):
        return {**super().pre_commit(file), "path": Path(file.name)}


class CommittableTakesTheLibrarysKey(JsonFileSink):
    def pre_commit(self, file):
        return {**super().pre_commit(file), "rows": 3}


class CommittableIsHuge(JsonFileSink):
    def pre_commit(self, file):
        return {**super().pre_commit(file), "everything": "x" * 100_000}


class NameCollidesOverAttempts(JsonFileSink):
    def begin_transaction(self, attempt):
        name = attempt.name.rpartition(".")[0] + ".0"
        return (self.folder / f"{name}.tmp").open("w")


class NameCollidesOverWrites(JsonFileSink):
    def begin_transaction(self, attempt):
        parts = attempt.name.split(".")
        parts[5] = "0"
        return (self.folder / f"{'.'.join(parts)}.tmp").open("w")


class AbortUndoesACommit(JsonFileSink):
    def abort(self, committables):
        super().abort(committables)
        for committable in committables:
            (self.folder / f"{committable['name']}.jsonl").unlink(missing_ok=True)


class AbortIsNotIdempotent(JsonFileSink):
    def abort(self, committables):
        for committable in committables:
            (self.folder / f"{committable['name']}.tmp").unlink()


class AbortDoesNothing(JsonFileSink):
    def abort(self, committables):
        pass


class RecoverDeletesEverything(JsonFileSink):
    def recover(self, sweep):
        found = list(self.folder.glob("*.tmp"))
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)


class RecoverDeletesTheCommitted(JsonFileSink):
    def recover(self, sweep):
        for path in self.folder.glob("*.jsonl"):
            if sweep.covers_name(path.stem):
                path.unlink()
        return super().recover(sweep)


class RecoverForgetsTheSpared(JsonFileSink):
    def recover(self, sweep):
        from dataclasses import replace

        return super().recover(replace(sweep, spared=frozenset()))


class RecoverComparesByTheBeginning(JsonFileSink):
    def recover(self, sweep):
        found = [
            path
            for path in self.folder.glob("*.tmp")
            if path.name.startswith(f"ofa.{sweep.query_id}.out-")
        ]
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)


class RecoverKeepsToItsOwnName(JsonFileSink):
    def recover(self, sweep):
        from onceforall.protocol.names import parse_name, sink_code

        names = [path.stem for path in self.folder.glob("*.tmp")]
        found = [
            n
            for n in names
            if sweep.covers_name(n) and parse_name(n).sink_code == sink_code(sweep.sink)
        ]
        self.abort([{"name": name} for name in found])
        return len(found)


class RecoverFindsNothing(JsonFileSink):
    def recover(self, sweep):
        return 0


class DiscardRaises(JsonFileSink):
    def discard(self, file):
        file.close()
        Path(file.name).unlink()
        file.fileno()


class PicklesASecret(JsonFileSink):
    def __init__(self, folder):
        super().__init__(folder)
        self.password = os.environ["SINK_PASSWORD"]


class TellsASecretInItsRepresentation(JsonFileSink):
    def __repr__(self):
        return "TellsASecret({SINK_PASSWORD})".format_map(os.environ)


class TellsASecretInACommittable(JsonFileSink):
    def pre_commit(self, file):
        return {
            **super().pre_commit(file),
            "url": "db://me:{SINK_PASSWORD}@host".format_map(os.environ),
        }


class TellsAHardSecretInACommittable(JsonFileSink):
    def pre_commit(self, file):
        return {**super().pre_commit(file), "password": os.environ["HARD_PASSWORD"]}


class PicklesAHardSecret(JsonFileSink):
    def __init__(self, folder):
        super().__init__(folder)
        self.password = os.environ["HARD_PASSWORD"]


class HoldsALock(JsonFileSink):
    """A driver that was frozen keeps everybody else from sweeping."""

    def confirm(self, committables):
        import fcntl

        self.lock = (self.folder / "lock").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        return committables

    def recover(self, sweep):
        import fcntl

        from onceforall.errors import SinkUnavailableError

        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SinkUnavailableError("locked") from None
            return super().recover(sweep)


class CommitIsTornByACrash(JsonFileSink):
    """Copies row by row: who is killed in between has shown a part, and the next one shows it
    again."""

    def commit(self, permit, committables):
        for committable in committables:
            temporary, final = (
                self.folder / f"{committable['name']}.{end}" for end in ("tmp", "jsonl")
            )
            if not temporary.exists():
                continue
            for line in temporary.read_text().splitlines():
                with final.open("a") as file:
                    file.write(line + "\n")
            temporary.unlink()
        return CommitReport(completed=tuple(committables))


class CommitIsTornInAnotherFile(JsonFileSink):
    def commit(self, permit, committables):
        lost = [c for c in committables if not torn.publish(self.folder, c["name"])]
        return CommitReport(
            completed=tuple(c for c in committables if c not in lost),
            lost=tuple(LostTransaction(c, "deleted") for c in lost),
        )


class ConfirmIsLongOnlyOnce(JsonFileSink):
    """What its first run was counted for, no later run comes to."""

    def confirm(self, committables):
        try:
            (self.folder / "confirmed").mkdir()
        except FileExistsError:
            return committables
        for _ in range(100):
            pass
        return committables


class WritesNullsAsText(JsonFileSink):
    def invoke(self, file, rows):
        for row in rows.to_pylist():
            values = {name: "None" if value is None else value for name, value in row.items()}
            file.write(json.dumps(values) + "\n")


class ClosesForEver(JsonFileSink):
    def close(self):
        self.folder = None


class BearsNoSecondThread(JsonFileSink):
    """Whatever comes while something else is under way fails."""

    busy: ClassVar = []

    def alone(self, action):
        if self.busy:
            raise ValueError("somebody is here")
        self.busy.append(1)
        time.sleep(0.3)
        try:
            return action()
        finally:
            self.busy.clear()

    def pre_commit(self, file):
        return self.alone(lambda: JsonFileSink.pre_commit(self, file))

    def commit(self, permit, committables):
        return self.alone(lambda: JsonFileSink.commit(self, permit, committables))

    def recover(self, sweep):
        return self.alone(lambda: JsonFileSink.recover(self, sweep))


class TellsNoIdentity(JsonFileSink):
    def identity(self, start):
        return None


class IdentityIsTheAddress(JsonFileSink):
    def identity(self, start):
        return {"folder": str(self.folder)}


class IdentityIsOfTheProcess(JsonFileSink):
    def identity(self, start):
        return {"folder": os.getpid()}


class ConfirmTellsAnotherIdentity(JsonFileSink):
    def confirm(self, committables):
        return [{**c, "identity": {"folder": "another"}} for c in committables]


class HoldsEverything(KnowsItsBatches):
    def holds(self, start, batch):
        return True


class ConfirmsBehindAGap(KnowsItsBatches):
    def confirm(self, committables):
        return committables


BROKEN = [
    (FlushesOver, "long_transaction_in_parts", "missing are"),
    (NamesByContent, "equal_rows_are_as_many_as_were_written", "missing are"),
    (NamesByQueryAndBatch, "two_sinks_of_a_query_write_to_one_target", "missing are"),
    (CommitsInChunks, "many_transactions_in_one_commit", "missing are"),
    (CommitIsNotIdempotent, "commit_twice", "FileNotFoundError"),
    (CommitNeedsThePreparingProcess, "commit_in_another_process", "missing are"),
    (CommitOmitsOne, "many_transactions_in_one_commit", "report each once"),
    (CommitIsTornByACrash, "killed_while_committing", "more than once"),
    (VisibleBeforeCommit, "commit_shows_each_row_once", "nobody has committed"),
    (PreCommitDoesNotFlush, "commit_in_another_process", "missing are"),
    (NameCollidesOverAttempts, "only_the_decided_attempt_counts", "attempt.name"),
    (AbortUndoesACommit, "abort_after_commit_undoes_nothing", "missing are"),
    (AbortIsNotIdempotent, "abort_shows_nothing", "FileNotFoundError"),
    (RecoverDeletesEverything, "recover_leaves_alone_what_it_must", "lost or in doubt"),
    (RecoverForgetsTheSpared, "recover_leaves_alone_what_it_must", "lost or in doubt"),
    (RecoverFindsNothing, "recover_aborts_what_nobody_decided", "recover returned 0"),
    (PicklesASecret, "no_secret_is_shown", "secret number 1"),
    (HoldsALock, "frozen_driver_of_an_undecided_batch", "SinkUnavailableError"),
    (TellsNoIdentity, "target_has_an_identity", "identity returned None"),
    (IdentityIsTheAddress, "another_target_has_another_identity", "also where another target lies"),
    (IdentityIsOfTheProcess, "target_has_an_identity", "in another process"),
    (ConfirmsBehindAGap, "missing_predecessor_is_noticed", "confirm took a batch"),
    (CommitsOnRetire, "commit_without_retire", "missing are"),
    (CommitsOnRetire, "commit_twice", "missing are"),
    (CommitAddsARow, "commit_shows_each_row_once", "nobody has committed: 1 things: -1"),
    (CommitIsTornInAnotherFile, "killed_while_committing", "more than once"),
    (TellsAHardSecretInACommittable, "commit_shows_each_row_once", "secret number 2"),
    (PicklesAHardSecret, "no_secret_is_shown", "secret number 2"),
    # From here on: long.
    (CommitsOnRetire, "killed_after_commit", "missing are"),
    (CommitReturnsNothing, "commit_twice", "returned no CommitReport"),
    (
        CommitReportsLossesAsCommittables,
        "lost_transactions_are_reported",
        "no LostTransaction",
    ),
    (ConfirmReturnsNames, "commit_twice", "confirm must return a JSON object"),
    (ConfirmForgetsTheLibrarysKeys, "commit_twice", "dropped or added the key 'task'"),
    (BearsNoSecondThread, "two_writes_in_one_task", "somebody is here"),
    (BearsNoSecondThread, "recover_beside_everything_else", "at once failed"),
    (CommitAppends, "frozen_driver_of_a_decided_batch", "more than once"),
    (AbortIsNotIdempotent, "killed_while_aborting", "FileNotFoundError"),
    (VisibleBeforeCommit, "killed_while_writing", "nobody has committed"),
    (RecoverForgetsTheSpared, "killed_while_recovering", "lost or in doubt"),
    (CommitIsNotIdempotent, "killed_after_commit", "may only raise SinkUnavailableError"),
    (CommitAppends, "commit_twice", "more than once"),
    (CommitNeedsThePreparingProcess, "commit_of_an_unpickled_sinks_work", "missing are"),
    (CommitForgetsTheLibrarysKeys, "commit_shows_each_row_once", "unchanged"),
    (CommitRefusesAfterTheDecision, "task_without_rows", "ValueError: no rows"),
    (CommitHidesALoss, "lost_transactions_are_reported", "reports as missing []"),
    (CommitLosesWhatItCanNotFind, "commit_twice", "lost or in doubt"),
    (CommitLosesWhatItCanNotFind, "killed_after_commit", "lost or in doubt"),
    (VisibleBeforeCommit, "killed_after_pre_commit", "nobody has committed"),
    (CommittableIsNoJson, "commit_shows_each_row_once", "plain JSON"),
    (CommittableTakesTheLibrarysKey, "commit_shows_each_row_once", "'rows'"),
    (CommittableIsHuge, "commit_shows_each_row_once", "small"),
    (NameCollidesOverWrites, "two_writes_in_one_task", "attempt.name"),
    (AbortDoesNothing, "abort_shows_nothing", "Left over are 2 things"),
    (AbortDoesNothing, "abort_in_another_process", "Left over are 2 things"),
    (RecoverDeletesEverything, "recover_of_its_own_generation", "lost or in doubt"),
    (RecoverDeletesTheCommitted, "commit_shows_each_row_once", "missing are"),
    (RecoverComparesByTheBeginning, "recover_leaves_alone_what_it_must", "lost or in doubt"),
    (RecoverKeepsToItsOwnName, "recover_takes_a_renamed_sinks_leftovers", "left over are 1 things"),
    (RecoverFindsNothing, "killed_after_pre_commit", "left over are 1 things"),
    (DiscardRaises, "failed_task_is_repeated", "must not raise"),
    (TellsASecretInItsRepresentation, "no_secret_is_shown", "secret number 1"),
    (TellsASecretInACommittable, "commit_shows_each_row_once", "secret number 1"),
    (ClosesForEver, "closed_and_used_again", "TypeError"),
    (ConfirmTellsAnotherIdentity, "target_has_an_identity", "in a confirmed committable"),
    (HoldsEverything, "missing_predecessor_is_noticed", "never written"),
]


QUICK = 28


@pytest.mark.parametrize(
    ("kind", "case", "words"),
    [
        pytest.param(*broken, marks=[pytest.mark.long] if i >= QUICK else [])
        for i, broken in enumerate(BROKEN)
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_broken_sink_is_found_by_the_case_that_is_there_for_it(kind, case, words, tmp_path):
    found = failing(
        tmp_path,
        kind,
        case,
        patience_s=0.3,
        lose=lose(tmp_path),
        secrets=[PASSWORD, HARD],
        crash_points=50,
    )
    assert case in found
    assert words in found[case]
    assert PASSWORD not in str(found)


def test_every_broken_sink_is_tried():
    kinds = {
        value
        for value in globals().values()
        if isinstance(value, type) and issubclass(value, JsonFileSink)
    }
    assert kinds - {
        JsonFileSink,
        IdempotentSink,
        Doubling,
        WithSecret,
        NamesByWhat,
        KnowsItsBatches,
        CommitEmptiesTheFolder,
        ConfirmIsLongOnlyOnce,
        WritesNullsAsText,
        Putting,
        PuttingTooLate,
    } == {kind for kind, _, _ in BROKEN}
