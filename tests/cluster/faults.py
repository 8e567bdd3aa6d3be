"""What happens to a cluster and to the jobs on it: each fault strikes, and heals by itself after a
while."""

import contextlib
import signal

import psutil

from onceforall.demo.ads.jobs import JOBS
from onceforall.demo.driver import is_java

_SHORT_S = (1.0, 5.0)
# Longer than Spark waits for a lost executor (`ads.SETTINGS`): its tasks run elsewhere when it
# is back.
_LONG_S = (28.0, 40.0)


class Faults:
    """Strikes a run (`ads.AdsOnCluster`), one kind after another in random order."""

    def __init__(self, run):
        self._run = run
        self._cluster = run.spark
        self._rng = None
        self._left = []
        self._healing = []
        self.kinds = {
            "executor killed": self._kill_executor,
            "all executors of a machine killed": self._kill_executors,
            "executor frozen": self._freeze_executor,
            "Python workers killed": self._kill_workers,
            "Python workers frozen, their executor killed": self._orphan_workers,
            "worker and its executors killed": self._kill_worker,
            "worker frozen with its executors": self._freeze_worker,
            "worker alone killed": self._kill_worker_alone,
            "worker decommissioned": self._decommission,
            "machine cut off from the broker": lambda: self._shut("broker"),
            "machine cut off from the database": lambda: self._shut("database"),
            "machine cut off from the store": lambda: self._shut("store"),
            "machine cut off from the driver": lambda: self._cut(()),
            "machine cut off from everything": lambda: self._cut(("broker", "database", "store")),
            "machine's connections reset": self._reset,
            "shuffle files removed": self._remove_shuffle,
            "master killed": self._kill_master,
            "driver killed": self._kill_driver,
            "Python driver killed, its JVM not": self._kill_python_driver,
            "driver frozen behind its successor": self._freeze_driver,
            "broker killed": self._kill_broker,
            "PostgreSQL killed": self._kill_postgres,
        }

    def strike(self, rng, only=None):
        """Strike once; return the names of what was done, none where there was nothing to strike.

        Every kind comes before one comes again.
        """
        self._rng = rng
        if not self._left:
            self._left = [kind for kind in self.kinds if only is None or kind in only]
            rng.shuffle(self._left)
        kind = self._left.pop()
        done = self.kinds[kind]()
        return [] if done is False else [kind]

    def heal(self):
        """Heal whatever hasn't healed."""
        for machine in self._cluster.machines:
            machine.plug_in()
            for door in machine.doors.values():
                door.open()
            self._start_worker_again(machine)

    # --- executors --------------------------------------------------------------------------------

    def _kill_executor(self):
        return _killed(self._some(self._cluster.executors()))

    def _kill_executors(self):
        return _killed(self._cluster.executors(self._machine()))

    def _freeze_executor(self):
        """With its Python workers: the whole goes on where it stood, perhaps as a zombie."""
        executors = self._some(self._cluster.executors())
        tree = [each for executor in executors for each in _tree(executor)]
        return self._frozen(tree)

    def _kill_workers(self):
        workers = self._cluster.python_workers()
        return (
            _killed(self._rng.sample(workers, self._rng.randint(1, len(workers))))
            if workers
            else False
        )

    def _orphan_workers(self):
        """Python workers that sleep, and wake when their executor is dead and the task runs
        elsewhere."""
        workers = self._cluster.python_workers(self._machine())
        if not workers:
            return False
        frozen = [worker for worker in workers if _signalled(worker, signal.SIGSTOP)]
        for worker in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                executor = worker.parent().parent()
                executor.kill()
        self._pass(_SHORT_S)
        for worker in frozen:
            _signalled(worker, signal.SIGCONT)
        return bool(frozen)

    def _remove_shuffle(self):
        """What a lost disk does: the stage that reads it fails, and its input is made again."""
        files = self._cluster.shuffle_files(self._machine())
        for file in files:
            file.unlink(missing_ok=True)
        return bool(files)

    # --- machines ---------------------------------------------------------------------------------

    def _kill_worker(self):
        machine = self._machine()
        self._cluster.kill_worker(machine)
        self._pass(_SHORT_S)
        self._start_worker_again(machine)

    def _kill_worker_alone(self):
        """Its executors notice, and end."""
        machine = self._machine()
        executors = self._cluster.executors(machine)
        self._cluster.worker(machine).kill()
        self._pass(_SHORT_S)
        _killed(executors)
        self._start_worker_again(machine)

    def _freeze_worker(self):
        machine = self._machine()
        return self._frozen(_tree(self._cluster.worker(machine)))

    def _decommission(self):
        machine = self._machine()
        self._cluster.decommission(machine)
        self._pass(_LONG_S)
        self._cluster.kill_worker(machine)
        self._start_worker_again(machine)

    def _shut(self, service):
        door = self._machine().doors[service]
        door.shut()
        self._pass(self._some_time())
        door.open()

    def _cut(self, services):
        machine = self._machine()
        machine.pull_cable()
        for service in services:
            machine.doors[service].shut()
        self._pass(self._some_time())
        machine.plug_in()
        for service in services:
            machine.doors[service].open()
        self._start_worker_again(machine)

    def _reset(self):
        for door in self._machine().doors.values():
            door.reset()

    def _start_worker_again(self, machine):
        if not self._cluster.lives(machine):
            self._cluster.start_worker(machine)

    def _kill_master(self):
        self._cluster.kill_master()
        self._pass(_SHORT_S)
        self._cluster.start_master()

    # --- drivers ----------------------------------------------------------------------------------

    def _kill_driver(self):
        job = self._rng.choice(JOBS)
        if not self._run.job(job).kill():
            return False
        self._run.start_job(job)
        return True

    def _kill_python_driver(self):
        """Its JVM and its tasks go on until they notice."""
        job = self._rng.choice(JOBS)
        process = self._run.job(job)
        tree = [each for each in _tree_of(process.pid) if is_java(each)]
        if not _signalled(psutil.Process(process.pid), signal.SIGKILL):
            return False
        process.wait(60)
        self._run.start_job(job)
        self._pass(_SHORT_S)
        _killed(tree)
        return True

    def _freeze_driver(self):
        """It wakes when another one runs the job, and must do no harm."""
        job = self._rng.choice(JOBS)
        zombie = self._run.job(job)
        tree = _tree_of(zombie.pid)
        if not [each for each in tree if _signalled(each, signal.SIGSTOP)]:
            return False
        try:
            self._run.start_job(job)
            with contextlib.suppress(AssertionError):
                self._run.until_batches(job, 1, within_s=120)
            for each in tree:
                _signalled(each, signal.SIGCONT)
            self._pass(_LONG_S)
        finally:
            # Its JVM, too, when the campaign is ended meanwhile.
            for each in tree:
                _signalled(each, signal.SIGKILL)
            zombie.kill()
        return True

    # --- servers ----------------------------------------------------------------------------------

    def _kill_broker(self):
        self._run.kafka.kill()
        self._pass(_SHORT_S)
        self._run.kafka.restart()

    def _kill_postgres(self):
        self._run.postgres.kill()
        self._pass(_SHORT_S)
        self._run.postgres.restart()

    # --- parts ------------------------------------------------------------------------------------

    def _machine(self):
        return self._rng.choice(self._cluster.machines)

    def _some(self, processes):
        return [self._rng.choice(processes)] if processes else []

    def _some_time(self):
        return _LONG_S if self._rng.random() < 0.5 else _SHORT_S

    def _pass(self, between):
        self._run.pass_time(self._rng.uniform(*between))

    def _frozen(self, processes):
        frozen = [each for each in processes if _signalled(each, signal.SIGSTOP)]
        self._pass(self._some_time())
        for each in frozen:
            _signalled(each, signal.SIGCONT)
        return bool(frozen)


def _killed(processes):
    return bool([each for each in processes if _signalled(each, signal.SIGKILL)])


def _signalled(process, number):
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.status() != psutil.STATUS_ZOMBIE:
            process.send_signal(number)
            return True
    return False


def _tree(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def _tree_of(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return _tree(psutil.Process(pid))
    return []
