"""Reads and writes HDFS over its REST API: a test has no JVM."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from urllib.parse import quote, urlsplit

USER = "user.name=root"


class WebHdfs:
    """What tests need of a client of a store; it creates nothing exclusively."""

    is_far = False

    def __init__(self, web_url, url):
        self.url = url
        self._base = f"{web_url.rstrip('/')}/webhdfs/v1"
        self._folder = urlsplit(url).path

    def _ask(self, method, key, operation, content=None):
        path = quote(f"{self._folder}/{key}".rstrip("/"))
        url = f"{self._base}{path}?op={operation}&{USER}"
        request = urllib.request.Request(url, data=content, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            if error.code == 307:
                # Only reads are sent on by themselves.
                again = urllib.request.Request(
                    error.headers["Location"], data=content, method=method
                )
                with urllib.request.urlopen(again) as answer:
                    return answer.read()
            raise

    def _names(self, key):
        found = self._ask("GET", key, "LISTSTATUS")
        return [] if found is None else json.loads(found)["FileStatuses"]["FileStatus"]

    def read(self, key):
        return self._ask("GET", key, "OPEN")

    def exists(self, key):
        return self._ask("GET", key, "GETFILESTATUS") is not None

    def list(self, folder):
        return sorted(
            each["pathSuffix"] + "/" * (each["type"] == "DIRECTORY")
            for each in self._names(folder)
            if each["pathSuffix"]
        )

    def replace(self, key, content):
        self._ask("PUT", key, "CREATE&overwrite=true", content)
