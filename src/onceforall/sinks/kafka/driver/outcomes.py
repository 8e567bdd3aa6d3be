"""Asks the brokers what has become of prepared transactions: before the decision, and when Kafka
refuses to commit one; and says why one could not be asked.

How the answers are judged is in module ``evidence``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.failpoints import points as failpoints
from onceforall.sink import CommitReport, Committable, LostTransaction
from onceforall.sinks.kafka.access.rights import Rights
from onceforall.sinks.kafka.driver.broker_client import (
    QUICK_ANSWER_S,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    AccessRefusedError,
    agreed,
    error_name,
)
from onceforall.sinks.kafka.driver.coordinator_client import (
    INVALID_TRANSACTION_TIMEOUT,
    Answers,
    CoordinatorClient,
    lost_reason,
)
from onceforall.sinks.kafka.driver.evidence import Outcome, TransactionState, is_open, proof_of

if TYPE_CHECKING:
    from onceforall.sinks.kafka.driver.broker_client import ClusterIdentity
    from onceforall.sinks.kafka.driver.committable import KafkaCommittable, Proof
    from onceforall.sinks.kafka.driver.retry import Retry
    from onceforall.sinks.kafka.driver.transaction_reader import TransactionReader

_log = logs.logger("onceforall.sinks.kafka")


def confirmed(
    committables: Sequence[KafkaCommittable],
    topics: Collection[str],
    reader: TransactionReader,
    known: dict[str, str],
    retry: Retry,
) -> list[Committable]:
    """See that every transaction is still open, and note where the log will prove what became of
    it, in which cluster it is, and the ids of the topics that it has written to: addresses and
    names can pass to others.

    All is asked in turns, and what one has found counts in no other: while a coordinator is awaited
    a partition may lose its leader. So it may while the ids of topics are asked for again: a turn
    in which that took a pause counts as none.

    Args:
        committables: as the sink's ``pre_commit`` returned them.
        topics: all that they have written to.
        reader: of the cluster.
        known: the ids that topics had when the sink asked last, by name; it gets those of now.
        retry: until when brokers are asked that don't answer, or lead no more. Those that lead only
            what no transaction has written to are nobody's matter.

    Returns:
        The committables with ``proof``: ``topic``, ``partition`` and ``offset``; with ``cluster``
        and the topics' ids.

    Raises:
        AttemptFailedError: one is not open any more: it timed out, or was fenced. Or a topic is
            gone, or has another id than before: what the tasks wrote until it was deleted went with
            it.
        AccessRefusedError: the user may not DESCRIBE a topic, or an id.
        SinkUnavailableError: not all brokers answered, or a partition that a transaction has
            written to has no leader.
    """
    doubted = {c["name"] for c in committables if c.get("doubtful")}
    reader.doubt(doubted)
    again = False
    while True:
        try:
            told = _confirmed_now(committables, topics, reader, known, doubted, again=again)
        except AccessRefusedError:
            raise
        except SinkUnavailableError as error:
            told = str(error).rstrip(".")
        if not isinstance(told, str):
            return told
        # A topic that isn't there any more has no leaders either.
        if retry.waited_s > reader.patience_s and not retry.is_over():
            with suppress(SinkUnavailableError):
                look_at_topics(topics, reader, known, patience_s=0)
        if again:
            retry.again([told])
        again = True


def _confirmed_now(
    committables: Sequence[KafkaCommittable],
    topics: Collection[str],
    reader: TransactionReader,
    known: dict[str, str],
    doubted: set[str],
    *,
    again: bool,
) -> list[Committable] | str:
    """Ask everything once; see ``confirmed``. Return why it must be asked again, where it must."""
    # In this order: a transaction that is open after the offsets were read has its marker behind
    # them.
    silent: dict[tuple[str, int], str] = {}
    ends = reader.end_offsets(topics, silent, again=again)
    failpoints.hit("kafka.confirm.ends_read")
    reasons: dict[str, str] = {}
    states = reader.states_now(committables, doubted, reasons)
    found = [
        _confirmed(c, states[c["name"]], proof_of(states[c["name"]], ends))
        for c in committables
        if c["name"] in states
    ]
    if len(found) < len(committables):
        return ": ".join(next(iter(reasons.items()), ("", "a coordinator gave no answer")))
    untold = sorted(
        {p for state in states.values() if state is not None for p in state.partitions}
        - ends.keys()
    )
    if untold:
        shown = ", ".join(f"{topic} [{number}]" for topic, number in untold)
        return next((silent[p] for p in untold if p in silent), f"{shown}: no leader at the moment")
    # All topics: which of them a transaction has written to, its coordinator tells only those who
    # may know.
    where = look_at_topics(topics, reader, known)
    for committable in committables:
        state = states[committable["name"]]
        if state is not None and state.hides_some_of(committable.get("topics", ())):
            return f"{committable['name']}: {reader.hides_partitions(topics)}"
    if not where.at_once:
        return "the ids of its topics were not told at once"
    return placed(found, where)


def _confirmed(
    committable: KafkaCommittable, state: TransactionState | None, proof: Proof | None
) -> KafkaCommittable:
    name = committable["name"]
    if not is_open(committable, state):
        told = (
            "its id is not known"
            if state is None
            else f"its state is {state.state} under epoch {state.epoch}"
        )
        raise AttemptFailedError(
            f"Kafka transaction {name} is not open any more before the decision: {told}. It has "
            "timed out, or somebody else uses its "
            "transactional id. The attempt is repeated; if it happens again, raise "
            "transaction.timeout.ms."
        )
    kept = committable.copy()
    if proof is not None:
        kept["proof"] = proof
    return kept


def placed(committables: Sequence[KafkaCommittable], where: ClusterIdentity) -> list[Committable]:
    """Note in which cluster confirmed transactions are, and the ids of the topics that they have
    written to: addresses and names can pass to others.

    Args:
        committables: with ``proof``.
        where: their cluster, and the topics' ids.
    """
    noted = [_placed(c, where) for c in committables]
    if where.cluster is None:
        return list(noted)
    return [{**noted[0], "identity": {"cluster": where.cluster}}, *noted[1:]]


def look_at_topics(
    topics: Collection[str],
    reader: TransactionReader,
    known: dict[str, str],
    patience_s: float | None = None,
) -> ClusterIdentity:
    """Return which cluster it is, and the ids of topics that tasks have written to.

    Args:
        topics: their names.
        reader: of the cluster.
        known: the ids that topics had when the sink asked last, by name; it gets those of now.
        patience_s: for how long a missing one is asked for; None: as long as a client has patience.

    Raises:
        AttemptFailedError: a topic is gone, or has another id than before.
        SinkUnavailableError: no broker answered, or it doesn't tell of a topic.
    """
    found = reader.identify_patiently(topics, patience_s)
    if found.topics != {topic: known.get(topic) for topic in found.topics}:
        # A broker that has just woken tells the id that was before.
        sure = reader.identify_surely(topics)
        found = replace(sure, at_once=found.at_once and sure.at_once)
    for topic, code in found.hidden.items():
        raise reader.hides(topic, code)
    if found.missing:
        is_one = len(found.missing) == 1
        raise AttemptFailedError(
            f"Topic{'' if is_one else 's'} {', '.join(sorted(found.missing))} "
            f"{'was' if is_one else 'were'} deleted while a batch was written to "
            f"{'it' if is_one else 'them'}. What was written is aborted; make "
            f"{'it' if is_one else 'them'} again, and restart."
        )
    before = {topic: known[topic] for topic in found.topics if topic in known}
    known.update(found.topics)
    for topic, topic_id in before.items():
        if topic_id != found.topics[topic]:
            raise AttemptFailedError(
                f"Topic {topic} was deleted and made again while the query ran (its id was "
                f"{topic_id}, and is {found.topics[topic]}): rows of this batch may have gone "
                "with it. The attempt is aborted, and repeated in the new topic."
            )
    return found


def _placed(committable: KafkaCommittable, found: ClusterIdentity) -> KafkaCommittable:
    told = committable.copy()
    told.pop("topics", None)
    if found.cluster is None:
        return told
    told["cluster"] = found.cluster
    ids = {t: found.topics[t] for t in _topics_of(committable) if t in found.topics}
    proof = committable.get("proof")
    if proof is not None and proof["topic"] in ids:
        told["proof"] = {**proof, "topic_id": ids.pop(proof["topic"])}
    if ids:
        told["topic_ids"] = ids
    return told


def _topics_of(committable: KafkaCommittable) -> set[str]:
    proof = committable.get("proof")
    return {*committable.get("topics", ()), *(() if proof is None else (proof["topic"],))}


def in_other_clusters(
    committables: Sequence[KafkaCommittable], client: CoordinatorClient, servers: str
) -> list[LostTransaction]:
    """Return those transactions that were decided for another cluster than the one that answers
    now; nothing is proved there.

    Raises:
        SinkUnavailableError: no broker answered.
    """
    if not any("cluster" in c for c in committables):
        return []
    here = client.identify().cluster
    return [
        LostTransaction(
            c,
            f"it was decided for the Kafka cluster with the id {c['cluster']}, and at {servers} "
            f"the cluster {here} answers: it was rebuilt, or the address "
            "leads elsewhere. Nothing that is found there proves anything. Let bootstrap.servers "
            "lead to the old cluster",
        )
        for c in committables
        if c.get("cluster", here) != here
    ]


def without_their_topics(
    committables: Sequence[KafkaCommittable], client: CoordinatorClient, reader: TransactionReader
) -> list[LostTransaction]:
    """Return those open transactions that have written to a topic that was deleted since, and
    perhaps made again: Kafka would commit them without it, or in the new one, and say that all is
    well, and their rows are gone.

    One that has ended is left out: it was committed, or aborted, in the topic that it was written
    to.

    Raises:
        SinkUnavailableError: not all brokers answered.
    """
    noted = {c["name"]: ids for c in committables if (ids := _noted_ids(c))}
    if not noted:
        return []
    told = client.identify_everywhere(_names_in(noted), QUICK_ANSWER_S)
    suspected = [
        name
        for name, ids in noted.items()
        if isinstance(agreed(told), str)
        or any(_gone({name: ids}, now) or ids.keys() & now.hidden.keys() for now in told)
    ]
    if not suspected:
        return []
    states = reader.states([c for c in committables if c["name"] in suspected], suspected)
    still_open = {
        c["name"]: noted[c["name"]]
        for c in committables
        if c["name"] in suspected and is_open(c, states[c["name"]])
    }
    if not still_open:
        return []
    now = reader.identify_surely(_names_in(still_open))
    for topic, code in now.hidden.items():
        raise reader.hides(topic, code)
    gone = _gone(still_open, now)
    return [
        LostTransaction(
            c,
            f"topic {topic} is not the one that it was written to: {_fate(topic, now)} (its id was "
            f"{noted[c['name']][topic]}), and rows of the transaction have gone with it. It is "
            "still open, so nobody has seen any",
            is_open=True,
        )
        for c in committables
        for topic in gone.get(c["name"], ())[:1]
    ]


def _names_in(noted: Mapping[str, Mapping[str, str]]) -> set[str]:
    return {topic for ids in noted.values() for topic in ids}


def _gone(noted: Mapping[str, Mapping[str, str]], now: ClusterIdentity) -> dict[str, Sequence[str]]:
    """Return which noted topics aren't there any more, by transaction; hidden ones are left out."""
    return {
        name: topics
        for name, ids in noted.items()
        if (
            topics := sorted(
                topic
                for topic, topic_id in ids.items()
                if topic in now.missing or now.topics.get(topic, topic_id) != topic_id
            )
        )
    }


