"""The cases of the conformance suite for a sink with two-phase commit, except for crashes."""

from __future__ import annotations

import json

from onceforall.protocol.entries import Committable
from onceforall.testing.conformance.driver import Driver, names
from onceforall.testing.conformance.world import Case, CaseFunction, SkipCase, register

CASES: dict[str, CaseFunction] = {}
_case = register(CASES)


# --- commit and abort -----------------------------------------------------------------------------


@_case
def commit_shows_each_row_once(case: Case) -> None:
    """Nothing is visible before commit, and after it each row once; a later sweep leaves that as
    it is.
    """
    driver, rows = case.driver(), case.numbers(5)
    task = driver.begin()
    case.visible()
    task.invoke(rows)
    case.visible()
    prepared = task.prepared()
    case.visible()
    decided = driver.confirm(prepared)
    case.visible()
    driver.commit(*decided)
    case.visible(rows)
    case.clean()
    driver.recover(own=True)
    case.driver(generation=2).recover()
    case.visible(rows)


@_case
def commit_twice(case: Case) -> None:
    """A second commit of the same is a success and adds nothing."""
    driver, rows = case.driver(), case.numbers()
    decided = driver.confirm(driver.prepared(rows))
    driver.commit(*decided)
    driver.commit(*decided)
    case.visible(rows)


@_case
def commit_in_another_process(case: Case) -> None:
    """Another process commits with nothing but the committable's JSON, when the first one is
    dead.
    """
    first, rows = case.driver(), case.numbers()
    decided = first.confirm(first.prepared(rows))
    first.kill()
    second = case.driver(generation=2)
    second.commit(*decided)
    case.visible(rows)
    second.recover(spared=names(*decided))
    second.recover()


@_case
def commit_of_an_unpickled_sinks_work(case: Case) -> None:
    """Tasks have a pickled sink and nothing else; they may be dead when the driver commits."""
    driver, rows = case.driver(), case.numbers(4)
    tasks = [case.task_process(driver) for _ in range(2)]
    prepared = [task.prepared(rows[i::2], partition=i, slot=i) for i, task in enumerate(tasks)]
    for task in tasks:
        task.kill()
    driver.commit(*driver.confirm(*prepared))
    case.visible(rows)


@_case
def commit_without_retire(case: Case) -> None:
    """``commit`` alone shows the rows: a driver that is killed behind DONE never calls
    ``retire``, and the next one has no reason to.
    """
    first, rows = case.driver(), case.numbers()
    first.commit_only(*first.confirm(first.prepared(rows)))
    case.visible(rows)
    first.kill()
    second, more = case.driver(generation=2), case.numbers()
    second.recover()
    case.visible(rows)
    second.commit_only(*second.confirm(second.prepared(more, batch=2)), batch=2)
    case.visible(rows, more)


@_case
def commit_in_two_processes_at_once(case: Case) -> None:
    """A driver and its successor may commit the same at the same time: both succeed, and each
    row is there once.
    """
    first, rows = case.driver(), case.numbers(6)
    decided = first.confirm(*[first.prepared(rows[i::3], partition=i, slot=i) for i in range(3)])
    drivers = [first, case.driver(generation=2), case.driver(generation=3)]
    for driver in drivers:
        driver.process.tell("commit", committables=decided, generation=driver.generation, batch=1)
    for driver in drivers:
        answer = driver.process.outcome()
        unavailable = answer is None or answer.unavailable
        case.expect(unavailable, f"commit failed beside another commit of the same: {answer}")
    for driver in drivers:
        driver.commit(*decided)
    case.visible(rows)


@_case
def many_transactions_in_one_commit(case: Case) -> None:
    """One commit takes all tasks' transactions, and reports each once."""
    driver, rows = case.driver(), case.numbers(46)
    prepared = [driver.prepared(rows[i::23], partition=i, slot=i) for i in range(23)]
    driver.commit(*driver.confirm(*prepared))
    case.visible(rows)


