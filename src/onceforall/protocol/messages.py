"""What a run says when it stops: each text names what happened, what is and is not lost, and
what to do. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from onceforall.protocol.entries import Commit
from onceforall.protocol.events import Lost

CAUSE = "mend the cause first: "
"""What stands before the cause of an attempt that failed, its class first; a program reads it."""


def failed(batch: int, reason: str, stays: Collection[str] = ()) -> str:
    """A user's function, a job or a sink raised before the decision.

    The reason may have many lines, and stands last. ``stays`` are the sinks whose rows need no
    commit.
    """
    return (
        f"Batch {batch} could not be written, and the attempt is aborted: nothing of it is "
        f"visible{_except(stays)}, and the next start writes the batch. Where it fails "
        f"again, {CAUSE}{reason}"
    )


def _except(stays: Collection[str]) -> str:
    return (
        f" (except rows of {', '.join(sorted(stays))}, which need no commit, and which each "
        "attempt writes)"
        if stays
        else ""
    )


def lost(batch: int, transactions: Sequence[Lost], said: Sequence[str] = ()) -> str:
    """Prepared transactions of a decided batch were aborted by their system."""
    return (
        f"Batch {batch} is decided, but {len(transactions)} of its prepared transactions are "
        f"gone; the first is {_first(transactions)}. "
        "Their rows are missing there, and the query stops rather than pass over them. Restart "
        "it: the start fences these transactions "
        f"and writes exactly their rows again.{_as_said(said)}"
    )


def lost_for_good(batch: int, transactions: Sequence[Lost], said: Sequence[str] = ()) -> str:
    """Lost, and the log doesn't say enough to write them again."""
    return (
        f"Batch {batch} is decided, but {len(transactions)} of its prepared transactions are "
        f"gone; the first is {_first(transactions)}. "
        "An earlier release decided the batch and did not record which task's rows they hold, so "
        "they can't be written again by "
        "themselves, and nothing later is written. Restore the rows of this batch by hand, then "
        "start once with the option "
        f"onceforall.inDoubt=committed; or give them up with onceforall.lostRows=giveUp:{batch}."
        f"{_as_said(said)}"
    )


def passed_on(
    batch: int, requested: int, transactions: Sequence[Lost], said: Sequence[str] = ()
) -> str:
    """Lost, and Spark asks for another batch."""
    return (
        f"Batch {batch} is decided, and {len(transactions)} of its prepared transactions are "
        f"gone, the first {_first(transactions)}; but Spark "
        f"asks for batch {requested}, so that batch {batch} can't be replayed: the checkpoint was "
        "edited or mixed with another one. Put back "
        "the folder that belongs to this commit log; or give the lost rows up, with "
        f"onceforall.lostRows=giveUp:{batch} for one start.{_as_said(said)}"
    )


def unproven(batch: int, transactions: Sequence[Lost], said: Sequence[str] = ()) -> str:
    """Nobody can tell what became of prepared transactions."""
    still_open = [each for each in transactions if each.is_open]
    hidden = [each for each in transactions if not each.is_open]
    if not hidden:
        return (
            f"Batch {batch} is decided, but {len(transactions)} of its prepared transactions can't "
            f"be committed without a loss{_of_sinks(transactions)}. The query stops "
            "with everything as it is. Start once with the option onceforall.inDoubt=aborted: they "
            "are aborted, and their rows are written again. To give these rows up instead, add "
            f"onceforall.lostRows=giveUpUnseen:{batch}.{_as_said(said)}"
        )
    others = (
        f" Transactions that can't be committed without a loss: {len(still_open)}"
        f"{_of_sinks(still_open)}. With either word these are aborted, and written again."
        if still_open
        else ""
    )
    return (
        f"Batch {batch} is decided, but what became of {len(hidden)} of its prepared "
        f"transactions can't be proved{_of_sinks(hidden)}. "
        "The query stops with everything as it is: to go on could lose "
        "these rows, and to write them again could "
        "double them. Mend what hides the proof (named above) and restart; or look into the "
        "target yourself for the rows of this "
        "batch, and start once with the option onceforall.inDoubt=committed (they are there) or "
        "onceforall.inDoubt=aborted (they are "
        f"not: they are written again).{_one_word(hidden)}{others}{_as_said(said)}"
    )


def _of_sinks(transactions: Sequence[Lost]) -> str:
    """Name the first of each sink: a person looks into all of them."""
    others: dict[str, list[Lost]] = {}
    for each in transactions:
        if each.sink != transactions[0].sink:
            others.setdefault(each.sink, []).append(each)
    more = "".join(
        f"; {len(those)} are of sink {sink}, the first {those[0].committable['name']}: "
        f"{those[0].reason}"
        for sink, those in others.items()
    )
    return f"; the first is {_first(transactions)}{more}"


