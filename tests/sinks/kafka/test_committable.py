"""What a committable of the Kafka sink must say before anything is done with it."""

import pytest

from onceforall.errors import SinkCheckError
from onceforall.sinks.kafka.driver.committable import read

WHOLE = {"name": "ofa:q:s:1:0.0.0:", "producer_id": 7, "producer_epoch": 0}


def test_it_is_the_same_object_with_what_a_later_release_may_have_added():
    whole = {**WHOLE, "of a later release": 1}
    assert read([whole])[0] is whole


@pytest.mark.parametrize("key", WHOLE)
@pytest.mark.parametrize("value", [None, [], 1.5])
def test_one_that_names_no_transaction_is_refused_with_the_key(key, value):
    with pytest.raises(SinkCheckError, match=f"damaged: its {key} is .*backup"):
        read([WHOLE, {**WHOLE, key: value}])


@pytest.mark.parametrize("key", WHOLE)
def test_one_without_a_key_is_refused(key):
    with pytest.raises(SinkCheckError, match=f"damaged: its {key} is None"):
        read([{k: v for k, v in WHOLE.items() if k != key}])
