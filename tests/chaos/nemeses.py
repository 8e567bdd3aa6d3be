"""The scenarios of random faults, by name. What is expected in each is its function's docstring."""

from chaos import nemeses_disks as disks
from chaos import nemeses_grammar as drawn
from chaos import nemeses_identity as identity
from chaos import nemeses_power as power
from chaos import nemeses_servers as servers
from chaos import nemeses_sources as sources
from chaos import nemeses_stores as stores
from chaos import nemeses_storm as storms
from chaos import nemeses_tasks as tasks
from chaos import nemeses_times as times
from chaos.arena import Scenario

SCENARIOS = {
    scenario.name: scenario
    for scenario in [
        Scenario(
            "storm",
            (
                "SIGKILL: driver, Python worker, broker, PostgreSQL backend and postmaster",
                "SIGSTOP and SIGCONT behind a successor: driver, Python worker",
                "two drivers",
                "broker restart with open transactions",
            ),
            storms.storm,
            weight=4,
            kinds=(
                "^Python workers killed",
                "^PostgreSQL backend killed",
                "^PostgreSQL postmaster killed",
                "^driver killed",
                "^Python driver killed",
                "^broker killed",
                "^broker restarted",
                "^driver frozen",
                "^second driver",
                "^Python workers and their JVM frozen",
            ),
        ),
        Scenario(
            "grammar",
            (
                (
                    "a pipeline that a grammar draws; SIGKILL at random failpoints and moments: driver, "
                    "Python worker, broker, PostgreSQL"
                ),
            ),
            drawn.drawn_pipelines,
            weight=4,
            kinds=(
                "^driver killed at a random failpoint",
                "^Python worker killed at a random failpoint",
            ),
        ),
        Scenario(
            "tasks-and-backends",
            ("SIGKILL: Python worker, PostgreSQL backend",),
            storms.tasks_and_backends,
            weight=2,
            kinds=(
                "^Python workers killed",
                "^PostgreSQL backend killed",
            ),
        ),
        Scenario(
            "two-drivers",
            ("two drivers on one checkpoint", "SIGSTOP and SIGCONT behind a successor"),
            storms.two_drivers,
            kinds=(
                "^second driver",
                "^driver frozen",
            ),
        ),
        Scenario(
            "store-s3",
            (
                "checkpoint, kept rows and files on S3: SIGKILL, SIGSTOP and replacement of drivers",
                (
                    "S3 requests cut, delayed, repeated, late, answered with 409, 500 and 503, "
                    "and their answers lost"
                ),
            ),
            stores.on_s3,
            weight=2,
            kinds=(
                "^S3: connections cut",
                "^S3: answers lost",
                "^S3: requests repeated",
                "^S3: requests delayed",
                "^S3: answered with 409",
                "^S3: answered with 5",
                "^S3: a create that lands later",
                "^driver killed",
                "^second driver",
                "^driver frozen",
            ),
        ),
        Scenario(
            "store-hdfs",
            (
                "checkpoint, kept rows and files on HDFS: SIGKILL, SIGSTOP and replacement of drivers",
            ),
            stores.on_hdfs,
            kinds=(
                "^driver killed",
                "^second driver",
                "^driver frozen",
            ),
        ),
        Scenario(
            "cluster",
            (
                "SIGKILL, SIGSTOP and restart of one of three brokers",
                "leaders and coordinators moved",
                "SIGKILL: driver with a broker",
            ),
            servers.cluster,
            kinds=(
                "brokers killed",
                "brokers killed together with the driver",
                "brokers frozen",
                "brokers restarted",
                "^leadership moved",
            ),
        ),
        Scenario(
            "proxy",
            (
                "connections reset",
                "requests delayed",
                "answers swallowed",
                "held EndTxn released after a reconnect",
            ),
            servers.proxy,
            kinds=(
                "^connection reset|^all connections reset",
                " delayed$",
                " swallowed$",
                "^held EndTxn released",
            ),
        ),
        Scenario(
            "acl",
            ("right to the topic or to the transactional ids revoked and given back",),
            servers.acl,
            kinds=(
                "to the topic revoked",
                "to the transactional id revoked",
            ),
        ),
        Scenario(
            "prepared-slots",
            ("PostgreSQL's prepared slots used up",),
            servers.slots,
            kinds=("^prepared slots used up",),
        ),
        Scenario(
            "frozen",
            (
                "SIGSTOP of the driver past every timeout, SIGCONT into a successor",
                "the same without a successor",
            ),
            times.frozen,
            kinds=("^driver frozen past every timeout",),
        ),
        Scenario(
            "lost",
            ("transactions timed out between decision and commit", "SIGKILL: driver in the redo"),
            times.lost,
            kinds=(
                "^transactions timed out",
                "^driver killed in the redo",
            ),
        ),
        Scenario(
            "kafka-source",
            (
                (
                    "transactions of a batch from one to twelve Kafka partitions timed out behind the "
                    "decision"
                ),
                "SIGKILL: driver in the redo",
            ),
            sources.kafka_source,
            weight=2,
            kinds=("timed out behind the decision",),
        ),
        Scenario(
            "frozen-append",
            (
                (
                    "SIGSTOP between the last look at the time left and the append, past the "
                    "transactions' timeout"
                ),
            ),
            times.frozen_append,
            kinds=("^driver frozen past its timeout",),
        ),
        Scenario(
            "unmounted",
            ("the files' volume away at a start, and back",),
            identity.unmounted,
            kinds=("volume away at a start",),
        ),
        Scenario(
            "swapped",
            ("another Kafka cluster under the same address behind a decision",),
            identity.swapped,
            kinds=("^another Kafka cluster",),
        ),
        Scenario("power", ("power cut: checkpoint",), power.power_cut, kinds=("^power cut at",)),
        Scenario(
            "disk-full",
            ("disk full: checkpoint, files",),
            disks.disk_full,
            kinds=(
                r"^disk full \(checkpoint\)|^ENOSPC by",
                r"^disk full \(files\)|^ENOSPC by",
            ),
        ),
        Scenario(
            "short-write",
            ("write cut off: checkpoint, files",),
            disks.short_write,
            kinds=(
                r"^short write \(checkpoint\)|^ENOSPC by",
                r"^short write \(files\)|^ENOSPC by",
            ),
        ),
        Scenario(
            "read-only",
            ("file system read-only: checkpoint, files",),
            disks.read_only,
            kinds=(
                r"^folder read-only \(checkpoint\)|^EROFS by",
                r"^folder read-only \(files\)|^EROFS by",
            ),
        ),
        Scenario(
            "torn-log",
            ("log entries truncated, and with a bit flipped",),
            disks.torn_log,
            kinds=(
                "^log entry damaged",
                "^start refused",
            ),
        ),
        Scenario(
            "executors",
            ("SIGKILL: executor JVM, Python worker, driver",),
            tasks.executors,
            kinds=(
                "^executor JVM killed",
                "^Python workers killed",
                "^driver killed",
            ),
        ),
        Scenario(
            "speculation",
            ("speculative attempts: the frozen one loses, and wakes",),
            tasks.speculation,
            kinds=(
                "frozen until its copy had won",
                "^losing attempt woken",
            ),
        ),
        Scenario(
            "failed-tasks",
            ("task attempts that fail or are killed, and are tried again",),
            tasks.failed_tasks,
            kinds=("^task attempt failed at",),
        ),
    ]
}
