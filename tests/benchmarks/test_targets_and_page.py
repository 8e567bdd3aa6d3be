"""Targets are judged within rounds, and the page shows what results say, and nothing else."""

import json
import re
from dataclasses import replace

import pytest

from benchmarks.report import charts, missed, page, targets
from benchmarks.report.results import Results
from benchmarks.report.targets import TARGETS, Target
from benchmarks.rounds import Plan
from benchmarks.settings import ROOT, Load
from benchmarks.steps import profile_path

THROUGHPUT = Target(
    "ours / theirs", "throughput", "records_per_s", "ours", "spark", 1.0, where={"payload": 100}
)


def unit(
    turn,
    ours,
    theirs,
    *,
    payload=100,
    measurement="throughput",
    figure="records_per_s",
    **parameters,
):
    return {
        "measurement": measurement,
        "round": turn,
        "parameters": {"payload": payload, **parameters},
        "samples": {
            "ours": {figure: ours},
            "spark": theirs if isinstance(theirs, dict) else {figure: theirs},
        },
    }


class TestOutcome:
    def test_a_ratio_compares_samples_of_one_round(self):
        # Over the rounds together it would be 1.5.
        found = targets.outcome(
            THROUGHPUT, [unit(0, 100, 200), unit(1, 1000, 2000), unit(2, 400, 800)]
        )
        assert found.spread.median == 0.5
        assert found.met is False

    def test_a_target_is_met_by_its_median(self):
        assert (
            targets.outcome(
                THROUGHPUT, [unit(0, 90, 100), unit(1, 101, 100), unit(2, 102, 100)]
            ).met
            is True
        )

    def test_without_samples_nothing_is_said(self):
        assert targets.outcome(THROUGHPUT, [unit(0, 1, 1, payload=1000)]) == targets.Outcome(
            THROUGHPUT, None, None
        )

    def test_a_failed_contender_is_no_sample(self):
        assert targets.outcome(THROUGHPUT, [unit(0, 100, {"error": "x"})]).spread is None

    def test_plans_that_differ_in_anything_are_not_compared_with_each_other(self):
        units = [unit(0, 100, {"error": "x"}, cores=2), unit(0, 7, 100, cores=4)]
        assert targets.outcome(THROUGHPUT, units).spread.median == 0.07

    def test_a_difference_and_an_upper_limit(self):
        target = replace(THROUGHPUT, difference=True, at_most=True, limit=1.5)
        assert targets.outcome(target, [unit(0, 11, 10)]).met is True
        assert targets.outcome(target, [unit(0, 12, 10)]).met is False

    def test_a_ratio_of_times_is_the_inverse_ratio_of_rates(self):
        target = replace(THROUGHPUT, inverse=True, at_most=True, limit=0.5)
        found = targets.outcome(target, [unit(0, 300, 100)])
        assert found.spread.median == pytest.approx(1 / 3)
        assert found.met is True

    def test_a_figure_alone(self):
        target = replace(THROUGHPUT, other=None, at_most=True, limit=20)
        assert (
            targets.outcome(target, [unit(0, 21, 0), unit(1, 19, 0), unit(2, 18, 0)]).spread.median
            == 19
        )

    def test_every_target_of_the_list_names_a_contender_and_parameters_of_a_plan(self):
        from benchmarks.__main__ import MEASUREMENTS

        for target in TARGETS:
            plans = [
                plan
                for plan in MEASUREMENTS[target.measurement].plans(False)
                if all(plan.parameters().get(name) == value for name, value in target.where.items())
            ]
            assert plans, target.text
            names = {target.ours, target.other} - {None}
            assert all(names <= set(plan.contenders) for plan in plans), target.text


class TestMissed:
    def test_those_that_are_missed_are_told_with_a_reason_and_the_others_are_not(self):
        plan = {"compression": "none", "tuned": True}
        (line,) = missed.lines([unit(0, 1, 2, **plan)])
        assert "ours / Spark's own sink, 100 B" in line
        assert "isn't known" not in line
        assert list(missed.lines([unit(0, 2, 1, **plan)])) == ["None of those that were measured."]
        assert list(missed.lines([])) == []

    def test_every_reason_belongs_to_a_target(self):
        for beginning in missed.REASONS:
            assert any(target.text.startswith(beginning) for target in TARGETS), beginning
        for target in TARGETS:
            assert target.text.startswith(tuple(missed.REASONS)), target.text


