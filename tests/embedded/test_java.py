from __future__ import annotations

import pytest

from onceforall.embedded.java import find_java, java_version
from onceforall.errors import EmbeddedServerError


@pytest.fixture
def fake_java(tmp_path):
    def make(version_line, status=0, name="fake"):
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho '{version_line}' >&2\nexit {status}\n")
        java.chmod(0o755)
        return java

    return make


def test_the_java_of_this_machine_is_new_enough():
    assert java_version(find_java()) >= 17


def test_a_missing_java_is_named_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match=r"No Java was found.*Install a Java runtime 17"):
        find_java()


def test_java_home_comes_before_the_path(fake_java, monkeypatch):
    by_home, by_path = (
        fake_java('openjdk version "21.0.1"', name="home"),
        fake_java('openjdk version "17.0.1"', name="path"),
    )
    monkeypatch.setenv("PATH", f"{by_path.parent}:/bin:/usr/bin")
    monkeypatch.setenv("JAVA_HOME", str(by_home.parent.parent))
    assert find_java() == by_home
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == by_path


def test_a_java_home_without_java_is_an_error_and_not_a_switch_to_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match=f"JAVA_HOME is {tmp_path}"):
        find_java()


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "11"),
        ('java version "1.8.0_392"', "8"),
        ('openjdk version "16" 2021', "16"),
    ],
)
def test_an_old_java_is_named_with_its_release(fake_java, monkeypatch, line, release):
    java = fake_java(line)
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    with pytest.raises(EmbeddedServerError, match=f"{java} is Java {release}, and Kafka needs 17"):
        find_java()


def test_a_java_that_fails_is_shown_with_what_it_said(fake_java, monkeypatch):
    java = fake_java("cannot open shared object file", status=127)
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    with pytest.raises(EmbeddedServerError, match=r"ended with 127.*cannot open shared object"):
        find_java()
