"""Runs the campaign in lanes beside one another: units of the matrix and scenarios in turn, then
scenarios for the rest of the time."""

import contextlib
import fcntl
import itertools
import queue
import random
import shutil
import threading
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from chaos import matrix
from chaos.arena import StuckError
from chaos.judging import Watch
from chaos.page import never_happened, write_page
from chaos.results import Results
from chaos.worlds import Servers
from onceforall.embedded import EmbeddedKafka, EmbeddedPostgres
from support import class_archive

LAST_START_S = 75
"""Nothing is begun so shortly before the end."""

SCENARIOS_SHARE = 0.4
"""Of the lanes' time, as long as the matrix isn't done: on a slow machine it takes all the time
that there is, and each kind of fault has its turn."""


ENOUGH_RUNS = 20
"""A kind of fault that has not happened in so many runs of its scenario never will: there is
something wrong with the scenario."""


class AlreadyRunningError(Exception):
    """Another campaign works in this folder."""


class Campaign:
    """Lanes take units of the matrix and scenarios until all is done or the time is over."""

    def __init__(
        self,
        folder,
        minutes,
        *,
        lanes=2,
        seed=None,
        cells=None,
        scenarios=None,
        scenario_s=90,
        rounds=None,
        results=None,
        mounts=True,
    ):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")
        # Two campaigns in one folder would take each other's worlds and results away.
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise AlreadyRunningError(
                f"Another campaign runs in {folder} and holds {folder / 'lock'}: wait for it, or "
                "give this one a --folder of its own."
            ) from None
        self.work = folder / "work"
        if self.work.exists():
            shutil.rmtree(self.work / "archive", ignore_errors=True)
            with contextlib.suppress(OSError):
                self.work.rmdir()
        if self.work.exists():
            self.work.rename(folder / f"work-{int(time.time())}")
        self.work.mkdir(parents=True)
        self.results = results or Results(folder)
        self.until = time.monotonic() + 60 * minutes
        self.minutes = minutes
        self.seed = random.randrange(2**32) if seed is None else seed
        self.lanes = lanes
        self.scenario_s = scenario_s
        self._mounts = mounts
        self._wanted = wanted = [
            cell
            for cell in (matrix.all_cells() if cells is None else cells)
            if not self.results.is_covered(cell.id)
        ]
        self.units = queue.SimpleQueue()
        for unit in matrix.units(wanted):
            self.units.put(unit)
        self.scenarios = scenarios or {}
        self._turns = itertools.islice(
            self._endless_scenarios(), None if rounds is None else rounds * len(self.scenarios)
        )
        self._turn_lock = threading.Lock()
        self._say_lock = threading.Lock()
        self._server_lock = threading.Lock()
        self._done = 0
        self._lanes_with_servers = 0

    def run(self):
        """Run to the end, once; return whether no violation and no stuck query was found, and
        every cell that was tried was reached, and of scenarios with many runs each kind of fault
        happened. Cells that nobody had the time to try are said, as
        in the page; the next run goes on with them."""
        with self._lock:
            return self._run()

    def _run(self):
        had_to_do = bool(self.scenarios) or not self.units.empty()
        self.results.begin_run(self.minutes)
        archive = self.work / "archive"
        archive.mkdir()
        class_archive.make(archive)
        self.say(
            f"{self.units.qsize()} units of the matrix to do, scenarios: "
            f"{', '.join(self.scenarios) or 'none'}; seed {self.seed}"
        )
        threads = [
            threading.Thread(target=self._lane, args=(number,), name=f"lane {number}")
            for number in range(self.lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.results.save()
        write_page(self.results)
        data = self.results.data
        missed = [
            name for name, cell in data["cells"].items() if cell["runs"] and not cell["reached"]
        ]
        self.say(
            f"{data['kills']} kills, {data['records']} records, {data['violations']} violations, "
            f"{data['stuck']} stuck queries; "
            f"{self.results.file}"
        )
        if missed:
            self.say(f"{len(missed)} cells were not reached: {'; '.join(missed)}")
        never = [
            f"{name}: {kind}" for name, runs, kind in never_happened(data) if runs >= ENOUGH_RUNS
        ]
        if never:
            self.say(f"faults that never happened: {'; '.join(never)}")
        left = [cell.id for cell in self._wanted if cell.id not in data["cells"]]
        if left:
            self.say(f"{len(left)} of {len(self._wanted)} cells were not tried: {left[0]}, …")
        if had_to_do and not self._done:
            self.say("nothing was done: the time is too short")
        return (
            data["violations"] == 0
            and data["stuck"] == 0
            and not missed
            and not never
            and (self._done > 0 or not had_to_do)
        )

    def say(self, text):
        with self._say_lock:
            left = max(0, self.until - time.monotonic())
            data = self.results.data
            print(
                f"[{left / 60:5.1f} min left, {data['kills']} kills, {data['violations']} "
                f"violations, {data['stuck']} stuck] {text}",
                flush=True,
            )

    def _lane(self, lane):
        try:
            self._work(lane)
        except BaseException:
            self.results.fail(f"lane {lane}", traceback.format_exc()[-1500:])
            raise

    def _work(self, lane):
        spent = Counter()
        with ExitStack() as stack:
            servers = None
            while (began := time.monotonic()) < self.until - LAST_START_S:
                scenarios_first = spent["scenarios"] < SCENARIOS_SHARE * spent.total()
                scenario = self._next_scenario() if scenarios_first else None
                unit = None if scenario else self._next_unit()
                if unit:
                    servers = servers or stack.enter_context(self._servers())
                    self._unit(unit, servers)
                elif scenario := scenario or self._next_scenario():
                    self._scenario(*scenario)
                else:
                    return
                spent["matrix" if unit else "scenarios"] += time.monotonic() - began
                if self.units.empty():
                    stack.close()

    def _next_unit(self):
        """Return a unit of the matrix that no lane has; None: there is none."""
        try:
            return self.units.get_nowait()
        except queue.Empty:
            return None

    def _next_scenario(self):
        """Return (name, label, seed) of the next scenario; None: there is none."""
        with self._turn_lock:
            number, name = next(self._turns, (0, None)) if self.scenarios else (0, None)
        return name and (name, f"{number:04d}-{name}", self.seed + number)

    @contextlib.contextmanager
    def _servers(self):
        """The servers of the matrix, which nothing is done to: one of each for all lanes."""
        with self._server_lock:
            if self._lanes_with_servers == 0:
                with ExitStack() as stack:
                    kafka = stack.enter_context(EmbeddedKafka())
                    postgres = stack.enter_context(
                        EmbeddedPostgres(settings={"max_prepared_transactions": 60})
                    )
                    self._shared = Servers(kafka, postgres)
                    self._stop_servers = stack.pop_all()
            self._lanes_with_servers += 1
        try:
            yield self._shared
        finally:
            with self._server_lock:
                self._lanes_with_servers -= 1
                if self._lanes_with_servers == 0:
                    self._stop_servers.close()

    def _unit(self, unit, servers):
        began = time.monotonic()
        try:
            results, verdict, world = matrix.run(unit, self.work, servers, Watch, self.say)
        except Exception:
            self.results.fail(unit.id, traceback.format_exc()[-1500:])
            self.say(f"{unit.id}: NO JUDGEMENT: {traceback.format_exc()}")
            return
        self.results.add_unit(unit, results, verdict, world)
        self._tell(unit.id, unit.id, verdict, began)

    def _endless_scenarios(self):
        number, tried = 0, set()
        rng = random.Random(self.seed)
        while True:
            names = [name for name in self.scenarios for _ in range(self.scenarios[name].weight)]
            rng.shuffle(names)
            # What has not run yet comes first.
            names.sort(
                key=lambda name: (
                    name in tried or self.results.data["scenarios"].get(name, {}).get("runs", 0) > 0
                )
            )
            for name in names:
                number += 1
                tried.add(name)
                yield number, name

    def _scenario(self, name, label, seed):
        from chaos.arena import Arena

        began = time.monotonic()
        seconds = min(self.scenario_s, self.until - began)
        arena = Arena(self.work / label, seed, seconds, self.say, mounts=self._mounts)
        self.say(f"{label} (seed {seed}) begins")
        try:
            with arena:
                self.scenarios[name].run(arena)
            verdict = arena.verdict()
        except StuckError as stuck:
            self._done += 1
            self.results.stuck(f"{label}, seed {seed}", str(stuck), arena.violations())
            self.say(f"{label} (seed {seed}): STUCK: {stuck} {arena.violations()}")
            return
        except Exception:
            self.results.fail(f"{label}, seed {seed}", traceback.format_exc()[-1500:])
            self.say(f"{label}: NO JUDGEMENT: {traceback.format_exc()}")
            return
        self.results.add_scenario(name, arena.faults(), verdict, arena.worlds, arena.recoveries)
        self._tell(f"{label} (seed {seed})", label, verdict, began)

    def _tell(self, what, folder, verdict, began):
        self._done += 1
        found = "; ".join(verdict.violations) or "no violation"
        self.say(f"{what}: {verdict.records} records, {found} ({time.monotonic() - began:.0f} s)")
        if not verdict.violations:
            shutil.rmtree(self.work / folder, ignore_errors=True)