@_case
def long_transaction_in_parts(case: Case) -> None:
    """A transaction has all rows of all its parts, whatever a buffer holds."""
    driver, written = case.driver(), []
    task = driver.begin()
    for count in (1, 99, 100, 101, 1_000, 2, 1_025):
        rows = case.numbers(count)
        task.invoke(rows)
        written += rows
    driver.commit(*driver.confirm(task.prepared()))
    case.visible(written)


@_case
def equal_rows_are_as_many_as_were_written(case: Case) -> None:
    """Two transactions with equal rows are two: of one batch, and of two."""
    driver, rows = case.driver(), case.numbers()
    sink = case.under.make_sink()
    sink.close()
    if sink.capabilities.one_task_per_key or sink.capabilities.replaces_by:
        raise SkipCase("the sink writes by a key, so equal rows may be one")
    prepared = [driver.prepared(rows, partition=i, slot=i) for i in range(2)]
    driver.commit(*driver.confirm(*prepared))
    case.visible(rows, rows)
    driver.commit(*driver.confirm(driver.prepared(rows, batch=2)), batch=2)
    case.visible(rows, rows, rows)


@_case
def two_sinks_of_a_query_write_to_one_target(case: Case) -> None:
    """Sinks of one query may have one target: neither takes the other's transactions for its own,
    nor its names.
    """
    drivers, rows = [case.driver(sink=name) for name in ("out", "other")], case.numbers(6)
    decided = [driver.confirm(driver.prepared(rows[i::2])) for i, driver in enumerate(drivers)]
    for driver, committables in zip(drivers, decided, strict=True):
        driver.commit(*committables)
    case.visible(rows)


@_case
def abort_shows_nothing(case: Case) -> None:
    """Aborting what was prepared shows nothing and leaves nothing, however often it is asked
    for, and in whichever process.
    """
    driver, rows = case.driver(), case.numbers(4)
    unconfirmed = driver.prepared(rows[:2])
    (confirmed,) = driver.confirm(driver.prepared(rows[2:], partition=1, slot=1))
    driver.abort(unconfirmed, confirmed)
    case.visible()
    case.clean()
    driver.abort(unconfirmed, confirmed)
    case.driver(generation=2).abort(unconfirmed, confirmed)
    case.expect(
        driver.recover(own=True) == 0,
        "recover still found something to abort after abort had returned.",
    )


@_case
def abort_in_another_process(case: Case) -> None:
    """A driver aborts what another process has prepared, whether that lives or not."""
    driver, rows = case.driver(), case.numbers(4)
    living, dead = case.task_process(driver), case.task_process(driver)
    prepared = [living.prepared(rows[:2]), dead.prepared(rows[2:], partition=1, slot=1)]
    dead.kill()
    driver.abort(*prepared)
    case.clean()


@_case
def abort_after_commit_undoes_nothing(case: Case) -> None:
    """An abort that comes after the commit changes nothing."""
    driver, rows = case.driver(), case.numbers()
    decided = driver.confirm(driver.prepared(rows))
    driver.commit(*decided)
    driver.abort(*decided)
    case.driver(generation=2).abort(*decided)
    case.visible(rows)


@_case
def retire_undoes_nothing(case: Case) -> None:
    """Fencing the handles of committed transactions, twice, changes nothing."""
    driver, rows = case.driver(), case.numbers()
    decided = driver.confirm(driver.prepared(rows))
    driver.commit(*decided)
    driver.retire(*decided)
    driver.retire(*decided)
    case.visible(rows)


# --- tasks ----------------------------------------------------------------------------------------


@_case
def two_tasks_at_once(case: Case) -> None:
    """Two tasks write at the same time, in two processes, and neither sees or disturbs the
    other.
    """
    driver, rows = case.driver(), case.numbers(4)
    one, other = (case.task_process(driver).begin(partition=i, slot=i) for i in range(2))
    one.invoke(rows[:1])
    other.invoke(rows[1:2])
    one.invoke(rows[2:3])
    other.invoke(rows[3:])
    prepared = [
        committable for task in (other, one) if (committable := task.pre_commit()) is not None
    ]
    driver.commit(*driver.confirm(*prepared))
    case.visible(rows)


