"""The full test of a store, on a second server that speaks S3: moto alone would prove little."""

import pytest

from onceforall.commit_log.stores.objects import ObjectClient
from onceforall.commit_log.stores.probing import check
from onceforall.commit_log.stores.remote import RemoteStore


@pytest.mark.long
@pytest.mark.s3
@pytest.mark.timeout(900)
def test_versitygw_keeps_what_a_log_needs(second_s3_server):
    server = second_s3_server
    server.create_bucket("checked")
    settings = {
        "endpoint": server.endpoint,
        "region": server.region,
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
        "virtual_hosted_style_request": "false",
    }
    found = check(
        lambda: RemoteStore(ObjectClient("s3a://checked/log", settings)), creators=20, rounds=50
    )
    assert found.kept, found.verdicts
