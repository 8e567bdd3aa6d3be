from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

import onceforall.cli
from onceforall._version import __version__
from onceforall.cli import main
from onceforall.commit_log.stores.probing import Check, Verdict
from onceforall.embedded.network import broker_answers, can_listen
from onceforall.operate import stores


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"onceforall {__version__}\n"


@pytest.mark.parametrize("argv", [[], ["kafka"], ["kafka", "start", "--port", "many"], ["unknown"]])
def test_arguments_that_are_no_command_end_with_2(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: onceforall" in capsys.readouterr().err


def test_an_error_is_one_message_on_stderr_and_no_traceback(capsys):
    assert main(["kafka", "start", "--set", "no-equals-sign"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (
        captured.err
        == "onceforall: --set no-equals-sign is no setting. Write it as --set key=value.\n"
    )


@pytest.mark.parametrize("setting", ["hunter2", "=hunter2", " =hunter2"])
@pytest.mark.parametrize("command", [["files", "check"], ["files", "mend"], ["store", "check"]])
def test_a_setting_without_a_name_or_value_is_refused_and_not_shown(
    command, setting, tmp_path, capsys
):
    assert main([*command, str(tmp_path), "--set", setting]) == 2
    said = capsys.readouterr().err
    assert said == "onceforall: --set needs NAME=VALUE, such as region=eu-central-1.\n"


def test_ctrl_c_in_a_command_ends_with_130(monkeypatch):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("onceforall.cli.kafka._jars", interrupt)
    assert main(["kafka", "jars"]) == 130


def test_the_connector_jars_are_printed_as_spark_reads_them(capsys):
    assert main(["kafka", "jars"]) == 0
    jars = capsys.readouterr().out.strip().split(",")
    assert len(jars) == 4
    assert all(jar.endswith(".jar") for jar in jars)


# A shell starts what runs in its background with interrupts ignored; so the tests' children would be
# deaf, too.
_HEARING = """
import signal, sys, onceforall.cli
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(onceforall.cli.main())
"""


def test_what_nobody_reads_any_more_is_no_error_of_the_command():
    process = subprocess.Popen(
        [sys.executable, "-c", _HEARING, "errors"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (128 + signal.SIGPIPE, b"")


def test_a_command_without_an_output_does_its_work(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["errors"]) == 0


@pytest.mark.parametrize(
    "command", [["store", "check"], ["checkpoint", "mend"], ["files", "check"]], ids=" ".join
)
def test_ctrl_c_ends_a_command_though_its_store_gives_no_answer(command):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"endpoint=http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-c", _HEARING, *command, "s3a://bucket/folder", "--set", endpoint],
            env={
                **os.environ,
                "AWS_ACCESS_KEY_ID": "a",
                "AWS_SECRET_ACCESS_KEY": "b",
                "AWS_REGION": "us",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            silent.settimeout(60)
            asked, _ = silent.accept()
            with asked:
                process.send_signal(signal.SIGINT)
                _, said = process.communicate(timeout=20)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 130
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("java_home", "master", "words"),
    [
        ("/there/is/no/java", "local[1]", "JAVA_GATEWAY_EXITED"),
        pytest.param(None, "local[0]", "0 threads", marks=pytest.mark.long),
    ],
)
def test_a_cluster_on_which_no_session_can_be_started_is_an_error_and_no_finding(
    java_home, master, words
):
    done = subprocess.run(
        [sys.executable, "-c", _HEARING, "cluster", "check", "--master", master],
        env=os.environ if java_home is None else {**os.environ, "JAVA_HOME": java_home},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (2, "")
    assert said.startswith("onceforall: No Spark session could be started: ")
    assert words in said
    assert "--master" in said
    assert "Traceback" not in done.stderr


@pytest.mark.kafka
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_the_broker_runs_until_it_is_told_to_end(end, tmp_path):
    command = [
        sys.executable,
        "-c",
        _HEARING,
        "kafka",
        "start",
        "--port",
        "0",
    ]
    command += ["--data-dir", str(tmp_path / "data"), "--set", "num.partitions=3"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        host, _, port = process.stdout.readline().strip().partition(":")
        assert host == "127.0.0.1"
        assert broker_answers(int(port))
        (broker,) = psutil.Process(process.pid).children()
        process.send_signal(end)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output, errors) == (0, "", "")
    assert not broker.is_running()
    assert can_listen(int(port))
    assert "num.partitions=3" in (tmp_path / "data" / "server.properties").read_text()


@pytest.mark.kafka
def test_a_broker_that_dies_is_an_error_of_the_command():
    command = [sys.executable, "-m", "onceforall.cli", "kafka", "start", "--port", "0"]
    command[1:3] = ["-c", "import sys, onceforall.cli; sys.exit(onceforall.cli.main())"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
        (broker,) = psutil.Process(process.pid).children()
        broker.kill()
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 2
    assert errors.startswith("onceforall: The broker ended by itself with status -9.")


def test_every_group_of_commands_is_registered_by_its_module_name():
    assert all(name.startswith("onceforall.cli.") for name in onceforall.cli._COMMAND_GROUPS)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_store_that_keeps_no_promise_is_told_by_the_exit_code(
    monkeypatch, tmp_path, capsys, kept, arguments
):
    found = Check("memory", (Verdict("exclusive", kept, "so it is"),), {})
    monkeypatch.setattr(stores, "check_store", lambda *_, **__: found)
    assert main(["store", "check", *arguments, str(tmp_path)]) == (0 if kept else 1)
    assert "so it is" in capsys.readouterr().out
