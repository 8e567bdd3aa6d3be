"""The driver's side of the Kafka sink with one guard broken: ``test_simulated_kafka`` says which of
these the simulated brokers find.

A guard is a piece of a function's source text, and what stands there without it.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from dataclasses import dataclass

from onceforall.sinks.kafka import sink
from onceforall.sinks.kafka.driver import (
    coordinator_client,
    evidence,
    outcomes,
    transaction_reader,
)

PACKAGE = "onceforall.sinks.kafka"
Client, Reader, Sink = (
    coordinator_client.CoordinatorClient,
    transaction_reader.TransactionReader,
    sink.KafkaSink,
)


@dataclass(frozen=True)
class Guard:
    """A guard that is taken out.

    Attributes:
        name: what the code does without it.
        owner: the module or class that has the function.
        function: its name.
        old: a piece of its source that stands there once.
        new: what takes its place.
        kinds: the faults that it takes; with all of them most schedules would miss it.
        why: no schedule needs it; empty when the simulated brokers find that it is broken.
    """

    name: str
    owner: object
    function: str
    old: str
    new: str
    kinds: tuple[str, ...] | None = None
    why: str = ""

    def break_it(self, patch):
        """Plant it."""
        original = getattr(self.owner, self.function)
        plain = inspect.unwrap(original)
        source = textwrap.dedent(inspect.getsource(plain))
        assert source.count(self.old) == 1, f"{self.old!r} stands {source.count(self.old)} times"
        text = "from __future__ import annotations\n" + source.replace(self.old, self.new)
        made = {}
        # In the module's own names, where the clock is put in the place of ``time``.
        exec(compile(text, f"<{self.name}>", "exec"), vars(sys.modules[plain.__module__]), made)
        broken = made[plain.__name__]
        if inspect.isclass(self.owner):
            patch.setattr(self.owner, self.function, broken)
            return
        for each in [m for n, m in sys.modules.items() if n.startswith(PACKAGE)]:
            if getattr(each, self.function, None) is original:
                patch.setattr(each, self.function, broken)


GUARDS = [
    # --- evidence ---------------------------------------------------------------------------------
    Guard(
        "the state of another producer id is believed",
        evidence,
        "judge_state",
        'if state is None or state.producer_id != committable["producer_id"]:',
        "if state is None:",
        kinds=("time-out", "expiry", "somebody's use", "retention"),
    ),
    Guard(
        "an abort that is under way under the next epoch is not waited for",
        evidence,
        "judge_state",
        "if state.epoch in {epoch, epoch + 1} and state.state in _UNDER_WAY:",
        "if state.epoch == epoch and state.state in _UNDER_WAY:",
        kinds=("somebody's fence", "time-out"),
    ),
    Guard(
        "a transaction that is under way is called aborted",
        evidence,
        "judge_state",
        "return Finding(Outcome.OPEN, words)\n    if state.epoch == epoch and state.state == "
        '"CompleteCommit"',
        "return Finding(Outcome.ABORTED, words)\n    if state.epoch == epoch and state.state == "
        '"CompleteCommit"',
        kinds=("time-out", "expiry", "somebody's use"),
    ),
    Guard(
        "an old coordinator's word that it is committed is believed",
        evidence,
        "judge_state",
        'state.state == "CompleteCommit":',
        'state.state == "CompleteCommit":\n        return Finding(Outcome.COMMITTED, words)',
        why="EndTxn was refused twice before, the second time by a coordinator that another "
        "broker named.",
    ),
    Guard(
        "an abort under the next epoch is believed without the log",
        evidence,
        "judge_state",
        'if state.epoch == epoch and state.state == "CompleteAbort":',
        'if state.state == "CompleteAbort":',
        kinds=("client's late request", "time-out", "retention"),
    ),
    Guard(
        "an abort under the very epoch is not believed",
        evidence,
        "judge_state",
        'if state.epoch == epoch and state.state == "CompleteAbort":',
        "if False:",
        why="Only EndTxn(abort) leaves the epoch as it is, and nobody sends that for what was "
        "handed over.",
    ),
    Guard(
        "a commit marker of any epoch is believed",
        evidence,
        "judge_log",
        "if marker.commits and marker.epoch == epoch:",
        "if marker.commits:",
        kinds=("somebody's fence", "somebody's use", "compaction"),
    ),
    Guard(
        "an abort marker of any epoch is believed",
        evidence,
        "judge_log",
        "if not marker.commits and marker.epoch in {epoch, epoch + 1}:",
        "if not marker.commits:",
        why="Only a stranger leaves one, who aborts under our id and producer id.",
    ),
    Guard(
        "an abort marker of the next epoch is not believed",
        evidence,
        "judge_log",
        "marker.epoch in {epoch, epoch + 1}",
        "marker.epoch == epoch",
        kinds=("somebody's fence", "time-out", "strangers"),
    ),
    Guard(
        "an abort marker of the very epoch is not believed",
        evidence,
        "judge_log",
        "marker.epoch in {epoch, epoch + 1}",
        "marker.epoch == epoch + 1",
        why="Only EndTxn(abort) leaves the epoch as it is, and nobody sends that for what was "
        "handed over.",
    ),
    Guard(
        "a transaction without a marker is called aborted",
        evidence,
        "judge_log",
        "if marker is None:\n        return Finding(Outcome.UNKNOWN",
        "if marker is None:\n        return Finding(Outcome.ABORTED",
        kinds=("compaction", "somebody's fence"),
    ),
    Guard(
        "without the log, an abort under any epoch is believed",
        evidence,
        "judge_log",
        '(state.producer_id, state.epoch) == (committable["producer_id"], epoch + 1)',
        'state.producer_id == committable["producer_id"]',
        why="Only a stranger leaves one, who aborts under our id and producer id.",
    ),
    Guard(
        "without the log, an abort of any producer is believed",
        evidence,
        "judge_log",
        '(state.producer_id, state.epoch) == (committable["producer_id"], epoch + 1)',
        "state.epoch == epoch + 1",
        kinds=("expiry", "somebody's use", "retention", "somebody's fence"),
    ),
    Guard(
        "without the log, the next epoch is believed to be an abort",
        evidence,
        "judge_log",
        'and state.state == "CompleteAbort"',
        "",
        kinds=("somebody's fence", "retention"),
    ),
    Guard(
        "without the log, an abort of a doubtful transaction is believed",
        evidence,
        "judge_log",
        'if not committable.get("doubtful"):',
        "if True:",
        kinds=("client's late request", "time-out", "retention"),
    ),
    Guard(
        "the proof is in any partition",
        evidence,
        "proof_of",
        "for topic, partition in sorted(state.partitions if state is not None else ()):",
        "for topic, partition in sorted(ends):",
        kinds=("somebody's fence", "time-out"),
    ),
    # --- outcomes ---------------------------------------------------------------------------------
    Guard(
        "the states are read before the ends",
        outcomes,
        "confirmed",
        "        ends = reader.end_offsets(topics, again=again)\n"
        '        failpoints.hit("kafka.confirm.ends_read")\n'
        '        states = reader.states([str(c["name"]) for c in committables])\n',
        '        states = reader.states([str(c["name"]) for c in committables])\n'
        "        ends = reader.end_offsets(topics, again=again)\n",
        kinds=("somebody's fence", "time-out", "not now"),
    ),
    Guard(
        "a partition without a leader is passed over before the decision",
        outcomes,
        "confirmed",
        "    if untold:\n        raise",
        "    if False:\n        raise",
        kinds=("no leader",),
    ),
    Guard(
        "partitions that were added meanwhile are not looked up",
        outcomes,
        "confirmed",
        "for again in (False, True):",
        "for again in (False, False):",
        kinds=("partition added",),
    ),
    Guard(
        "a forgotten transaction is confirmed",
        outcomes,
        "_confirmed",
        'if state is None or state.state != "Ongoing" or not of_ours:',
        'if state is not None and (state.state != "Ongoing" or not of_ours):',
        kinds=("somebody's fence", "time-out", "expiry"),
    ),
    Guard(
        "a transaction that is being ended is confirmed",
        outcomes,
        "_confirmed",
        'state.state != "Ongoing" or not of_ours',
        "not of_ours",
        why="The epoch tells it too, unless somebody ends it by EndTxn.",
    ),
    Guard(
        "another transaction of the same id is confirmed",
        outcomes,
        "_confirmed",
        'state.state != "Ongoing" or not of_ours',
        'state.state != "Ongoing"',
        kinds=("expiry", "somebody's fence", "somebody's use"),
    ),
    Guard(
        "another producer's transaction is confirmed",
        outcomes,
        "_confirmed",
        "of_ours = state is not None and (state.producer_id, state.epoch) == (\n"
        '        committable["producer_id"],\n'
        '        committable["producer_epoch"],\n'
        "    )",
        'of_ours = state is not None and state.epoch == committable["producer_epoch"]',
        why="It takes an id that is fenced, forgotten and used again while its transaction is "
        "prepared.",
    ),
    Guard(
        "the proof is not noted",
        outcomes,
        "_confirmed",
        'return kept if proof is None else {**kept, "proof": proof}',
        "return kept",
        kinds=("somebody's fence", "time-out"),
    ),
    Guard(
        "the cluster is not noted",
        outcomes,
        "placed",
        'noted.append({**committable, **with_id, "cluster": found.cluster})',
        "noted.append({**committable, **with_id})",
        kinds=("other cluster", "kill"),
    ),
    Guard(
        "the topic's id is not noted",
        outcomes,
        "placed",
        "if topic_id is None else",
        "if True else",
        kinds=("topic made again", "somebody's fence", "expiry"),
    ),
    Guard(
        "every cluster is the right one",
        outcomes,
        "in_other_clusters",
        'if c.get("cluster", here) != here',
        "if False",
        kinds=("other cluster", "kill"),
    ),
    Guard(
        "a transaction is ended while a partition of it has no leader",
        outcomes,
        "withheld",
        "leaderless = reader.leaderless(partitions) if partitions else []",
        "leaderless = []",
        kinds=("no leader", "coordinator moves"),
    ),
    Guard(
        "a transaction is ended before anybody tells where it has written",
        outcomes,
        "withheld",
        "if name not in known",
        "if False",
        kinds=("no leader", "coordinator moves"),
    ),
    Guard(
        "what is not ended yet is in doubt",
        outcomes,
        "with_findings",
        "if finding.outcome is Outcome.OPEN:",
        "if False:",
        kinds=("somebody's fence", "time-out"),
    ),
    Guard(
        "what is refused is lost",
        outcomes,
        "with_findings",
        "if finding.outcome is Outcome.COMMITTED:",
        "if False:",
        kinds=("somebody's fence", "time-out", "kill"),
    ),
    Guard(
        "what is refused was committed before",
        outcomes,
        "with_findings",
        "if finding.outcome is Outcome.COMMITTED:",
        "if True:",
        kinds=("somebody's fence", "time-out", "kill"),
    ),
    Guard(
        "what is unknown is lost",
        outcomes,
        "with_findings",
        "elif finding.outcome is Outcome.ABORTED:",
        "elif finding.outcome is not Outcome.COMMITTED:",
        kinds=("somebody's fence", "expiry", "retention"),
    ),
    # --- transaction_reader -----------------------------------------------------------------------
    Guard(
        "an error of a coordinator counts as a forgotten id",
        Reader,
        "_take_state",
        "elif state.error_code == _TRANSACTIONAL_ID_NOT_FOUND:",
        "elif state.error_code:",
        kinds=("not now",),
    ),
    Guard(
        "a coordinator that has moved stays the known one",
        Reader,
        "_take_state",
        "self._client.forget([name])",
        "pass",
        kinds=("coordinator moves", "not now"),
    ),
    Guard(
        "a coordinator that doesn't answer stays the known one",
        Reader,
        "_ask_states",
        "self._client.forget(asked)",
        "pass",
        why="It answers when the faults have ended, and says that it is no coordinator.",
    ),
    Guard(
        "a state is awaited once only",
        Reader,
        "states_known_soon",
        "if len(found) == len(set(names)) or time.monotonic() > deadline_s:",
        "if True:",
        why="The transaction is withheld then, and the next call asks again.",
    ),
    Guard(
        "a leader's error counts as an offset",
        Reader,
        "_take_offsets",
        "if part.error_code == _OK:",
        "if True:",
        kinds=("leader moves", "not now", "somebody's fence", "time-out"),
    ),
    Guard(
        "leaders are not looked up again for end offsets",
        Reader,
        "end_offsets",
        "        stale = True\n        retry",
        "        retry",
        kinds=("leader moves", "not now"),
    ),
    Guard(
        "the ends of some partitions are enough",
        Reader,
        "end_offsets",
        "if leaders and ends.keys() >= leaders.keys():",
        "if ends:",
        why="A partition is missing then, and nothing is decided until it isn't.",
    ),
    Guard(
        "leaders are believed that were told before",
        Reader,
        "leaderless",
        "look=True",
        "look=False",
        kinds=("no leader",),
    ),
    Guard(
        "another producer's marker counts",
        Reader,
        "marker",
        "batch.producer_id == producer_id and",
        "",
        kinds=("somebody's fence", "time-out", "strangers"),
    ),
    Guard(
        "a marker in front of the proof counts",
        Reader,
        "marker",
        " and batch.base_offset >= offset",
        "",
        why="An end offset never lies within a batch, so none begins in front of it and "
        "reaches behind it.",
    ),
    Guard(
        "an earlier transaction's marker counts",
        transaction_reader,
        "_with_batch",
        "return None if batch.epoch == epoch else found",
        "return found",
        kinds=("cut off", "leader moves", "somebody's fence", "time-out"),
    ),
    Guard(
        "records of a later epoch hide the marker",
        transaction_reader,
        "_with_batch",
        "return None if batch.epoch == epoch else found",
        "return None",
        kinds=("somebody's fence", "somebody's use", "time-out"),
    ),
    Guard(
        "the last marker counts",
        transaction_reader,
        "_with_batch",
        "if found is None else found",
        "",
        kinds=("somebody's fence", "somebody's use", "time-out"),
    ),
    Guard(
        "a leader that doesn't show all is believed",
        Reader,
        "marker",
        "if position >= self.end_offsets([partition[0]]).get(partition, position + 1):",
        "if True:",
        kinds=("leader moves", "somebody's fence", "time-out"),
    ),
    Guard(
        "a partition without a leader is gone",
        Reader,
        "marker",
        "if address is None:",
        "if address is None:\n            return Unreadable('no leader')\n        if False:",
        kinds=("no leader", "somebody's fence", "time-out"),
    ),
    Guard(
        "a leader that has moved stays the known one",
        Reader,
        "marker",
        "look = isinstance(answer, str)",
        "look = False",
        kinds=("leader moves", "somebody's fence", "time-out"),
    ),
    Guard(
        "a leader's error means that the log can't be read",
        Reader,
        "_fetch",
        "    return error_name(part.error_code)",
        "    return Unreadable(error_name(part.error_code))",
        kinds=("leader moves", "not now", "somebody's fence", "time-out"),
    ),
    Guard(
        "retention leaves an empty log",
        Reader,
        "_fetch",
        "if part.error_code == _OK:",
        "if part.error_code in (_OK, _OFFSET_OUT_OF_RANGE):",
        kinds=("retention", "somebody's fence", "time-out"),
    ),
    Guard(
        "a topic that was made again has the proof",
        Reader,
        "_finding",
        'if "topic_id" in proof:',
        "if False:",
        kinds=("topic made again", "somebody's fence", "expiry"),
    ),
    Guard(
        "the log is read from its beginning",
        Reader,
        "_finding",
        'self.marker(partition, int(proof["offset"]), producer_id, epoch)',
        "self.marker(partition, 0, producer_id, epoch)",
    ),
    Guard(
        "a batch that is cut off is read",
        transaction_reader,
        "record_batches",
        "if end > len(data):",
        "if False:",
        kinds=("somebody's fence", "time-out", "strangers"),
    ),
    Guard(
        "a marker that was emptied is read",
        transaction_reader,
        "record_batches",
        "if attributes & _IS_CONTROL and count:",
        "if attributes & _IS_CONTROL:",
    ),
    # --- coordinator_client -----------------------------------------------------------------------
    Guard(
        "EndTxn speaks the new version",
        Client,
        "end_transactions",
        "max_version=_END_TXN_MAX_VERSION,",
        "",
        kinds=(),
    ),
    Guard(
        "a doubtful producer's coordinator is not looked up again",
        Client,
        "end_transactions",
        'self._doubt([name for name, c in by_name.items() if c.get("doubtful")])',
        "pass",
    ),
    Guard(
        "a refusal counts at once",
        Client,
        "_ask_coordinators",
        "if code in _LOST and name not in confirming and self._has_others():",
        "if False:",
        why="It takes a broker that is cut off between two requests of one producer, and "
        "wakes at the commit. Random schedules hardly meet that; "
        "tests/sinks/kafka/test_cluster.py plays it on real brokers.",
    ),
    Guard(
        "a request that was sent is not noted as repeated",
        Client,
        "_put_off",
        "answers.unanswered.add(name)\n            answers.repeated.add(name)",
        "answers.unanswered.add(name)",
        kinds=("late request", "lost answer"),
    ),
    Guard(
        "a request that may still come is not noted",
        Client,
        "_put_off",
        "answers.unanswered.add(name)\n            answers.repeated.add(name)",
        "answers.repeated.add(name)",
        kinds=("not now", "late request"),
    ),
    Guard(
        "a request that was put off is not noted as repeated",
        Client,
        "_put_off",
        "    answers.repeated.add(name)\n    if answer.error_code in _LOST:",
        "    if answer.error_code in _LOST:",
        why="It was answered, so nothing of it comes late: this is caution.",
    ),
    Guard(
        "a silent coordinator is asked for ever",
        Client,
        "_put_off",
        'self.forget([name])\n        return f"broker {address_text(answer.address)}',
        'return f"broker {address_text(answer.address)}',
        why="It answers when the faults have ended, and says that it is no coordinator.",
    ),
    Guard(
        "a moved coordinator is asked for ever",
        Client,
        "_put_off",
        "elif answer.error_code in _MOVED:\n        self.forget([name])",
        "elif answer.error_code in _MOVED:\n        pass",
        why="The next call reads the state first, and forgets the coordinator there.",
    ),
    Guard(
        "a refusing coordinator is believed when it is asked twice",
        Client,
        "_put_off",
        "self._doubt([name])",
        "pass",
        why="It takes a broker that is cut off between two requests of one producer, and "
        "wakes at the commit. Random schedules hardly meet that; "
        "tests/sinks/kafka/test_cluster.py plays it on real brokers.",
    ),
    Guard(
        "coordinators that move hide their transactions",
        coordinator_client,
        "_why_not_settled",
        "if before != after:",
        "if False:",
        why="It takes a move between two brokers' listings. Random schedules hardly meet "
        "that; tests/sinks/kafka/test_cluster.py plays it on real brokers.",
    ),
    Guard(
        "a coordinator that was not asked hides its transactions",
        coordinator_client,
        "_why_not_settled",
        "if address is None or address not in answered:",
        "if False:",
        why="Every broker is asked, and one without an answer is a reason to ask again already.",
    ),
    Guard(
        "one broker's word is enough for where coordinators are",
        Client,
        "_transaction_leaders",
        "if not reason and any(view != views[0] for view in views):",
        "if False:",
        kinds=("coordinator moves", "zombie", "kill"),
    ),
    Guard(
        "coordinators that have just moved are asked once",
        Client,
        "open_transactions",
        "if not was_amiss or settled_with == before:",
        "if True:",
        why="A simulated broker that calls itself a coordinator has begun to read; a real one "
        "may take some milliseconds more.",
    ),
    Guard(
        "a broker that doesn't list is passed over",
        Client,
        "open_transactions",
        "            answers, reason = self._ask_every_broker(\n"
        "                lambda: ListTransactionsRequest(",
        "            answers, _ = self._ask_every_broker(\n"
        "                lambda: ListTransactionsRequest(",
        why="It is missing among those that have answered, which counts too.",
    ),
    # --- sink -------------------------------------------------------------------------------------
    Guard(
        "ids that tasks have burnt are used again",
        Sink,
        "commit",
        'self._burn([name for committable in committables for name in committable.get("burnt", ())])',
        "pass",
        kinds=("client's late request", "client's repeated request"),
    ),
    Guard(
        "what was decided is sent to another cluster",
        Sink,
        "commit",
        "if not strange:",
        "if True:",
        kinds=("other cluster", "kill"),
    ),
    Guard(
        "nothing is unsure",
        Sink,
        "commit",
        'unsure = {str(c["name"]) for c in committables} - confirmed_now',
        "unsure = set()",
        kinds=("other cluster", "kill"),
    ),
    Guard(
        "what another cluster says is believed",
        Sink,
        "_with_findings",
        "strange = self._in_other_clusters(missing)",
        "strange = []",
        kinds=("other cluster", "kill"),
    ),
    Guard(
        "a repeated EndTxn leaves no doubt",
        Sink,
        "_commit",
        "self._doubtful |= answers.repeated",
        "pass",
        kinds=("late request", "lost answer"),
    ),
    Guard(
        "a task's doubt is forgotten",
        Sink,
        "_commit",
        'elif name in doubtful or committable.get("doubtful"):',
        "elif name in doubtful:",
        kinds=("client's late request", "client's repeated request"),
    ),
    Guard(
        "a withheld transaction is ended",
        Sink,
        "_commit",
        '[c for c in committables if c["name"] not in held]',
        "committables",
        kinds=("no leader", "coordinator moves"),
    ),
    Guard(
        "a withheld transaction is fenced",
        Sink,
        "_fence",
        "[name for name in ours if name not in held]",
        "ours",
        kinds=("no leader", "coordinator moves"),
    ),
    Guard(
        "a fence that was not answered burns nothing",
        Sink,
        "_fence",
        "self._burn(sorted(answers.unanswered))",
        "pass",
        kinds=("late request", "client's late request", "client's repeated request"),
    ),
    Guard(
        "a fence that was not answered counts",
        Sink,
        "_fence",
        "if answers.missing or refused:",
        "if refused:",
        kinds=("lost request", "late request"),
    ),
    Guard(
        "a fence that was refused counts",
        coordinator_client,
        "is_fenced",
        "code in {_OK, _FENCED}",
        "True",
        why="No simulated broker refuses InitProducerId for good.",
    ),
    Guard(
        "an abort is not waited for",
        coordinator_client,
        "is_fenced",
        "code in {_OK, _FENCED}",
        "code in {_OK, _FENCED, _CONCURRENT_TRANSACTIONS}",
        why="The client asks again itself before this answer is judged.",
    ),
    Guard(
        "another query's transactions are swept",
        Sink,
        "_is_covered",
        "if parsed is None or (self._start is not None and parsed[1].query_id != self._start[0]):\n"
        "        return False\n"
        "    prefix, name = parsed",
        "if parsed is None:\n        return False\n    prefix, name = parsed\n"
        "    return name.generation < sweep.generation",
        kinds=("strangers",),
    ),
    Guard(
        "a sweep spares nothing",
        Sink,
        "_is_covered",
        "return sweep.covers(name.query_id, name.sink, name.generation, transactional_id)",
        "return name.query_id == sweep.query_id and name.generation < sweep.generation",
        kinds=("kill",),
    ),
]

FOUND = [guard for guard in GUARDS if not guard.why]
NOT_FOUND = [guard for guard in GUARDS if guard.why]