def _one_word(transactions: Sequence[Lost]) -> str:
    return (
        " The word is for all of them: where some are there and others aren't, take away the rows "
        "that are there, and say aborted."
        if len(transactions) > 1
        else ""
    )


def _first(transactions: Sequence[Lost]) -> str:
    first = transactions[0]
    return f"{first.committable['name']} of sink {first.sink}: {first.reason}"


def not_replayed(commit: Commit, difference: str, said: Sequence[str] = ()) -> str:
    """The replay can't stand in for what was decided."""
    return (
        f"A part of the transactions of the decided batch {commit.batch} is lost and must be "
        "written again, but the replay is not what was "
        f"decided. {difference}, then restart: nothing was written by this replay. "
        f"{_choices(commit.batch)}{_as_said(said)}"
    )


def _as_said(said: Sequence[str]) -> str:
    """Return what else each start needs until a batch is decided: options for one start that this
    one had, without which the next one stops where this one would have without them.
    """
    return (
        f" Each start needs {' and '.join(said)}, too, until this batch is decided again: before "
        "that it is on record nowhere."
        if said
        else ""
    )


def changed_since(
    batch: int, changed: str, said: Sequence[str] = (), stays: Collection[str] = ()
) -> str:
    """A task that writes gives other rows than when it was looked at."""
    return (
        f"A part of the transactions of the decided batch {batch} is lost and must be written "
        "again, but two runs of the batch, one after the other, "
        f"gave other rows ({changed}). Keep what it reads from changing, then restart: what this "
        f"replay wrote is aborted{_except(stays)}. If that can't be had, give the "
        f"lost rows up without a replay: start once with onceforall.lostRows=giveUpUnseen:{batch}."
        f"{_as_said(said)}"
    )


def no_replay(batch: int, reason: str, said: Sequence[str] = (), *, stateful: bool = False) -> str:
    """A replay that only looks has failed."""
    return (
        f"A part of the transactions of the decided batch {batch} is lost and must be written "
        f"again, but the batch can't be replayed: {reason}. "
        "Mend that and restart: nothing was written by this replay. If it can't be mended, give "
        "the lost rows up without a replay: start once with "
        f"onceforall.lostRows=giveUpUnseen:{batch}.{_for_state(stateful=stateful)}{_as_said(said)}"
    )


def _for_state(*, stateful: bool) -> str:
    """A query with state replays a decided batch all the same, for its state."""
    return (
        " The query's state needs the batch replayed all the same, so that this helps only where "
        "the sinks' rows alone stand in the way; what was given up stays so."
        if stateful
        else ""
    )


def not_written_again(
    batch: int,
    reason: str,
    said: Sequence[str] = (),
    stays: Collection[str] = (),
    *,
    stateful: bool = False,
) -> str:
    """A replay that writes lost rows has failed.

    The reason may have many lines, and stands last.
    """
    return (
        f"Transactions of the decided batch {batch} are lost, and could not be written again. What "
        f"this attempt wrote is aborted{_except(stays)}, and the next start tries again. If the "
        "cause can't be mended, give the lost rows up: start once with "
        f"onceforall.lostRows=giveUpUnseen:{batch}.{_for_state(stateful=stateful)}"
        f"{_as_said(said)} Where it fails again, {CAUSE}{reason}"
    )


def in_another_order(batch: int, writes: Sequence[str], said: Sequence[str] = ()) -> str:
    """The replay writes to its sinks in another order."""
    return (
        f"A part of the transactions of the decided batch {batch} is lost and must be written "
        f"again, but the replay has not the writes {', '.join(writes)} "
        "(sink and number in the batch): the query writes to its sinks in another order than "
        "then, or lacks one. Put back the order of before and "
        "restart: nothing was written by this replay. To give the lost rows up instead, start "
        f"once with onceforall.lostRows=giveUp:{batch}.{_as_said(said)}"
    )


def whole_differs(
    batch: int, differing: str, said: Sequence[str] = (), *, fails: bool = False
) -> str:
    """A batch that is lost as a whole is written with other rows, or isn't, where that is to fail
    the query.
    """
    return (
        f"All transactions of the decided batch {batch} were lost before anybody saw a row of it, "
        f"and the replay gives other rows than were decided ({differing}). "
        f"{'Nothing is written' if fails else 'These are written in their place'}. If rows are "
        "missing, see whether the source still has all of the batch's input."
        f"{_to_pass(said, fails=fails)}"
    )


def _to_pass(said: Sequence[str], *, fails: bool) -> str:
    return (
        " To go on with the rows of the replay, start once with onceforall.onDivergence=warn."
        f"{_as_said(said)}"
        if fails
        else ""
    )


