"""Short ways to write entries and logs in tests."""

from __future__ import annotations

import itertools
from datetime import datetime, timezone

from onceforall.commit_log import CommitLog
from onceforall.commit_log.chains import entry_key, sealed_key
from onceforall.commit_log.envelope import encode
from onceforall.protocol.entries import Claim, Commit, Digest, Done, Seal
from onceforall.protocol.history import EMPTY, fold

NOON = datetime(2026, 11, 21, 12, 0, 0, 123000, tzinfo=timezone.utc)
CLAIM = Claim("query", "run", "/checkpoints/ads", "tests")


def commit(batch, writer="w"):
    return Commit(
        batch,
        (f'{{"t":{{"0":{batch * 10}}}}}',),
        {"out": ({"id": f"{writer}-{batch}", "epoch": 3},)},
        {"out#0": (Digest(10, 2**63 + batch),)},
    )


def content_of(entry, generation, index, nonce="n"):
    return encode(entry, nonce=nonce, generation=generation, index=index, written_at=NOON)


def put(store, generation, index, entry, nonce="n"):
    store.contents[entry_key(generation, index)] = content_of(entry, generation, index, nonce)


def open_log(store, **options):
    """A log that doesn't pause between retries."""
    return CommitLog(store, **{"sleep": lambda _: None, **options})


def start(store, **options):
    """What a run does first; returns log, generation and history."""
    log = open_log(store, **options)
    generation = log.claim(CLAIM).generation
    return log, generation, log.seal_below(generation)


def run_batches(store, batches, **options):
    """A whole run: start, some batches, the end of its process. Returns log and generation."""
    log, generation, history = start(store, **options)
    if history.decided is not None and not history.decided.done:
        log.append(generation, Done(history.decided.commit.batch))
    for batch in batches:
        log.append(generation, commit(batch, f"g{generation}"))
        log.append(generation, Done(batch))
    return log, generation


def folded(log, below):
    """The history that a tool reads from what is left of the chains."""
    history = EMPTY
    for generation in range(below):
        history = fold(history, generation, log.entries(generation))
    return history


def bulk(store, generations, batches_each=0, *, cleaned=True):
    """Write sealed generations without the log's own code, for logs of many; returns the next
    batch."""
    batches = itertools.count()
    decided = (None, None, False)
    batch = -1
    for generation in range(generations):
        entries = [CLAIM]
        for batch in itertools.islice(batches, batches_each):
            entries += [commit(batch), Done(batch)]
            decided = (generation, len(entries) - 2, True)
        is_last = generation == generations - 1
        seal = Seal(*decided)
        for index, entry in enumerate([*entries, seal]):
            if index == 0 or isinstance(entry, Seal) or is_last or not cleaned:
                store.create(entry_key(generation, index), content_of(entry, generation, index))
        if cleaned and not is_last and batches_each:
            store.create(sealed_key(generation), content_of(seal, generation, len(entries)))
    return batch + 1
