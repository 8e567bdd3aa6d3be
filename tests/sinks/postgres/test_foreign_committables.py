"""A decision of an earlier release doesn't say which kind of sink has prepared it."""

from onceforall.sinks.postgres.driver import committing


def test_what_another_kind_of_sink_has_prepared_is_in_doubt_and_not_asked_for_ever():
    foreign = [{"name": "t0", "files": []}, {"name": "t1", "kind": "other"}]
    report = committing._commit_all(None, None, foreign)
    assert [each.committable for each in report.in_doubt] == foreign
    assert "isn't one of PostgresSink" in report.in_doubt[0].reason
    assert "start once more with that one" in report.in_doubt[0].reason
    assert (report.completed, report.retired, report.lost) == ((), (), ())