class TestResults:
    def results(self, folder, source="a"):
        return Results(folder, source=source)

    def test_results_of_other_code_are_moved_aside(self, tmp_path):
        first = self.results(tmp_path)
        first.add("throughput", {"payload": 1}, 0, ["ours"], {"ours": {"records_per_s": 1}}, 1)
        assert self.results(tmp_path).has("throughput", {"payload": 1}, 0)
        assert not self.results(tmp_path, "b").has("throughput", {"payload": 1}, 0)
        assert len(list(tmp_path.glob("results-a-*.json"))) == 1

    def test_another_clone_goes_on_from_what_is_published_of_this_code_and_machine(self, tmp_path):
        first = self.results(tmp_path / "first")
        first.add("throughput", {"payload": 1}, 0, ["ours"], {"ours": {"records_per_s": 1}}, 1)
        assert Results(tmp_path / "second", source="a", published=first.file).has(
            "throughput", {"payload": 1}, 0
        )
        assert not Results(tmp_path / "third", source="b", published=first.file).has(
            "throughput", {"payload": 1}, 0
        )
        first.data["machine"]["cores"] = 1_000
        first.save()
        assert not Results(tmp_path / "fourth", source="a", published=first.file).has(
            "throughput", {"payload": 1}, 0
        )

    def test_nothing_that_is_published_of_other_code_is_among_what_is_measured(self, tmp_path):
        first = self.results(tmp_path / "first")
        first.add("throughput", {"payload": 1}, 0, ["ours"], {"ours": {"records_per_s": 1}}, 1)
        assert Results(tmp_path / "second", source="b", published=first.file).units() == []

    def test_a_page_is_made_of_what_is_published_only_where_nothing_was_measured(self, tmp_path):
        first = self.results(tmp_path / "first", source="of another code")
        first.add("throughput", {"payload": 1}, 0, ["ours"], {"ours": {"records_per_s": 1}}, 1)
        shown = Results.to_show(tmp_path / "second", published=first.file)
        assert (shown.data, shown.file.exists()) == (first.data, False)
        own = self.results(tmp_path / "second")
        own.add("files", {}, 0, ["ours"], {"ours": {"rows_per_s": 1}}, 1)
        assert Results.to_show(tmp_path / "second", published=first.file).data == own.data

    def test_a_round_with_a_failure_is_still_missing(self, tmp_path):
        results = self.results(tmp_path)
        results.add(
            "files", {}, 0, ["ours"], {"ours": {"rows_per_s": 1}, "spark": {"error": "x"}}, 1
        )
        assert not results.has("files", {}, 0)
        results.add(
            "files", {}, 0, ["ours"], {"ours": {"rows_per_s": 1}, "spark": {"rows_per_s": 1}}, 1
        )
        assert results.has("files", {}, 0)

    def test_rounds_and_parameters_are_told_apart(self, tmp_path):
        results = self.results(tmp_path)
        results.add("files", {"rows": 1}, 0, ["ours"], {"ours": {"rows_per_s": 1}}, 1)
        assert not results.has("files", {"rows": 1}, 1)
        assert not results.has("files", {"rows": 2}, 0)


