"""Faults of tasks: executors that are killed, speculative copies, and attempts that fail and are
tried again."""

import contextlib
from pathlib import Path

import psutil
import pyspark

from chaos.arena import DEADLINE_S
from chaos.nemeses_siege import Siege, is_stopped
from support.cluster import Cluster
from support.waiting import Story, until

SPECULATION = {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    # Spark kills the Python worker of a losing attempt that doesn't end; it is to wake first.
    "spark.python.task.killTimeout": "60s",
}
FREEZE_AT = "task.invoke.after"
FAIL_AT = (
    "task.begin.after",
    "task.invoke.after",
    "task.pre_commit.before",
    "task.pre_commit.after",
    "kafka.flush.after",
    "file.pre_commit.file_synced",
    "postgres.task.copied",
    "postgres.task.staged",
)
SPARK_HOME = str(Path(pyspark.__file__).parent)


def executors(arena):
    """SIGKILL to executor JVMs and their Python workers; Spark starts others and tries the tasks
    again.

    What a lost executor had prepared is aborted, or it is what the batch commits: its tasks had
    handed it over. A run may end when a task
    has failed four times.
    """
    world = arena.world(
        "all",
        arena.servers(),
        rows_per_batch=5000,
        master="local-cluster[2,1,900]",
        # Spark starts executors in a process of their own, from where it is installed.
        environment={"SPARK_HOME": SPARK_HOME, "SPARK_SCALA_VERSION": "2.13"},
        spark={
            "spark.executor.memory": "600m",
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.task.maxFailures": "10",
        },
    )
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    while arena.goes_on:
        siege.a_moment()
        roll = arena.rng.random()
        if roll < 0.6:
            _kill_executors(siege)
        elif roll < 0.9:
            siege.kill_workers(2)
        else:
            siege.kill_driver()
        siege.progress(arena.rng.randint(0, 1))
        siege.keep_running()
    siege.judge()


def _kill_executors(siege):
    found = _executors(siege.driver)
    for executor in siege.arena.rng.sample(
        found, min(len(found), siege.arena.rng.choice([1, 1, 2]))
    ):
        with contextlib.suppress(psutil.NoSuchProcess):
            if executor.status() != psutil.STATUS_ZOMBIE:
                executor.kill()
                siege.struck("executor JVM killed", "executor")


def _executors(driver):
    jvm = driver._jvm()
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(jvm).children(recursive=True) if jvm else []:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if any("CoarseGrainedExecutorBackend" in part for part in process.cmdline()):
                    found.append(process)
    return found


def speculation(arena):
    """Workers freeze in the middle of their tasks; copies of these on the other executor win, and
    the losers wake behind them.

    No run ends for that. What a losing attempt has prepared is aborted, and never committed.
    """
    rng = arena.rng
    spark = arena.enter(Cluster(arena.folder / "cluster"))
    world = arena.world(
        "all", arena.servers(), rows_per_batch=2000, master=spark.url, spark=SPECULATION
    )
    siege = Siege(arena, world, arena.watch(world))
    siege.begin(2)
    while arena.goes_on:
        siege.end_driver()
        # Each of the three sinks is given the task's rows.
        siege.driver = driver = world.start(
            f"{FREEZE_AT}=freeze@{rng.randint(1, 6)}", **siege.config
        )
        frozen = _until_a_task_hangs(siege, spark)
        siege.progress()
        if not frozen or siege.driver is not driver or driver.errors():
            # The run ended: the batch was not a copy's.
            continue
        siege.struck("task attempt frozen until its copy had won")
        asleep = [worker for worker in frozen if is_stopped(worker.pid)]
        for worker in asleep:
            worker.resume()
        if asleep:
            siege.struck("losing attempt woken")
        siege.progress()
    siege.judge()


def _until_a_task_hangs(siege, spark):
    """Wait until the failpoint has frozen a worker, and return the workers that are; none when
    the driver's run ends before."""
    driver = siege.driver
    story = Story(lambda: f"a task hangs at {FREEZE_AT}\n{driver.errors()[-1:]}\n{driver.tail()}")

    def over():
        return driver.process.poll() is not None or driver.errors()

    until(lambda: driver.acted(FREEZE_AT) or over(), DEADLINE_S, story)
    if over():
        return []
    return until(
        lambda: [worker for worker in spark.python_workers() if is_stopped(worker.pid)], 30, story
    )


def failed_tasks(arena):
    """Attempts of tasks fail at some step, or their process is killed, and Spark tries them again:
    ``local[2,8]``.

    A run ends only when one task has failed eight times.
    """
    rng = arena.rng
    kind = rng.choice(["all", "all", "postgres-prepared"])
    world = arena.world(kind, arena.servers(), rows_per_batch=5000, master="local[2,8]")
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    while arena.goes_on:
        siege.end_driver()
        points = rng.sample([point for point in FAIL_AT if _is_reached(point, world)], 3)
        actions = [
            f"{point}={rng.choice(['raise', 'kill', 'error:EIO'])}@{rng.randint(1, 6)}"
            for point in points
        ]
        siege.driver = world.start(";".join(actions), **siege.config)
        until(lambda p=points: _acted(siege, p), DEADLINE_S, f"an attempt fails at {points}")
        for _ in range(6):
            if not arena.goes_on:
                break
            siege.progress()
            siege.a_moment()
            siege.kill_workers(1)
        siege.progress()
        for point, action in zip(points, actions, strict=True):
            if siege.driver.acted(point):
                arena.struck(f"task attempt failed at {point}")
                if "=kill" in action:
                    world.tally.kills["worker"] += 1
    siege.judge()


def _acted(siege, points):
    siege.keep_running()
    return any(siege.driver.acted(point) for point in points)


def _is_reached(point, world):
    """Whether a task of this world's sinks comes to a failpoint."""
    if point == "postgres.task.staged" and world.config["postgres"].get("mode") == "prepared":
        return False
    owner = {"kafka": "kafka", "file": "files", "postgres": "postgres"}.get(point.partition(".")[0])
    return owner is None or owner in world.sinks
