"""A simulated Kafka cluster that answers as a real one may: late, twice, not at all, or from an old
leader's memory. ``docs/simulator.md`` says what it shows.

Above it runs the production code of the Kafka sink's driver side: ``KafkaSink.confirm``,
``commit``, ``retire``, ``abort`` and ``recover``, with the modules ``outcomes``, ``evidence``,
``transaction_reader``, ``state_reader``, ``coordinator_client`` and ``broker_client``. Only the
connections (``wire.Wire``), the clock and the threads are replaced::

    from simulator.brokers import play

    play(7)  # raises Violation if the sink says what the cluster knows to be false

``python -m simulator.brokers --schedules 100000`` plays many.
"""

from simulator.brokers.schedule import Outcome, first_violation, play
from simulator.violation import Violation

__all__ = ["Outcome", "Violation", "first_violation", "play"]