def test_each_contender_begins_a_round():
    plan = Plan(("a", "b", "c"), Load(), {})
    assert [plan.order(turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]
    assert all(sorted(plan.order(turn)) == ["a", "b", "c"] for turn in range(4))


class TestPage:
    def test_the_page_shows_medians_ratios_and_what_failed(self, tmp_path):
        results = Results(tmp_path, source="a")
        parameters = {**Load().parameters()}
        for turn, (ours, theirs) in enumerate(
            [(200_000, 100_000), (300_000, 100_000), (100_000, 100_000)]
        ):
            samples = {
                "ours": {
                    "records_per_s": ours,
                    "cpu_s_per_million": {"total": 4.0, "broker": 1.0},
                    "peak_mb": {"job": 900.0},
                },
                "spark": {
                    "records_per_s": theirs,
                    "cpu_s_per_million": {"total": 5.0, "broker": 1.0},
                    "peak_mb": {"job": 700.0},
                },
                "flink": {"error": "it did not start"},
            }
            results.add("throughput", parameters, turn, ["ours", "spark", "flink"], samples, 60)
        text = page.text_of(results, {})
        assert "| onceforall, exactly-once | 200,000 (100,000 to 300,000) |" in text
        assert (
            "| Spark's own Kafka sink, at-least-once | 100,000 (100,000 to 100,000) | 2.00 (1.00 "
            "to 3.00) |" in text
        )
        assert "| Flink's KafkaSink, exactly-once | failed |" in text
        assert re.search(
            r"\| throughput, ours / Spark's own sink, 100 B \| ≥ 1 \| \*\*2.00\*\* \|.*\| 3 \| "
            r"met \|",
            text,
        )
        assert (
            "| throughput, ours / Flink exactly-once, 100 B | ≥ 0.8 | - | - | - | not measured |"
            in text
        )
        assert "{{" not in text

    def test_pipelines_and_producers_alone_stand_in_one_table_and_short_batches_beside_the_others(
        self, tmp_path
    ):
        results = Results(tmp_path, source="a")

        def add(measurement, contenders, parameters):
            samples = {
                n: {"records_per_s": 7, "p50_ms": 7, "parts": {"batch": 7}, "kept_up": True}
                for n in contenders
            }
            results.add(
                measurement,
                {**Load(payload=100).parameters(), **parameters},
                0,
                contenders,
                samples,
                60,
            )

        at_2000 = {"trigger_s": 0.0, "rate": 2000, "share": 0}
        add("throughput", ["ours", "spark"], {})
        add("throughput", ["java-producer"], {"alone": True})
        add("latency", ["ours", "spark"], at_2000)
        add("latency", ["ours-short-batches"], {**at_2000, "short_batches": True})
        text = page.text_of(results, {})
        assert text.count("**100 bytes, compression none, consumers tuned**") == 1
        assert "| Spark's own Kafka sink, at-least-once | 7.00 | 1.00 " in text
        assert "| Kafka's own producer benchmark | 7.00 |" in text
        assert (
            "| onceforall, exactly-once, with what makes short batches shorter | default | "
            "2,000/s |" in text
        )
        assert "| onceforall, exactly-once, with what makes short batches shorter | 7.00 |" in text

    def test_what_it_costs_to_begin_a_round_is_said(self, tmp_path):
        results = Results(tmp_path, source="a")
        figures = [(80, 100), (100, 80), (80, 120), (120, 80), (80, 100)]
        for turn, (ours, theirs) in enumerate(figures):
            samples = {"ours": {"records_per_s": ours}, "spark": {"records_per_s": theirs}}
            results.add(
                "throughput", Load(payload=100).parameters(), turn, ["ours", "spark"], samples, 60
            )
        (line,) = page._first_place(results)
        assert "by 27% at 100 bytes (medians). Ours began 3 of 5 rounds." in line
        assert line in page.text_of(results, {})

    def test_one_round_says_nothing_about_who_begins(self, tmp_path):
        results = Results(tmp_path, source="a")
        results.add(
            "throughput", Load().parameters(), 0, ["ours"], {"ours": {"records_per_s": 1}}, 60
        )
        assert "each round begins with another one. \n" in page.text_of(results, {})

    def test_the_published_page_is_what_the_code_makes_of_the_published_results(self, tmp_path):
        results = Results.to_show(tmp_path)
        assert set(results.data) == {"source", "harness", "machine", "runs", "units"}
        images = ROOT / "docs" / "images" / "performance"
        pictures = {file.stem: f"images/performance/{file.name}" for file in images.iterdir()}
        assert page.text_of(results, pictures) == (ROOT / "docs" / "performance.md").read_text(
            encoding="utf-8"
        )
        drawn = charts.draw_all(results, tmp_path / "pictures")
        assert {name: file.name for name, file in drawn.items()} == {
            file.stem: file.name for file in images.iterdir()
        }

    def test_a_page_of_nothing_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="no results"):
            page.write_page(Results(tmp_path, source="a"))

    def test_an_unknown_mark_in_the_template_is_named(self, tmp_path, monkeypatch):
        template = tmp_path / "t.md"
        template.write_text("{{nonsense}}")
        monkeypatch.setattr(page, "TEMPLATE", template)
        with pytest.raises(ValueError, match="nonsense"):
            page.text_of(Results(tmp_path, source="a"), {})

    def test_profiles_are_shown_by_step_and_by_thread(self, tmp_path, monkeypatch):
        def stage(jvm, **shares):
            return {
                "cpu_us": {"jvm": jvm, "broker": 0.5},
                "cpu_total_us": jvm + 0.5,
                "wall_us": 2.0,
                "threads": shares,
            }

        taken = {"at": "2026-01-02", "commit": "abc"}
        stages = {
            "noop": stage(1.25, broker=0.25),
            "ours": stage(3.5, **{"Python workers": 0.5, "broker": 0.125}),
        }
        into = {"noop": {"rows_per_s": 1000, "batch_s": 0.5, "cpu_s_per_million": {"job": 2.5}}}
        restarted = {
            "noop": {"all": 8.5, "batch": 2.0},
            "ours+daemon": {"all": 9.5, "batch": 3.5, "job": 2.5},
        }
        profiles = {"100 bytes": {**taken, "stages": stages}, "database": {**taken, "stages": into}}
        profiles["restart"] = {**taken, "stages": restarted}
        file = tmp_path / "profile.json"
        file.write_text(json.dumps(profiles))
        monkeypatch.setattr(profile_path, "PUBLISHED", file)
        text = page.text_of(Results(tmp_path / "results", source="a"), {})
        assert "| Spark's Kafka source into nothing | 1.25 | - | 0.50 | 1.75 | 2.00 |" in text
        assert "| onceforall, exactly-once | 50% | 12% |" in text
        assert "| the rows into nothing | 1,000 | 0.50 | 2.50 | - |" in text
        assert (
            "| onceforall, exactly-once, with `onceforall.worker_daemon` | 9.50 | - | 3.50 | - | "
            "- | - | 2.50 |" in text
        )

    def test_a_table_without_rows_is_nothing(self):
        assert list(page.table(["a"], [])) == []

    @pytest.mark.parametrize(
        ("value", "text"),
        [(1234567.8, "1,234,568"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23")],
    )
    def test_numbers_have_three_digits_or_so(self, value, text):
        assert page.number(value) == text