@_case
def two_writes_in_one_task(case: Case) -> None:
    """A batch may write to one sink twice: a task's two transactions differ in ``write`` alone,
    and pre-commit at once in two threads.
    """
    driver, rows = case.driver(), case.numbers(4)
    tasks = [driver.begin(write=write) for write in range(2)]
    for i, task in enumerate(tasks):
        task.invoke(rows[i::2])
    texts = driver.together(*[("pre_commit", {"transaction": task.number}) for task in tasks])
    prepared = [
        c for task, text in zip(tasks, texts, strict=True) if (c := task.accepted(text)) is not None
    ]
    driver.commit(*driver.confirm(*prepared))
    case.visible(rows)


@_case
def task_without_rows(case: Case) -> None:
    """A transaction that gets no rows shows nothing and leaves nothing, with or without a
    committable.
    """
    driver, rows = case.driver(), case.numbers()
    empty = driver.begin(partition=0, slot=0).pre_commit()
    full = driver.prepared(rows, partition=1, slot=1)
    driver.commit(*driver.confirm(*([] if empty is None else [empty]), full))
    case.visible(rows)
    case.swept(driver, own=True)


@_case
def failed_task_is_repeated(case: Case) -> None:
    """Rows of an attempt that failed and was discarded, with or without rows, are never seen;
    those of its repetition once.
    """
    driver, rows = case.driver(), case.numbers()
    driver.begin(slot=0).discard()
    driver.begin(slot=1).invoke(rows[:2]).discard()
    decided = driver.confirm(driver.prepared(rows, slot=2))
    driver.recover(own=True, spared=names(*decided))
    driver.commit(*decided)
    case.visible(rows)
    case.swept(driver, own=True)


@_case
def discard_after_pre_commit(case: Case) -> None:
    """When another sink of a task fails after this one has pre-committed, it is discarded, and
    its rows are never seen.
    """
    driver, rows = case.driver(), case.numbers()
    task = driver.begin(slot=0).invoke(rows)
    task.pre_commit()
    task.discard()
    decided = driver.confirm(driver.prepared(rows, slot=1))
    driver.recover(own=True, spared=names(*decided))
    driver.commit(*decided)
    case.visible(rows)
    case.swept(driver, own=True)


@_case
def only_the_decided_attempt_counts(case: Case) -> None:
    """Of two attempts of one task that both pre-committed, the decided one's rows are seen, also
    when that is the earlier one.
    """
    if not case.under.twin_attempts:
        raise SkipCase(
            "the sink says that it doesn't serve two living attempts of one task "
            "(twin_attempts=False)"
        )
    driver, rows = case.driver(), case.numbers()
    winners = []
    for batch, winner in ((1, 1), (2, 0)):
        attempts = [
            case.task_process(driver).prepared(rows, batch=batch, slot=slot) for slot in range(2)
        ]
        decided = driver.confirm(attempts[winner])
        driver.recover(own=True, spared=names(*decided))
        driver.commit(*decided, batch=batch)
        winners.append(rows)
        case.visible(*winners)
        case.swept(driver, own=True)
        rows = case.numbers()


@_case
def next_batch_goes_on(case: Case) -> None:
    """Batch follows batch in the same processes, with the handles in ``reusable`` that the one
    before has completed.
    """
    driver, seen = case.driver(), []
    other = case.task_process(driver)
    reusable: tuple[Committable, ...] = ()
    for batch in range(1, 4):
        rows = case.numbers(4)
        prepared = [
            driver.prepared(rows[::2], batch=batch, partition=0, slot=0, reusable=reusable),
            other.prepared(rows[1::2], batch=batch, partition=1, slot=1, reusable=reusable),
        ]
        report = driver.commit(*driver.confirm(*prepared), batch=batch)
        reusable = tuple({**completed, "batch": batch} for completed in report.completed)
        seen.append(rows)
        case.visible(*seen)
        case.clean()
    fresh = case.task_process(driver)
    rows = case.numbers()
    driver.commit(*driver.confirm(fresh.prepared(rows, batch=4, reusable=reusable)), batch=4)
    case.visible(*seen, rows)


