"""One request at a time comes to moto, and only when all of it is there."""

from __future__ import annotations

import io
import threading

import pytest

from onceforall.embedded.s3_program import OneAtATime


def test_two_requests_are_never_in_the_application_together():
    together = threading.Barrier(2)
    met = []

    def application(environ, start_response):
        try:
            together.wait(0.3)
            met.append(environ)
        except threading.BrokenBarrierError:
            pass
        return [environ["wsgi.input"].read()]

    answers, one_at_a_time = [], OneAtATime(application)

    def ask(body):
        environ = {"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
        answers.extend(one_at_a_time(environ, None))

    threads = [threading.Thread(target=ask, args=(body,)) for body in (b"1", b"2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [b"1", b"2"]
    assert not met


def test_a_client_that_stops_within_its_body_stops_nobody_else():
    more, reading = threading.Event(), threading.Event()

    class Slow(io.BytesIO):
        def read(self, size=-1):
            reading.set()
            assert more.wait(20)
            return super().read(size)

    one_at_a_time = OneAtATime(lambda environ, _: [environ["wsgi.input"].read()])
    answers = []
    slow = threading.Thread(
        target=lambda: answers.extend(
            one_at_a_time({"wsgi.input": Slow(b"slow"), "CONTENT_LENGTH": "4"}, None)
        )
    )
    slow.start()
    assert reading.wait(20)
    quick = {"wsgi.input": io.BytesIO(b"quick"), "CONTENT_LENGTH": "5"}
    assert one_at_a_time(quick, None) == [b"quick"]
    more.set()
    slow.join()
    assert answers == [b"slow"]


def test_a_body_that_is_cut_short_is_not_stored():
    called = []
    one_at_a_time = OneAtATime(lambda *given: called.append(given) or [])
    with pytest.raises(ConnectionError, match="within its request"):
        one_at_a_time({"wsgi.input": io.BytesIO(b"ha"), "CONTENT_LENGTH": "4"}, None)
    assert not called