def diverged(
    batch: int, differing: str, said: Sequence[str] = (), *, fails: bool, lost: bool = False
) -> str:
    """The replay of a decided batch gives other rows, for the query's state.

    Args:
        batch: which.
        differing: which writes, and how many rows.
        said: what each start needs until the batch is decided again.
        fails: the query stops for it (``onDivergence=fail``).
        lost: a part of the decided rows is lost, and is written again from this replay, which has
            those.
    """
    if fails:
        stands = "Nothing is written, and the query stops. " + (
            "A part of what was decided is lost, and missing until it is written again."
            if lost
            else "The sinks hold what was decided, once."
        )
    elif lost:
        stands = (
            "What of it is lost is written again, with the rows that were decided; the query's "
            "state now comes from the replay."
        )
    else:
        stands = (
            "The sinks hold what was decided, once; the query's state now comes from the replay."
        )
    return (
        f"The replay of the decided batch {batch} did not give the rows that were decided "
        f"({differing}). {stands} Common causes: floating-point sums "
        "after a shuffle, rand(), current_timestamp(), uuid(), a lookup in a table that changes."
        f"{_to_pass(said, fails=fails)}"
    )


def _choices(batch: int) -> str:
    return (
        f"If it can't be mended, start once with onceforall.lostRows=giveUp:{batch} (all lost "
        "rows of the batch stay missing, on every sink, those that the replay has, too) or "
        f"onceforall.lostRows=writeAll:{batch} "
        "(each sink that has lost some gets the whole batch again, so what is visible there is "
        "duplicated). Take the option out afterwards."
    )


def too_slow(
    batch: int, elapsed_ms: int, timeout_ms: int, reserve_ms: int, said: Sequence[str] = ()
) -> str:
    """The transactions could time out before they are committed."""
    return (
        f"Batch {batch} took {elapsed_ms / 1000:.1f} s, and its transactions time out after "
        f"{timeout_ms / 1000:.1f} s, of which "
        f"{reserve_ms / 1000:.1f} s must be left for the commit. Raise that time for this batch, "
        "whose offsets are planned: of Kafka transaction.timeout.ms (and the broker's "
        "transaction.max.timeout.ms), of Pravega lease_s (and the controller's "
        "controller.transaction.lease.count.max). Smaller batches "
        f"(maxOffsetsPerTrigger) help later ones.{_as_said(said)}"
    )


def held_up(batch: int, said: Sequence[str] = ()) -> str:
    """The driver was held up between its last look at the time and the decision."""
    return (
        f"Batch {batch} was ready, but the driver was held up (frozen, suspended, or waiting for "
        "the disk) until too little of the transactions' "
        "timeout was left for the commit. This attempt decided nothing, and is aborted. "
        f"Restart the query: it writes the batch again.{_as_said(said)}"
    )


def fenced(generation: int) -> str:
    """A newer run owns the query."""
    return (
        f"A newer run of this query has taken over (generation {generation} is sealed). This run "
        "stops; it has aborted "
        "nothing that was decided. Do not restart it while the other one runs."
    )


def fenced_while_writing(generation: int, failed: str) -> str:
    """A newer run owns the query, and an attempt of this one has failed."""
    return f"{fenced(generation)} Its last attempt had failed: {failed}"


def unknown(reason: str) -> str:
    """An append got no answer."""
    return (
        f"An append to the commit log got no answer ({reason}). The batch may be decided, so "
        "nothing was aborted. Mend the "
        "storage and restart the query: it finds out, and completes the batch or replays it."
    )


def waiting(batch: int | None, sinks: Sequence[str], said: Mapping[str, str]) -> str:
    """Stopped on request, before every sink had answered."""
    return (
        f"The query was stopped while batch {batch}, which is decided, still waited for "
        f"{', '.join(sinks)}. Nothing is lost: "
        "the next start completes it. Until then its rows may be missing there."
        f"{_said(sinks, said)}"
    )


def given_up(
    batch: int | None, sinks: Sequence[str], said: Mapping[str, str], within_s: float
) -> str:
    """A detachment has waited for as long as it was told, and not every sink has answered."""
    return (
        f"Batch {batch} is decided, and {', '.join(sinks)} did not complete it within "
        f"{within_s:g} s, the timeout of the detachment. Nothing is lost. Mend what is in the way, "
        "or give it more time, and detach again; a start of the query completes the batch, too."
        f"{_said(sinks, said)}"
    )


def _said(sinks: Sequence[str], said: Mapping[str, str]) -> str:
    """Return what sinks have said last; it may have many lines, and stands last."""
    return "".join(f" {sink} said last: {said[sink]}" for sink in sinks if said.get(sink))
