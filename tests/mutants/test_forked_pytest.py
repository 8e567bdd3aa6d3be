"""The process that starts pytest for each bug: a run is as one of a fresh ``python -m pytest``."""

import os

import psutil
import pytest

from mutants.forked_pytest import Forker, forker
from support.waiting import until

LIMIT_S = 60


def is_over(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def run(tmp_path):
    def start(text, name="test_one.py", **environment):
        folder = tmp_path / name.removesuffix(".py")
        folder.mkdir()
        (folder / name).write_text(text)
        arguments = ["-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", name]
        output = folder / "output.txt"
        given = {"PATH": os.environ["PATH"], **environment}
        return forker().start(arguments, folder, given, output), output

    return start


@pytest.mark.parametrize(
    ("body", "code"),
    [("pass", 0), ("assert False", 1), ("os.kill(os.getpid(), 9)", -9), ("os._exit(7)", 7)],
)
def test_a_run_ends_with_the_code_of_its_pytest(run, body, code):
    started, output = run(f"import os\n\ndef test_it():\n    {body}\n")
    assert started.wait(LIMIT_S) == code, output.read_text()


def test_environment_folder_and_path_are_the_runs_own(run, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text("HERE = __file__\n")
    started, output = run(
        "import os, sys, threading\n"
        "import sitecustomize\n"
        "def test_it():\n"
        f"    assert sitecustomize.HERE == {str(tmp_path / 'first' / 'sitecustomize.py')!r}\n"
        "    assert sys.path[0] == os.getcwd()\n"
        "    assert sorted(set(os.environ) - {'LC_CTYPE'}) == ['ONLY', 'PATH', 'PYTEST_CURRENT_TEST', 'PYTEST_VERSION', 'PYTHONPATH']\n"
        "    assert not [name for name in sys.modules if name.startswith('onceforall')]\n"
        "    assert threading.active_count() == 1\n"
        "    assert os.getpgid(0) == os.getpid()\n",
        ONLY="here",
        PYTHONPATH=str(tmp_path / "first"),
    )  # fmt: skip
    assert started.wait(LIMIT_S) == 0, output.read_text()


def test_runs_go_on_side_by_side(run, tmp_path):
    waits = (
        "import time\nfrom pathlib import Path\n"
        "def test_it():\n"
        "    mine, other = Path({mine!r}), Path({other!r})\n"
        "    mine.touch()\n"
        "    while not other.exists():\n"
        "        time.sleep(0.01)\n"
    )
    one, two = str(tmp_path / "a"), str(tmp_path / "b")
    both = [
        run(waits.format(mine=one, other=two), "test_a.py")[0],
        run(waits.format(mine=two, other=one), "test_b.py")[0],
    ]
    assert [each.wait(LIMIT_S) for each in both] == [0, 0]


def test_what_takes_too_long_is_killed_with_all_that_it_started(run, tmp_path):
    child = tmp_path / "child"
    started, _ = run(
        "import subprocess, time\nfrom pathlib import Path\n"
        "def test_it():\n"
        "    process = subprocess.Popen(['sleep', '600'])\n"
        f"    Path({str(child)!r}).write_text(str(process.pid))\n"
        "    time.sleep(600)\n"
    )
    until(lambda: child.exists() and child.read_text(), LIMIT_S, "the test's own child")
    assert started.wait(0) is None
    assert not psutil.pid_exists(started.started.result())
    pid = int(child.read_text())
    until(lambda: is_over(pid), LIMIT_S, "the end of the test's own child")


def test_where_the_process_has_ended_a_run_says_so(tmp_path):
    own = Forker()
    (tmp_path / "test_one.py").write_text("import time\n\ndef test_it():\n    time.sleep(600)\n")
    arguments = ["-c", os.devnull, "--rootdir", str(tmp_path), "test_one.py"]
    run = own.start(arguments, tmp_path, {"PATH": os.environ["PATH"]}, tmp_path / "output.txt")
    pid = run.started.result(LIMIT_S)
    own.close()
    try:
        with pytest.raises(RuntimeError, match="has ended"):
            run.wait(LIMIT_S)
        with pytest.raises(RuntimeError, match="has ended"):
            own.start(arguments, tmp_path, {}, tmp_path / "output.txt")
    finally:
        os.killpg(pid, 9)
