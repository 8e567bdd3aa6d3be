"""Starting a program calls vfork(), which runs no fork handlers of other libraries.

gRPC's, in a program that has used Spark Connect, end a forked child now and then before it becomes
the program: of 1,500 runs of ``/bin/true`` under another user 8 ended by a signal.
"""

import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import onceforall

HANDLED = """
import ctypes, os, sys
forks = 0
@ctypes.CFUNCTYPE(None)
def count():
    global forks
    forks += 1
# What pthread_atfork() is a macro of.
ctypes.CDLL(None).__register_atfork(count, None, None, None)
"""

CONTROL = """
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
print(forks)
"""

INITDB = """
from pathlib import Path
from onceforall.embedded.postgres_binaries import find_binaries, unprivileged_account
from onceforall.embedded.postgres_files import initialise
initialise(find_binaries(), Path(sys.argv[1]), "secret", unprivileged_account())
print(forks)
"""

SERVER = """
from pathlib import Path
from onceforall.embedded.postgres_binaries import unprivileged_account
from onceforall.embedded.process import GuardedProcess
account = unprivileged_account()
with open(os.devnull, "ab") as log:
    process = GuardedProcess(
        [sys.executable, "-c", ""], directory=Path("/"), log=log, user=account and account.ids
    )
assert process.wait(60)
print(forks)
"""


@pytest.fixture
def postgres_folder():
    """A folder that the server's user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's fork handlers")
@pytest.mark.parametrize(
    ("program", "forks"),
    [
        pytest.param(CONTROL, 1, id="control"),
        pytest.param(INITDB, 0, id="initdb"),
        pytest.param(SERVER, 0, id="server"),
    ],
)
def test_no_fork_handler_runs(program, forks, postgres_folder):
    done = subprocess.run(
        [sys.executable, "-c", HANDLED + program, str(postgres_folder / "data")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == (f"{forks}\n", 0), done.stderr


FORKING = {"preexec_fn", "user", "group", "extra_groups"}
STARTING = {"run", "Popen", "call", "check_call", "check_output"}


def test_no_program_is_started_with_what_makes_it_a_fork():
    started = 0
    for path in Path(onceforall.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("subprocess"), attr=name)) if (
                    name in STARTING
                ):
                    started += 1
                    given = {keyword.arg for keyword in node.keywords}
                    assert not given & FORKING, f"{path}:{node.lineno}"
                    # Options in a dictionary can't be seen here.
                    assert None not in given, f"{path}:{node.lineno}"
    assert started > 5
