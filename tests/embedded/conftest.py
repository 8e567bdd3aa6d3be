"""Fixtures of the tests of servers and jars."""

from __future__ import annotations

import shutil

import pytest

from onceforall.embedded.jars import jar_folder, jar_set

SMALL_SET = "spark-4.0"


@pytest.fixture(scope="session")
def small_jars():
    """The jars of the small set in the shared cache, taken before a test points the cache
    elsewhere."""
    return jar_set(SMALL_SET)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch, small_jars):
    """An empty folder in place of the shared cache."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("ONCEFORALL_CACHE", str(cache))
    return cache


@pytest.fixture
def repository(tmp_path, monkeypatch, small_jars):
    """A repository on disk that serves the small set, so that fetching needs no network; gives
    its folder of jars."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for jar in small_jars:
        shutil.copyfile(jar, folder / jar.name)
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="disk"/><resolvers><filesystem name="disk">'
        "<artifact "
        f'pattern="{folder}/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    monkeypatch.setenv("ONCEFORALL_IVY_SETTINGS", str(settings))
    return folder


@pytest.fixture
def filled_cache(empty_cache, small_jars):
    """A cache that holds a copy of the small set, laid by hand; gives the folder of the jars."""
    target = jar_folder(SMALL_SET)
    target.mkdir(parents=True)
    for jar in small_jars:
        shutil.copyfile(jar, target / jar.name)
    return target
