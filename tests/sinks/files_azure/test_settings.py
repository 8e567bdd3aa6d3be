"""URLs, settings and words of errors of the file sink on Azure; no server is needed."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace

import pytest

from onceforall import FileSink, read_files
from onceforall.errors import MissingExtraError, OptionError
from onceforall.sinks.files.paths import partition_of
from onceforall.sinks.files.places.azure import azure_target, is_azure
from onceforall.sinks.files.places.azure.container import AzureError, Container, _block
from onceforall.sinks.files.places.azure.giving_up import warn_of_hierarchy
from onceforall.sinks.files.places.objects.paths import ObjectPath

LONG = "abfss://lake@tests.dfs.core.windows.net/ads"
KEY = "dmVyeSBzZWNyZXQ="


@pytest.mark.parametrize(
    ("path", "storage", "endpoint", "hadoop"),
    [
        (LONG, None, "https://tests.blob.core.windows.net", LONG),
        (
            "abfs://lake@tests.dfs.core.chinacloudapi.cn/ads",
            None,
            "https://tests.blob.core.chinacloudapi.cn",
            "abfs://lake@tests.dfs.core.chinacloudapi.cn/ads",
        ),
        ("az://lake/ads", {"account_name": "tests"}, "https://tests.blob.core.windows.net", LONG),
        (
            "az://lake/ads/",
            {"account_name": "tests", "endpoint": "https://tests.blob.core.usgovcloudapi.net"},
            "https://tests.blob.core.usgovcloudapi.net",
            "abfss://lake@tests.dfs.core.usgovcloudapi.net/ads",
        ),
        (LONG, {"endpoint": "http://127.0.0.1:10000/tests"}, "http://127.0.0.1:10000/tests", LONG),
    ],
)
def test_a_url_says_which_account_is_asked(path, storage, endpoint, hadoop):
    target = azure_target(path, storage)
    assert target.settings == {"account_name": "tests", "endpoint": endpoint}
    assert target.hadoop_url(target.root) == hadoop
    assert is_azure(path)


def test_a_short_url_takes_the_account_of_the_environment(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "tests")
    assert azure_target("az://lake/ads", None).settings["account_name"] == "tests"


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("az://lake/ads", {}, "names no account"),
        ("az://lake", {"storage": {"account_name": "x"}}, "must name a container and a folder"),
        ("az://lake@host/ads", {}, "must name a container"),
        ("abfss://lake/ads", {}, "must name a container"),
        ("abfss://lake@tests.dfs.core.windows.net", {}, "must name a container"),
        ("abfss://lake@tests.dfs.core.windows.net/a/../b", {}, "must name a container"),
        ("abfss://lake@tests.dfs.core.windows.net/a./b", {}, "No name may end with a dot"),
        ("abfss://lake@tests.dfs.core.windows.net/a?sig=hush", {}, "has a . or a # in it"),
        ("abfss://user:hush@tests.dfs.core.windows.net/a", {}, "must name a container"),
        (f"{LONG}/" + "/".join(["x" * 100] * 5), {}, "up to 400"),
        (LONG, {"spark_metadata": "continue"}, "local folders only"),
        (LONG, {"storage": {"account_name": "other"}}, "another account"),
        (LONG, {"storage": {"endpoint": "127.0.0.1:10000"}}, "http:// or https://"),
        (LONG, {"storage": {"endpoint": "http://u:hush@host"}}, "'endpoint'"),
        (LONG, {"storage": {"endpoint": "http://host/tests?sig=hush"}}, "'endpoint'"),
        (LONG, {"storage": {"account_key": "hush!"}}, "'account_key'"),
        (LONG, {"storage": {"sas_token": "hush"}}, "'sas_token'"),
        (LONG, {"storage": {"sas_token": "sig=hush", "account_key": KEY}}, "one of them"),
        (LONG, {"storage": {"access_key_id": "hush"}}, "'access_key_id'"),
        (LONG, {"storage": {"account_name": 7}}, "'account_name'"),
        (LONG, {"storage": "http://host"}, "dictionary"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_without_their_values(path, options, words):
    with pytest.raises(OptionError, match=words) as caught:
        FileSink(path, **options)
    assert "hush" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_no_pickle_and_no_text_shows_a_secret():
    for secret in ({"account_key": KEY}, {"sas_token": "sv=1&sig=hush"}):
        sink = FileSink(LONG, storage=secret)
        assert sink.secrets() == secret
        (value,) = secret.values()
        for text in (pickle.dumps(sink), repr(sink).encode(), repr(vars(sink)).encode()):
            assert value.encode() not in text
        assert pickle.loads(pickle.dumps(sink)).secrets() == {}
        assert pickle.loads(pickle.dumps(sink)).restored(secret, {}).secrets() == secret


class Configuration:
    def __init__(self, **given):
        self._given = {name.replace("__", "."): value for name, value in given.items()}

    def get(self, name, default=None):
        return self._given.get(name, default)

    def getPassword(self, name):  # noqa: N802
        found = self._given.get(name)
        return None if found is None else list(found)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"fs.azure.account.key.tests.dfs.core.windows.net": "a2V5", "fs.azure.account.key": "eA=="}, "a2V5"),
        ({"fs.azure.account.key": "a2V5"}, "a2V5"),
        ({"fs.azure.account.key.other.dfs.core.windows.net": "a2V5"}, None),
    ],
)  # fmt: skip
def test_the_key_of_spark_is_taken_where_storage_has_no_credential(monkeypatch, given, found):
    monkeypatch.setattr("onceforall.spark.stores.hadoop_settings", lambda _: Configuration(**given))
    for path, storage in ((LONG, {}), ("az://lake/ads", {"account_name": "tests"})):
        bare = azure_target(path, storage).with_session(None)
        assert bare.secrets == ({} if found is None else {"account_key": found})
        with_token = azure_target(path, {**storage, "sas_token": "sig=x"}).with_session(None)
        assert with_token.secrets == {"sas_token": "sig=x"}


def test_another_kind_of_credential_in_sparks_settings_is_named(monkeypatch, caplog):
    monkeypatch.setattr(
        "onceforall.spark.stores.hadoop_settings",
        lambda _: Configuration(**{"fs.azure.account.auth.type": "OAuth"}),
    )
    assert azure_target(LONG, None).with_session(None).secrets == {}
    assert "OAuth" in caplog.text


@pytest.mark.parametrize("hierarchy", [True, False])
def test_a_start_warns_of_an_account_of_a_kind_that_was_never_tried(monkeypatch, caplog, hierarchy):
    container = azure_target(LONG, {"account_key": KEY}).container()
    told = SimpleNamespace(get_account_information=lambda: {"is_hns_enabled": hierarchy})
    monkeypatch.setattr(Container, "_client", told)
    warn_of_hierarchy(container)
    assert ("hierarchical namespace" in caplog.text) == hierarchy
    assert KEY not in caplog.text


def test_an_account_that_tells_nothing_about_its_kind_is_not_warned_of(monkeypatch, caplog):
    from azure.core.exceptions import HttpResponseError

    def refused():
        raise HttpResponseError("hush")

    container = azure_target(LONG, None).container()
    monkeypatch.setattr(Container, "_client", SimpleNamespace(get_account_information=refused))
    warn_of_hierarchy(container)
    assert caplog.text == ""


def test_a_missing_client_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "azure.storage.blob", None)
    with pytest.raises(MissingExtraError, match=r"onceforall\[azure\]"):
        read_files(LONG)


@pytest.mark.parametrize(
    ("code", "refused", "words"),
    [
        ("ContainerNotFound", True, "Create it"),
        ("AuthenticationFailed", True, "a new sas_token"),
        ("AuthorizationPermissionMismatch", True, "Storage Blob Data Contributor"),
        ("ClientAuthenticationError", True, "azure-identity"),
        ("501", True, "another one"),
        ("ServerBusy", False, "Wait"),
        ("ServiceRequestError", False, "Mend the network"),
        ("InternalError", False, "Mend the cause"),
    ],
)
def test_an_error_says_what_to_do_and_whether_asking_again_can_help(code, refused, words):
    error = AzureError("read", ObjectPath("az://lake", "k"), code)
    assert error.refused == refused
    assert str(error).startswith(f"cannot read az://lake/k (the answer was {code}). ")
    assert words in str(error)


@pytest.mark.parametrize(
    ("folder", "written"),
    [
        ("", ""),
        ("p=a", "p=a"),
        ("p=Inc./q=1", "p=Inc%2E/q=1"),
        ("p=..", "p=.%2E"),
        ("p=.a", "p=.a"),
    ],
)
def test_a_dot_at_the_end_of_a_folders_name_is_escaped_and_read_back(folder, written):
    """The service takes it away."""
    assert azure_target(LONG, None).spelled(folder) == written
    assert partition_of(written) == partition_of(folder)


@pytest.mark.parametrize("character", ["\x81", "\x9f", "\ue000", "\uf8ff", "\U000f0000", "\ufffe"])
def test_a_folder_of_which_azure_takes_no_name_is_refused(character):
    assert f"U+{ord(character):04X}" in azure_target(LONG, None).unfit(f"p=a{character}")


def test_a_folder_of_letters_of_any_language_is_fit():
    assert azure_target(LONG, None).unfit("p=ü 漢字 🎉 \ufffd") is None


def test_a_credential_of_the_environment_that_has_changed_is_used(monkeypatch):
    container = azure_target(LONG, None).container()
    clients = []
    for token in ("sig=one", "sig=two", "sig=two"):
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", token)
        clients.append(container._client._pipeline._transport)
    assert clients[0]._transport is not clients[1]._transport
    assert clients[1]._transport is clients[2]._transport


def test_the_ids_of_blocks_have_one_length():
    """Azure wants it of all blocks of a blob."""
    assert len({len(_block("0" * 32, number)) for number in (1, 99, 50_000)}) == 1