@_case
def closed_and_used_again(case: Case) -> None:
    """After ``close``, also a second one, the sink can be used again."""
    driver, rows = case.driver(), case.numbers(4)
    decided = driver.confirm(driver.prepared(rows[:2]))
    for _ in range(2):
        driver.call("close")
    driver.commit(*decided)
    driver.call("close")
    driver.commit(*driver.confirm(driver.prepared(rows[2:], batch=2)), batch=2)
    driver.call("close")
    driver.recover(own=True)
    case.visible(rows)


# --- sweeping -------------------------------------------------------------------------------------


def _undecided(case: Case, driver: Driver, **parts: int) -> Committable:
    return driver.prepared(case.numbers(2), **parts)


@_case
def recover_aborts_what_nobody_decided(case: Case) -> None:
    """A later generation finds what earlier ones left undecided, and nothing the second time;
    until then ``leftovers`` has it.
    """
    first, second = (case.driver(generation=generation) for generation in (1, 2))
    left = [_undecided(case, driver) for driver in (first, second)]
    case.not_clean()
    case.expect(
        len(names(*left)) == len(left),
        "Two generations gave their transactions the same name; use attempt.name.",
    )
    # Of the same task the later attempt may have removed the earlier one already; of another task
    # it may not.
    _undecided(case, first, partition=1, slot=1)
    successor = case.driver(generation=3)
    found = successor.recover()
    case.expect(
        found >= 2,
        f"recover returned {found}, but of two tasks transactions were prepared and undecided.",
    )
    case.clean()
    found = successor.recover()
    case.expect(found == 0, f"recover returned {found} the second time, when nothing was left.")


@_case
def recover_leaves_alone_what_it_must(case: Case) -> None:
    """A sweep aborts nothing that is spared, nothing of its own or of a newer generation, and
    nothing of another query.
    """
    successor, kept, rows = case.driver(generation=2), {}, []
    # A batch is decided once, so those of one query and sink have a batch each.
    drivers = {
        "spared": (case.driver(generation=1), 1),
        "of its own generation": (successor, 2),
        "of a newer generation": (case.driver(generation=3), 3),
        "of another query": (
            case.driver(
                generation=1, query=f"{case.query[:-1]}{'1' if case.query[-1] == '0' else '0'}"
            ),
            1,
        ),
        "spared, of another sink": (case.driver(generation=1, sink="out.10"), 1),
    }
    for slot, (what, (driver, batch)) in enumerate(drivers.items()):
        numbers = case.numbers(2)
        prepared = driver.prepared(numbers, batch=batch, partition=slot, slot=slot)
        # A batch is confirmed when the one before it is complete: the second and the third wait for
        # the sweep.
        kept[what] = driver.confirm(prepared) if batch == 1 else (prepared,)
        rows.append(numbers)
    spared = [
        c for what, committables in kept.items() if what.startswith("spared") for c in committables
    ]
    _undecided(case, case.driver(generation=1), partition=9, slot=9)
    case.expect(
        successor.recover(spared=names(*spared)) >= 1,
        "recover found nothing, but one undecided transaction was there.",
    )
    for what, (driver, batch) in drivers.items():
        decided = kept[what] if batch == 1 else driver.confirm(*kept[what])
        driver.commit(*decided, batch=batch)
    case.visible(*rows)


