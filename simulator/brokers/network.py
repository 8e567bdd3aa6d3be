"""The network between the driver and a simulated cluster, and the clock: what replaces ``Wire``,
``time`` and the threads below the production code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace as Answer
from typing import TYPE_CHECKING, Any, TypeVar

from onceforall.sinks.kafka import sink
from onceforall.sinks.kafka.driver import (
    broker_client,
    coordinator_client,
    retry,
    state_reader,
    transaction_reader,
)
from onceforall.sinks.kafka.driver.wire import NO_STEPS, Address, NoAnswer, Steps, Wire
from simulator.brokers.world import World

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
S = TypeVar("S")

_CHANGE = {"EndTxnRequest", "InitProducerIdRequest"}
_ASK_FOR_COORDINATOR = "FindCoordinatorRequest"
_FETCH = "FetchRequest"


class SimulatedWire:
    """Hands requests to the brokers of a world, one after the other, through its faults."""

    def __init__(self, world: World) -> None:
        self._world = world

    def exchange(
        self,
        calls: Sequence[tuple[Address, Any]],
        deadline_s: float,  # noqa: ARG002  the world's clock is nobody's
        steps: Steps = NO_STEPS,
    ) -> list[Any]:
        """Answer as ``Wire.exchange`` does."""
        answers = []
        for address, request in calls:
            steps.sending()
            answers.append(self._one(address, request))
            steps.answered()
        return answers

    def _one(self, address: Address, request: Any) -> Any:
        world, kind = self._world, type(request).__name__
        world.stir()
        world.maybe_kill()
        world.keep_to_plan()
        if kind == _FETCH:
            world.others_write(request.topics[0].topic, request.topics[0].partitions[0])
        fault = world.fault_of_request(changes=kind in _CHANGE)
        brokers = world.brokers
        if fault == "no connection":
            return NoAnswer(address, "no connection", sent=False)
        silent = NoAnswer(address, "no answer in time", sent=True)
        if fault == "lost request" or not brokers.answers(address):
            return silent
        if fault == "late request":
            if brokers is world.home:
                world.send_late(f"the driver's {kind}", lambda: brokers.answer(address, request))
            return silent
        answer = _not_now(kind, request, world) if fault == "not now" else None
        if answer is None:
            answer = brokers.answer(address, request)
        world.maybe_kill()
        return silent if fault == "lost answer" else answer

    def close(self) -> None:
        """There is nothing to close."""


def _not_now(kind: str, request: Any, world: World) -> Any:
    code = world.rng.choice((14, 15, 16))
    if kind in _CHANGE:
        return Answer(error_code=world.rng.choice((14, 15, 16, 51)))
    if kind == "DescribeTransactionsRequest":
        states = [Answer(transactional_id=n, error_code=code) for n in request.transactional_ids]
        return Answer(transaction_states=states)
    if kind == "ListTransactionsRequest":
        return Answer(error_code=14, transaction_states=[])
    if kind == _ASK_FOR_COORDINATOR:
        keys = request.coordinator_keys
        return Answer(coordinators=[Answer(key=k, error_code=15, host="", port=-1) for k in keys])
    if kind == _FETCH:
        return Answer(responses=[Answer(partitions=[Answer(error_code=6, records=b"")])])
    return None


class SimulatedTime:
    """``time``, of a world.

    Args:
        world: whose.
        between_turns: who sleeps looks at everything anew behind it, so that a partition may lose
            its leader meanwhile.
    """

    def __init__(self, world: World, *, between_turns: bool = False) -> None:
        self._world = world
        self._between_turns = between_turns

    def monotonic(self) -> float:
        """Return the world's time."""
        return self._world.now_s

    def sleep(self, seconds: float) -> None:
        """Let the world go on."""
        steady, self._world.steady = (
            self._world.steady,
            (self._world.steady and not self._between_turns),
        )
        self._world.pass_time(seconds)
        self._world.steady = steady


class OneThread:
    """``Threads``: does everything at once, in order."""

    def __init__(self, *_: Any) -> None:
        """Nothing is started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing has to end."""

    def map(self, action: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """Do everything, and return the results."""
        return iter([action(item) for item in items])


@cache
def _load() -> None:
    """Import what ``Wire`` imports, as it does."""
    Wire()


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Put a world's clock, and one thread, below the driver's side of the sink."""
    modules: tuple[Any, ...] = (
        broker_client,
        coordinator_client,
        retry,
        sink,
        state_reader,
        transaction_reader,
    )
    real = [module.time for module in modules]
    threads, real_wire = vars(broker_client)["Threads"], vars(broker_client)["Wire"]
    logger = logging.getLogger("onceforall.sinks.kafka")
    logged, logger.disabled = logger.disabled, True
    _load()
    vars(broker_client).update(Threads=OneThread, Wire=lambda _: SimulatedWire(world))
    for module in modules:
        module.time = SimulatedTime(world, between_turns=module in {retry, transaction_reader})
    try:
        yield
    finally:
        logger.disabled = logged
        vars(broker_client).update(Threads=threads, Wire=real_wire)
        for module, before in zip(modules, real, strict=True):
            module.time = before