def _fate(topic: str, now: ClusterIdentity) -> str:
    if topic in now.missing:
        return "it was deleted; make it again before its rows are written again"
    return f"it was deleted and made again under that name, with the id {now.topics[topic]}"


def _noted_ids(committable: KafkaCommittable) -> dict[str, str]:
    proof = committable.get("proof")
    ids = dict(committable.get("topic_ids", {}))
    if proof is not None and "topic_id" in proof:
        ids[proof["topic"]] = proof["topic_id"]
    return ids


def withheld(
    names: Collection[str],
    reader: TransactionReader,
    committables: Sequence[KafkaCommittable] = (),
) -> dict[str, str]:
    """Return which open transactions must not be ended yet, for a partition of theirs has no
    leader, or perhaps one that the user may not see; with the reason.

    A coordinator leaves out the marker for such a partition, and says that the transaction is
    complete (seen with Kafka 4.3.1; KAFKA-20734): its records stay invisible there, and hold back
    all readers of the partition, also when the leader has come back.

    A transaction whose state can't be read now is withheld too: what loses a coordinator may lose a
    leader. It holds nobody else up.

    Args:
        names: their transactional ids.
        reader: of the cluster.
        committables: those of them that are known, which tell where they have written to.

    Raises:
        SinkUnavailableError: no broker tells who leads.
    """
    if not names:
        return {}
    reasons: dict[str, str] = {}
    known = reader.states_known_soon(sorted(names), reasons)
    ongoing = {
        name: state
        for name, state in known.items()
        if state is not None and state.state == "Ongoing"
    }
    partitions = {partition for state in ongoing.values() for partition in state.partitions}
    leaderless = reader.leaderless(partitions) if partitions else {}
    untold = {
        name: "in which partitions it has written can't be read now "
        f"({reasons.get(name, 'no answer')}); nothing is ended before that is known"
        for name in names
        if name not in known
    }
    topics = {
        c["name"]: {*c.get("topics", ()), *_noted_ids(c)}
        for c in committables
        if is_open(c, ongoing.get(c["name"]))
    }
    hidden = {
        name: reader.hides_partitions(topics.get(name, ()))
        for name, state in ongoing.items()
        if state.hides_some_of(topics.get(name, ()))
    }
    leads_nobody = {
        name: f"{'; '.join(found)}; nothing can be ended there"
        for name, state in ongoing.items()
        if (found := [leaderless[p] for p in state.partitions if p in leaderless])
    }
    return untold | hidden | leads_nobody


