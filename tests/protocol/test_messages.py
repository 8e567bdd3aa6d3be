"""Each number and name stands where the sentence needs it: the person who is paged acts on them."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from onceforall.protocol import messages
from onceforall.protocol.events import Lost
from protocol.building import commit

GONE = (
    Lost("orders", {"name": "tx-1"}, "it expired"),
    Lost("clicks", {"name": "tx-2"}, "it was aborted"),
    Lost("clicks", {"name": "tx-3"}, "it was aborted"),
)
FIRST = "tx-1 of sink orders: it expired"
HEARD = "orders said last: no route\nto the host"
SAID = {"orders": "no route\nto the host", "clicks": "", "another": "not asked"}

TEXTS = [
    (lambda: messages.failed(41, "ValueError: x\n  y"), ["Batch 41 could", "cause first: ValueError: x\n  y"]),
    (lambda: messages.lost(41, GONE), ["Batch 41 is", "but 3 of", f"first is {FIRST}."]),
    (lambda: messages.lost_for_good(41, GONE), ["Batch 41 is", "but 3 of", f"first is {FIRST}.", "giveUp:41."]),
    (
        lambda: messages.passed_on(41, 52, GONE),
        ["Batch 41 is", "and 3 of", f"first {FIRST};", "asks for batch 52,", "batch 41 can't", "giveUp:41 "],
    ),
    (
        lambda: messages.unproven(41, GONE, ["onceforall.adoptTarget=a"]),
        ["Batch 41 is", "became of 3 of", f"first is {FIRST}; 2 are of sink clicks, the first tx-2: it was", "all of them", "needs onceforall.adoptTarget=a, too"],
    ),
    (
        lambda: messages.not_replayed(replace(commit(4), batch=41), "2 rows now"),
        ["decided batch 41 is", "decided. 2 rows now, then", "giveUp:41 (all lost", "writeAll:41 (each"],
    ),
    (lambda: messages.changed_since(41, "task 3"), ["batch 41 is", "rows (task 3).", "giveUpUnseen:41."]),
    (lambda: messages.no_replay(41, "no file"), ["batch 41 is", "replayed: no file. Mend", "giveUpUnseen:41."]),
    (
        lambda: messages.not_written_again(41, "ValueError: x\n  y"),
        ["batch 41 are", "giveUpUnseen:41.", "cause first: ValueError: x\n  y"],
    ),
    (
        lambda: messages.in_another_order(41, ["orders/1", "clicks/0"]),
        ["batch 41 is", "the writes orders/1, clicks/0 (sink", "giveUp:41."],
    ),
    (lambda: messages.whole_differs(41, "2 rows now"), ["batch 41 were", "decided (2 rows now). These are written"]),
    (lambda: messages.diverged(41, "2 rows now", fails=False), ["batch 41 did", "decided (2 rows now). The sinks hold", "comes from the replay."]),
    (
        lambda: messages.too_slow(41, 5600, 7100, 2300),
        ["Batch 41 took 5.6 s,", "time out after 7.1 s,", "of which 2.3 s must"],
    ),
    (lambda: messages.held_up(41), ["Batch 41 was"]),
    (lambda: messages.fenced(6), ["generation 6 is"]),
    (lambda: messages.fenced_while_writing(6, "x"), ["generation 6 is", "other one runs. Its", "failed: x"]),
    (lambda: messages.unknown("timeout"), ["no answer (timeout). The"]),
    (
        lambda: messages.waiting(41, ["clicks", "orders"], SAID),
        ["batch 41, which", "for clicks, orders. Nothing", "there. orders said last: no route\nto the host"],
    ),
    (
        lambda: messages.given_up(41, ["clicks", "orders"], SAID, 90.5),
        ["Batch 41 is", "and clicks, orders did", "within 90.5 s,", "too. orders said last: no route\nto the host"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text_of", "parts"), TEXTS)
def test_what_a_text_names_stands_in_its_place(text_of, parts):
    text, place = text_of(), 0
    for part in parts:
        assert part in text[place:], (part, text)
        place = text.index(part, place) + len(part)
    assert "None" not in text
    assert "{" not in text
    assert "  " not in text.replace("\n  y", "")


@pytest.mark.parametrize("text_of", [text_of for text_of, parts in TEXTS if HEARD in parts[-1]])
def test_what_sinks_have_said_stands_last_and_of_those_alone_that_are_waited_for(text_of):
    text = text_of()
    assert text.endswith(HEARD)
    assert "clicks said" not in text
    assert "another" not in text


def test_a_query_with_state_is_told_that_giving_rows_up_does_not_replay_it():
    for text in (messages.no_replay, messages.not_written_again):
        for stateful in (False, True):
            said = "needs the batch replayed all the same" in text(41, "x", stateful=stateful)
            assert said == stateful


@pytest.mark.parametrize("lost", [False, True])
def test_a_divergence_that_stops_the_query_says_that_nothing_is_written_and_what_goes_on(lost):
    stops = messages.diverged(41, "2 rows now", fails=True, lost=lost)
    goes_on = messages.diverged(41, "2 rows now", fails=False, lost=lost)
    assert "Nothing is written" in stops
    assert stops.endswith("start once with onceforall.onDivergence=warn.")
    assert "now comes from the replay" in goes_on
    assert ("is lost" in stops) == ("is lost" in goes_on) == lost
    whole = messages.whole_differs(41, "2 rows now", fails=True)
    assert "Nothing is written" in whole
    assert whole.endswith("onceforall.onDivergence=warn.")


def test_one_word_for_all_is_spoken_of_where_there_is_more_than_one():
    assert "The word is for all of them" in messages.unproven(41, GONE)
    assert "The word is for all of them" not in messages.unproven(41, GONE[:1])


def test_each_text_is_tried_here():
    made = [
        name
        for name, function in inspect.getmembers(messages, inspect.isfunction)
        if function.__module__ == messages.__name__ and not name.startswith("_")
    ]
    assert len(made) == len(TEXTS)