@_case
def recover_of_its_own_generation(case: Case) -> None:
    """With ``own`` a driver's sweep takes its own sink's undecided transactions too, but no
    spared ones and no other sink's.
    """
    driver, rows = case.driver(generation=2), case.numbers(4)
    other = case.driver(generation=2, sink="outer")
    theirs = other.confirm(other.prepared(rows[:2], write=1, partition=1, slot=0))
    decided = driver.confirm(driver.prepared(rows[2:], slot=1))
    # Of another task: what of its own task comes after the confirm, a sink may refuse.
    _undecided(case, driver, partition=2, slot=2)
    found = driver.recover(own=True, spared=names(*decided))
    case.expect(
        found >= 1,
        "recover(own=True) returned 0, but an undecided transaction of this sink and generation "
        "was there.",
    )
    driver.commit(*decided)
    other.commit(*theirs)
    case.visible(rows)


@_case
def recover_takes_a_renamed_sinks_leftovers(case: Case) -> None:
    """What an older generation of the query left under another sink name is swept as well:
    nobody else would.
    """
    former = case.driver(generation=1, sink="former name")
    _undecided(case, former)
    former.kill()
    case.swept(case.driver(generation=2))


@_case
def recover_beside_everything_else(case: Case) -> None:
    """A driver sweeps older generations in a thread of its own while it confirms and commits
    with the same object.
    """
    older = case.driver()
    _undecided(case, older)
    _undecided(case, older, partition=1, slot=1)
    older.kill()
    driver, rows = case.driver(generation=2), case.numbers(4)
    prepared = [driver.prepared(rows[i::2], partition=i, slot=i) for i in range(2)]
    sweeps = [("recover", {"sweep": driver.sweep()})] * 3
    confirmed = driver.together(*sweeps, ("confirm", {"committables": prepared}))[-1]
    decided = json.loads(confirmed)
    driver.together(*sweeps, ("commit", {"committables": decided, "generation": 2, "batch": 1}))
    driver.commit(*decided)
    case.visible(rows)
    case.clean()


@_case
def replay_after_an_abandoned_attempt(case: Case) -> None:
    """A batch that was prepared and never decided is written again by the next generation, with
    the same rows.
    """
    first, rows = case.driver(), case.numbers()
    first.prepared(rows)
    first.kill()
    second = case.driver(generation=2)
    second.recover()
    second.commit(*second.confirm(second.prepared(rows)))
    case.visible(rows)


# --- what a system loses by itself, and what must not be told -------------------------------------


@_case
def lost_transactions_are_reported(case: Case) -> None:
    """What the system has forgotten is reported as lost or in doubt, without an error; then it
    is written again.
    """
    lose = case.under.lose
    if lose is None:
        raise SkipCase("no 'lose' was given: this system never loses a prepared transaction")
    driver, rows = case.driver(), case.numbers(4)
    kept, lost = driver.confirm(
        driver.prepared(rows[:2]), driver.prepared(rows[2:], partition=1, slot=1)
    )
    lose([lost])
    report = driver.commit_only(kept, lost)
    case.expect(
        names(*report.missing) == names(lost),
        f"Lost was {lost}, but commit reports as missing {list(report.missing)}.",
    )
    # A sink that shows whole batches only shows nothing yet.
    case.at_most(rows[:2])
    successor = case.driver(generation=2)
    successor.retire(lost)
    successor.recover(spared=names(kept))
    again = successor.confirm(successor.prepared(rows[2:], partition=1, slot=1, incarnation=1))
    successor.commit(kept, *again)
    case.visible(rows)
    driver.commit_only(kept, lost)
    case.visible(rows)


@_case
def no_secret_is_shown(case: Case) -> None:
    """No secret is in a pickle or a representation (in committables, reports and errors the
    suite looks in every case).
    """
    if not case.under.secrets:
        raise SkipCase("no 'secrets' were given")
    driver = case.driver()
    for text in driver.call("texts"):
        case.no_secret(text, "A pickle or a representation of the sink")
    rows = case.numbers()
    driver.commit(*driver.confirm(case.task_process(driver).prepared(rows)))
    case.visible(rows)
