"""What a person can do about a store's error is known by the store's own words, and not by what it
repeats of the question: a name, a port, how long it took."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from onceforall.common.object_stores import is_absent, names_the_bucket, sentence

URL = "http://127.0.0.1:{port}/{bucket}/{key}"
PUT = f"Generic S3 error: Error performing PUT {URL} in {{took}} - "
SILENT = "HTTP error: error sending request"


def put(said, *, port=44063, bucket="ads", key="log/chains/0.json", took="1.71ms"):
    return PUT.format(port=port, bucket=bucket, key=key, took=took) + said


def status(code, name, said, more=""):
    return (
        f'Server returned non-2xx status code: {code}: <?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{name}</Code><Message>{said}</Message>{more}</Error>\n\n"
        "Debug source:\nRetryError { 503 credential }"
    )


@pytest.mark.parametrize(
    "question",
    [
        {"took": "503.1ms"},
        {"took": "1.429s"},
        {"took": "924.503µs, after 5 retries, max_retries: 5, retry_timeout: 90s "},
        {"port": 45035},
        {"bucket": "b-5031"},
        {"bucket": "credentials"},
        {"key": "permission/dns/chains/NoSuchBucket"},
    ],
    ids=str,
)
def test_a_silent_store_is_told_as_one_whatever_was_asked(question):
    assert sentence(put(SILENT, **question)).startswith("The store doesn't answer.")
    assert not names_the_bucket(Exception(put(SILENT, **question)))


def test_what_an_answer_repeats_of_the_question_says_nothing():
    more = "<Key>credentials/429</Key><Resource>/NoSuchKey</Resource><HostId>NoSuchBucket</HostId>"
    said = put(status("500 Internal Server Error", "InternalError", "Try again.", more))
    assert sentence(said) == "Mend the cause (the store said InternalError)"
    assert not names_the_bucket(Exception(said))
    assert not is_absent(Exception(said))


@pytest.mark.parametrize("key", ["dns/credentials", "a: permission", "is not found: dns"])
@pytest.mark.parametrize("begin", ["Object at location {} not found: ", "No right for path {}: "])
def test_a_key_says_nothing(begin, key):
    asked = put(status("409 Conflict", "OperationAborted", "Later."), key=quote(key))
    said = begin.format(key) + asked.removeprefix("Generic S3 error: ")
    assert sentence(said).startswith("Mend the cause")


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (status("503 Service Unavailable", "ServiceUnavailable", ""), "The store is overloaded"),
        (status("429 Too Many Requests", "TooMany", "Later."), "The store is overloaded"),
        (status("503 Slow Down", "SlowDown", "Reduce your rate."), "The store is overloaded"),
        (status("403 Forbidden", "AccessDenied", "Access Denied"), "The key may not do that"),
        (status("404 Not Found", "NoSuchBucket", "None."), "There is no such bucket"),
        (status("400 Bad Request", "ExpiredToken", "Expired."), "The session token has expired"),
        (SILENT, "The store doesn't answer"),
    ],
)
def test_what_a_store_says_is_told_with_what_to_do(said, remedy):
    assert sentence(put(said)).startswith(remedy)


def test_whoever_finds_no_credentials_asks_the_address_of_clouds_for_them():
    said = (
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 9.3s, "
        "after 10 retries - HTTP error: error sending request"
    )
    assert sentence(said).startswith("No credentials were found")


@pytest.mark.parametrize("code", ["NoSuchKey", "BlobNotFound"])
def test_an_object_is_absent_where_the_store_says_so(code):
    assert is_absent(Exception(put(status("404 Not Found", code, "It does not exist."))))