def with_findings(
    report: CommitReport,
    missing: Sequence[KafkaCommittable],
    codes: Mapping[str, int],
    reader: TransactionReader,
) -> CommitReport:
    """Find out what became of transactions that Kafka refused to commit, and complete the report
    with it.

    Args:
        report: on the others.
        missing: those that were refused.
        codes: Kafka's error code by transactional id.
        reader: of the cluster.

    Raises:
        SinkUnavailableError: one is not ended yet, or not all brokers answered.
    """
    failpoints.hit("kafka.evidence.before")
    findings = reader.findings(missing)
    failpoints.hit("kafka.evidence.after")
    committed, lost, in_doubt = [], [], []
    for committable in missing:
        name = committable["name"]
        finding = findings[name]
        words = f"Kafka answered {lost_reason(codes[name])} to EndTxn; {finding.words}"
        _log.warning("Transaction %s is %s: %s", name, finding.outcome.value, words)
        if finding.outcome is Outcome.OPEN:
            raise SinkUnavailableError(
                f"Kafka transaction {name} is not ended yet: {words}. Asked again."
            )
        if finding.outcome is Outcome.COMMITTED:
            committed.append(committable)
        elif finding.outcome is Outcome.ABORTED:
            lost.append(LostTransaction(committable, words))
        else:
            in_doubt.append(LostTransaction(committable, words))
    return CommitReport(
        report.completed, (*report.retired, *committed), tuple(lost), tuple(in_doubt)
    )


def unavailable(
    what: str, answers: Answers, refused: Mapping[str, int], options: Mapping[str, Any]
) -> SinkUnavailableError:
    """Return the error for transactions that could not be asked to do something; it shows the first
    reason, and the remedy.

    Args:
        what: the request, as a verb.
        answers: of all.
        refused: error codes of those that Kafka refused for a reason that may pass.
        options: the sink's.
    """
    reasons = {
        **answers.missing,
        **{name: f"Kafka answered {error_name(code)}" for name, code in refused.items()},
    }
    name, reason = next(iter(reasons.items()))
    if error_name(TRANSACTIONAL_ID_AUTHORIZATION_FAILED) in reason:
        reason = f"{reason}. {Rights.of(options).transactional_id(name)}"
    if refused.get(name) == INVALID_TRANSACTION_TIMEOUT:
        reason = f"{reason}. Raise the brokers' transaction.max.timeout.ms to a second or more"
    return SinkUnavailableError(
        f"{len(reasons)} of {len(reasons) + len(answers.codes) - len(refused)} Kafka transactions "
        f"could not be asked to {what}; {name}: {reason}. Asked "
        f"again. Check the brokers (bootstrap.servers={options['bootstrap.servers']})."
    )
