"""Checks for the tests of the runner; no run of all tests collects them, for the file's name
is not that of one."""

from onceforall.protocol.names import sink_code


def test_that_is_red():
    assert sink_code("out") is None, "always"


def test_that_is_red_too():
    assert sink_code("out") is None, "always"


def test_that_is_green():
    assert sink_code("out")
