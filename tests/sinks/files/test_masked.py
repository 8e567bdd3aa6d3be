"""No error of a reader's file system shows the signature that it reads with."""

import traceback
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from onceforall.sinks.files.reading.masked import masked_files

PLAIN = "a+b/c=="


@pytest.mark.parametrize("given", [PLAIN, quote(PLAIN, safe=""), quote(PLAIN)])
@pytest.mark.parametrize("shown", [PLAIN, quote(PLAIN, safe=""), quote(PLAIN)])
def test_a_signature_is_masked_however_it_is_spelled(given, shown):
    def refuse(*_):
        raise OSError(f"https://a.example/c?se=2026&sig={shown}&sp=r: no such host")

    files = masked_files(SimpleNamespace(get_file_info=refuse), f"se=2026&sig={given}&sp=r")
    with pytest.raises(OSError, match="no such host") as told:
        files.get_file_info("c/x")
    assert shown not in "".join(traceback.format_exception(told.value))
