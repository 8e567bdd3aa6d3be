"""A prefix in a bucket of a test server: sinks on it, what is read there, and what lies there."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

from onceforall import FileSink, read_files
from onceforall.sink import StartInfo
from sinks.files.building import QUERY


@dataclass(frozen=True)
class Prefix:
    """It may be pickled to other processes: it holds no connection."""

    bucket: str
    storage: dict
    key: str = "lake/ads"

    @property
    def url(self):
        return f"s3a://{self.bucket}/{self.key}"

    def sink(self, **options):
        return FileSink(self.url, storage=self.storage, **options)

    def checked(self, **options):
        sink = self.sink(**options)
        sink.check(StartInfo(QUERY, "out"))
        return sink

    def files(self):
        return read_files(self.url, storage=self.storage)

    def numbers(self, column="n"):
        return sorted(self.files().to_arrow().to_pydict().get(column, []))

    def through(self, endpoint):
        """The same, by way of a proxy."""
        return Prefix(self.bucket, {**self.storage, "endpoint": endpoint}, self.key)

    @contextlib.contextmanager
    def client(self):
        made: Any = boto3.client(
            "s3",
            endpoint_url=self.storage["endpoint"],
            region_name=self.storage["region"],
            aws_access_key_id=self.storage["access_key_id"],
            aws_secret_access_key=self.storage["secret_access_key"],
            config=Config(
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        try:
            yield made
        finally:
            made.close()

    def keys(self, under=""):
        """The keys below the prefix, without it."""
        with self.client() as client:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=f"{self.key}/{under}"
            )
            return sorted(
                each["Key"].removeprefix(f"{self.key}/")
                for page in pages
                for each in page.get("Contents", ())
            )

    def data(self):
        return [key for key in self.keys() if "part-" in key and not key.startswith("_")]

    def uploads(self):
        """The keys and ids of all incomplete uploads of the bucket."""
        with self.client() as client:
            found = client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ())
            return sorted((each["Key"], each["UploadId"]) for each in found)

    def abort(self, committable):
        """Do what a lifecycle rule does; return how many uploads there were."""
        ids = {upload for upload, _ in committable["uploads"]}
        there = [(key, upload) for key, upload in self.uploads() if upload in ids]
        with self.client() as client:
            for key, upload in there:
                client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
        return len(there)

    def left(self):
        """What lies there and is no result."""
        known = {path.partition(f"/{self.key}/")[2] for path in self.files().paths}
        return [
            *self.keys("_onceforall/uploads/"),
            *self.keys("_onceforall/probes/"),
            *(f"upload to {key}" for key, _ in self.uploads()),
            *(key for key in self.data() if key not in known),
        ]


def prefix_on(server, bucket):
    return Prefix(
        bucket,
        {
            "endpoint": server.endpoint,
            "region": server.region,
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
        },
    )
