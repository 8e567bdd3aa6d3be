"""What the sinks answer to a commit is taken only if it is an answer for each transaction, once."""

import pytest

from onceforall.errors import ProtocolViolationError
from onceforall.protocol import events as saw
from protocol.building import Walk, answers, handle


@pytest.mark.parametrize(
    "answer",
    [
        answers(handle("a0"), lost=[handle("a0")]),
        answers(handle("a0"), handle("a0")),
        answers(lost=[handle("a0"), handle("a0")]),
        answers(handle("a0"), in_doubt=[handle("a0")]),
        answers(),
        answers(handle("a1")),
    ],
    ids=[
        "complete and lost",
        "complete twice",
        "lost twice",
        "complete and in doubt",
        "none",
        "another",
    ],
)
def test_each_transaction_has_exactly_one_answer(answer):
    walk = Walk().committing()
    with pytest.raises(ProtocolViolationError, match="must report each committable once"):
        walk.feed(saw.SinksCommitted({"a": answer}))
