"""A TCP proxy in front of one real Kafka broker, with which a test makes requests late, loses
answers, and resets connections.

It understands the framing of Kafka's protocol and the header of each request, not what the bodies
say, so any client works with it. The
fault that it is made for is the *late request*: a client's connection is lost while the network
still carries a request of it, which
reaches the broker when the client has long since connected again and repeated it::

    with KafkaProxy(broker.port) as proxy: client = Producer({"bootstrap.servers": proxy.address,
        ...}) late = proxy.hold(Api.END_TXN)                # the next EndTxn goes no further ...
        # the client commits, in a thread late.wait() late.cut()
        # the client loses its connection; the broker does not ...
        # the client connects again, repeats EndTxn, and begins another transaction answers =
        late.release()                      # only now does the broker get the first one, and
        answers it

Clients are sent through the proxy by their ``bootstrap.servers``, and stay with it: where a
broker's answer names the broker's own port,
the proxy puts its own in its place. The broker needs no setting for that, and other clients may use
it directly meanwhile. What is sent over TLS can't be read, and can't be proxied.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from onceforall.embedded.network import HOST
from support.kafka_frames import (
    ANSWERS_WITH_ADDRESSES,
    Api,
    Request,
    parse_request,
    read_frame,
    with_other_ports,
    with_size,
)

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["Api", "Fault", "KafkaProxy", "Request"]

_DEADLINE_S = 20.0
_LOG_SIZE = 10_000

_T = TypeVar("_T")
_Answer: TypeAlias = "asyncio.Future[bytes | None]"


class Fault:
    """Something that happens to requests; made by ``KafkaProxy``. Safe to use from any thread
    but the proxy's own."""

    def __init__(
        self,
        proxy: KafkaProxy,
        kind: str,
        api_key: int,
        when: Callable[[Request], bool] | None,
        count: int,
    ) -> None:
        self._proxy = proxy
        self._api_key = api_key
        self._when = when
        self._released = asyncio.Event()
        self._caught = threading.Condition()
        self._requests: list[Request] = []
        self._connections: list[_Connection] = []
        self._answers: list[_Answer] = []
        self.kind = kind
        self.left = count
        self.delay_s = 0.0
        self.alone = False

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests that it has happened to, in order."""
        with self._caught:
            return tuple(self._requests)

    def wait(self, count: int = 1, timeout_s: float = _DEADLINE_S) -> Request:
        """Wait until it has happened to so many requests, and return the last of these.

        Raises:
            TimeoutError: it has not; the message says which requests came.
        """
        with self._caught:
            if not self._caught.wait_for(lambda: len(self._requests) >= count, timeout_s):
                seen = sorted({request.api_key for request in self._proxy.requests()})
                raise TimeoutError(
                    f"No fault {self.kind!r} for {count} request(s) with api key {self._api_key} "
                    f"in {timeout_s} s; api keys seen: {seen}. Check the predicate, and "
                    "that the client connects to the proxy."
                )
            return self._requests[count - 1]

    def cut(self) -> None:
        """End the client connections of these requests with a reset; the broker's side stays
        open until what is held is answered."""
        self._proxy.call(self._cut())

    async def _cut(self) -> None:
        for connection in self._connections:
            _reset(connection.client)

    def release(self, timeout_s: float = _DEADLINE_S) -> list[bytes | None]:
        """Let the held requests go to the broker, in order. From then on it happens to no further
        request, whatever kind of fault it is.

        Returns:
            The broker's answer to each (header included); None where the broker's connection ended
            before it.

        Raises:
            TimeoutError: an answer is missing after ``timeout_s``.
        """
        return self._proxy.call(self._release(), timeout_s)

    async def _release(self) -> list[bytes | None]:
        self.left = 0
        self._released.set()
        if self._answers:
            await asyncio.wait(self._answers)
        return [answer.result() for answer in self._answers]

    def takes(self, request: Request) -> bool:
        """Tell whether it is to happen to this request (called by the proxy)."""
        return (
            self.left > 0
            and request.api_key == self._api_key
            and (self._when is None or self._when(request))
        )

    def catch(self, request: Request, connection: _Connection) -> _Answer:
        """Note a request that it happens to; the result is for the broker's answer (called by
        the proxy)."""
        self.left -= 1
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._connections.append(connection)
        with self._caught:
            self._requests.append(request)
            self._caught.notify_all()
        return answer

    async def pass_by(self) -> None:
        """Wait as long as a request is to be kept back (called by the proxy)."""
        if self.kind == "hold":
            await self._released.wait()
        await asyncio.sleep(self.delay_s)


@dataclass(eq=False)
class _Connection:
    """A client's connection and the one to the broker that goes with it.

    ``sent`` is what the broker has not answered yet; ``late`` is for the answers that are awaited
    even when the client has gone.
    """

    number: int
    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    sent: deque[tuple[Request, Fault | None, _Answer | None]] = field(default_factory=deque)
    late: list[_Answer] = field(default_factory=list)


class KafkaProxy:
    """A proxy on a free port of 127.0.0.1, from ``start`` to ``stop``; also a context manager.

    Faults may be planned and released at any time, from any thread. Of several that fit a request,
    the one planned first happens.
    """

    def __init__(self, broker_port: int, *, aliases: Mapping[int, int] | None = None) -> None:
        """Nothing is started yet.

        Args:
            broker_port: where the broker listens, on 127.0.0.1.
            aliases: in a cluster with several brokers, each with a proxy of its own: the ports of
                the other brokers, and what clients are to use in their place. Read at each answer,
                so it may be filled in later.
        """
        self._broker_port = broker_port
        self._aliases = aliases if aliases is not None else {}
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[_Connection] = set()
        self._faults: list[Fault] = []
        self._failure: BaseException | None = None
        self._log: deque[Request] = deque(maxlen=_LOG_SIZE)
        self._count = 0
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """``127.0.0.1:port``, for a client's ``bootstrap.servers``."""
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Listen; the broker need not run yet. A proxy is started once."""
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="kafka-proxy", daemon=True
        )
        self._thread.start()
        self.call(self._listen())

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """End all connections and the proxy's thread; held requests are dropped.

        Raises:
            Exception: what a predicate of a fault has raised.
            ValueError: a client sent what is not Kafka's protocol, such as TLS, before anything
                that is.
        """
        if self._thread is None:
            return
        self.call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._thread = None
        self._loop.close()
        if self._failure is not None:
            raise self._failure

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def call(self, work: Coroutine[Any, Any, _T], timeout_s: float = _DEADLINE_S) -> _T:
        """Run something in the proxy's thread and return its result.

        Raises:
            TimeoutError: there was none after ``timeout_s``.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise TimeoutError(
                f"The proxy has no result after {timeout_s} s. Check that the broker behind it "
                "answers."
            ) from error

    # --- faults -----------------------------------------------------------------------------------

    def hold(
        self,
        api_key: int,
        when: Callable[[Request], bool] | None = None,
        *,
        count: int = 1,
        alone: bool = False,
    ) -> Fault:
        """Keep requests back until they are released.

        Args:
            api_key: what kind of request.
            when: only those for which this is true; called in the proxy's thread.
            count: how many, at most.
            alone: later requests of the same connection overtake a held one; by default they wait
                behind it, as TCP has them.
        """
        return self._plan("hold", api_key, when, count, alone=alone)

    def delay(
        self,
        api_key: int,
        delay_s: float,
        when: Callable[[Request], bool] | None = None,
        *,
        count: int = 1,
    ) -> Fault:
        """Keep requests, and what comes behind them, back for a time in seconds."""
        return self._plan("delay", api_key, when, count, delay_s=delay_s)

    def swallow(
        self, api_key: int, when: Callable[[Request], bool] | None = None, *, count: int = 1
    ) -> Fault:
        """Give requests to the broker, but not its answers to the client."""
        return self._plan("swallow", api_key, when, count)

    def reset(
        self, api_key: int, when: Callable[[Request], bool] | None = None, *, count: int = 1
    ) -> Fault:
        """End the connection at a request, which the broker does not get."""
        return self._plan("reset", api_key, when, count)

    def _plan(
        self,
        kind: str,
        api_key: int,
        when: Callable[[Request], bool] | None,
        count: int,
        *,
        delay_s: float = 0.0,
        alone: bool = False,
    ) -> Fault:
        async def plan() -> Fault:
            fault = Fault(self, kind, api_key, when, count)
            fault.delay_s, fault.alone = delay_s, alone
            self._faults = [*(f for f in self._faults if f.left > 0), fault]
            return fault

        return self.call(plan())

    def cut(self) -> None:
        """End all connections with a reset; for what is held, as ``Fault.cut``."""

        async def cut() -> None:
            for connection in self._open:
                _reset(connection.client)

        self.call(cut())

    def requests(self, api_key: int | None = None) -> list[Request]:
        """Return the last 10,000 requests that came from clients, without their bodies; those
        with one api key, where it is given."""
        return [
            request for request in list(self._log) if api_key is None or request.api_key == api_key
        ]

    # --- in the proxy's thread --------------------------------------------------------------------

    async def _serve(
        self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        broker: asyncio.StreamWriter | None = None
        try:
            broker_reader, broker = await asyncio.open_connection(HOST, self._broker_port)
            self._count += 1
            await self._connected(
                _Connection(self._count, client, broker), client_reader, broker_reader
            )
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the broker is away, a side has ended, or the proxy stops
        except Exception as error:
            self._failure = self._failure or error
        finally:
            client.transport.abort()
            if broker is not None:
                broker.transport.abort()
            self._tasks.discard(task)

    async def _connected(
        self,
        connection: _Connection,
        client_reader: asyncio.StreamReader,
        broker_reader: asyncio.StreamReader,
    ) -> None:
        self._open.add(connection)
        answers = asyncio.create_task(self._pass_answers(connection, broker_reader))
        requests = asyncio.create_task(self._pass_requests(connection, client_reader))
        try:
            await asyncio.wait({requests, answers}, return_when=asyncio.FIRST_COMPLETED)
            if requests.done() and not answers.done() and connection.late:
                # The client has gone; what is held will still reach the broker.
                connection.client.transport.abort()
                late = asyncio.create_task(asyncio.wait(connection.late))
                await asyncio.wait([late, answers], return_when=asyncio.FIRST_COMPLETED)
            for task in (requests, answers):
                if task.done():
                    task.result()
        finally:
            self._open.discard(connection)
            for task in (requests, answers):
                task.cancel()
            for answer in connection.late:
                _settle(answer, None)
            await asyncio.gather(requests, answers, return_exceptions=True)

    async def _pass_requests(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                request = parse_request(connection.number, await read_frame(reader))
            except ValueError:
                # The driver tries whether TLS is spoken where connections end without a word.
                if self._log:
                    return
                raise
            self._log.append(replace(request, frame=b""))
            fault = next((fault for fault in self._faults if fault.takes(request)), None)
            answer = None
            if fault is not None:
                answer = fault.catch(request, connection)
                if fault.kind == "reset":
                    _settle(answer, None)
                    _reset(connection.client)
                    return
                connection.late.append(answer)
            passing = self._pass_request(connection, request, fault, answer)
            if fault is not None and fault.alone:
                self._start(passing)
            else:
                await passing

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_request(
        self, connection: _Connection, request: Request, fault: Fault | None, answer: _Answer | None
    ) -> None:
        if fault is not None:
            await fault.pass_by()
        connection.sent.append((request, fault, answer))
        connection.broker.write(with_size(request.frame))
        await connection.broker.drain()

    async def _pass_answers(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        while True:
            frame = await read_frame(reader)
            correlation_id = int.from_bytes(frame[:4], "big", signed=True)
            # Answers come in the order of the requests; a Produce request with acks=0 has none.
            while (sent := connection.sent.popleft())[0].correlation_id != correlation_id:
                pass
            request, fault, answer = sent
            if answer is not None:
                _settle(answer, frame)
            if fault is not None and fault.kind == "swallow":
                continue
            if request.api_key in ANSWERS_WITH_ADDRESSES:
                frame = self._with_own_addresses(frame)
            if not connection.client.transport.is_closing():
                connection.client.write(with_size(frame))
                with contextlib.suppress(ConnectionError):
                    await connection.client.drain()

    def _with_own_addresses(self, frame: bytes) -> bytes:
        return with_other_ports(frame, {**self._aliases, self._broker_port: self.port})


def _settle(answer: _Answer, frame: bytes | None) -> None:
    if not answer.done():
        answer.set_result(frame)


def _reset(client: asyncio.StreamWriter) -> None:
    if not client.transport.is_closing():
        # Without lingering, closing sends a reset, as a network does that has forgotten the
        # connection.
        client.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        client.transport.abort()
