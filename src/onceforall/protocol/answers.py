"""What the sinks answered to a commit: whether it is complete, what is missing, and which
handles may go on. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onceforall.errors import ProtocolViolationError
from onceforall.protocol.entries import Commit, Committable
from onceforall.protocol.events import Lost, SinkAnswers
from onceforall.protocol.state import Run

REUSE_WITHIN_BATCHES = 10
"""A completed handle that no batch used for so long is forgotten, so that their number stays
bounded when workers come and go."""


def name_of(committable: Committable) -> str:
    """Return the transaction's name in the world."""
    return str(committable["name"])


def check_answered(commit: Commit, answers: Mapping[str, SinkAnswers]) -> None:
    """A transaction that no answer names must not pass for complete: DONE would hide it for
    ever.
    """
    for sink, committables in commit.committables.items():
        answer = answers.get(sink, SinkAnswers())
        missing = (lost.committable for lost in (*answer.lost, *answer.in_doubt))
        named = [str(c.get("name")) for c in (*answer.completed, *answer.retired, *missing)]
        if sorted(named) != sorted(name_of(c) for c in committables):
            raise ProtocolViolationError(
                f"Sink {sink} was asked to commit {len(committables)} transactions of batch "
                f"{commit.batch} and answered for {len(named)} "
                "others or not all of them. Its commit() must report each committable once. "
                "Nothing is lost; the next start asks again."
            )


def missing(
    run: Run,
    answers: Mapping[str, SinkAnswers],
    of_this_run: Callable[[Lost], bool] = lambda _: False,
) -> tuple[list[Lost], list[Lost]]:
    """Return what is lost, and of what nobody can tell.

    A user's word (``RunConfig.in_doubt``) is about what the start found and a person has looked at:
    a transaction that this run has prepared itself is none of that. And what is open is not
    committed, whoever says so: it is written again, or, where there is nothing else that the word
    could be about, stays in doubt.
    """
    said = run.config.in_doubt
    lost = [lost for answer in answers.values() for lost in answer.lost]
    unproven = [lost for answer in answers.values() for lost in answer.in_doubt]
    told = [each for each in unproven if said is not None and not of_this_run(each)]
    if said == "committed" and all(each.is_open for each in told):
        return lost, unproven
    again = [each for each in told if said == "aborted" or each.is_open]
    return lost + again, [each for each in unproven if each not in told]


def reusable_handles(
    run: Run, commit: Commit, sink: str, answers: SinkAnswers | None
) -> tuple[Committable, ...]:
    """Return the handles of a sink that are complete without doubt, stamped with the batch that
    completed them.
    """
    used = {name_of(c) for c in commit.committables.get(sink, ())}
    idle = tuple(
        c
        for c in run.reusable.get(sink, ())
        if name_of(c) not in used and c["batch"] > commit.batch - REUSE_WITHIN_BATCHES
    )
    return idle + tuple(
        {**c, "batch": commit.batch} for c in (answers.completed if answers else ())
    )
