"""A prefix in a bucket of a test server: sinks on it, what is read there, and what lies there."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

from sinks.files_objects.place import ObjectsUnderTest


@dataclass(frozen=True)
class Prefix(ObjectsUnderTest):
    """A prefix of S3's."""

    bucket: str
    storage: dict
    key: str = "lake/ads"

    part_bytes = 5 << 20
    takers = "lifecycle"
    taken = 412
    modules = ("boto3",)
    settings = ("endpoint", "region")

    @property
    def url(self):
        return f"s3a://{self.bucket}/{self.key}"

    @property
    def environment(self):
        names = {"access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY"}
        return {names[name]: self.storage[name] for name in names}

    @property
    def secrets(self):
        return [self.storage["secret_access_key"]]

    def store(self):
        return self.sink()._given.bucket()

    def through(self, endpoint):
        return Prefix(self.bucket, {**self.storage, "endpoint": endpoint}, self.key)

    def elsewhere(self, key):
        return Prefix(self.bucket, self.storage, key)

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
        with self.client() as client:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=f"{self.key}/{under}"
            )
            return sorted(
                each["Key"].removeprefix(f"{self.key}/")
                for page in pages
                for each in page.get("Contents", ())
            )

    def get(self, name):
        with self.client() as client:
            return client.get_object(Bucket=self.bucket, Key=f"{self.key}/{name}")["Body"].read()

    def put(self, name, content, mark=None):
        metadata = {} if mark is None else {"onceforall": mark}
        with self.client() as client:
            client.put_object(
                Bucket=self.bucket, Key=f"{self.key}/{name}", Body=content, Metadata=metadata
            )

    def delete(self, name):
        with self.client() as client:
            client.delete_object(Bucket=self.bucket, Key=f"{self.key}/{name}")

    def uploads(self):
        """The keys and ids of all incomplete uploads of the bucket."""
        with self.client() as client:
            found = client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ())
            return sorted((each["Key"], each["UploadId"]) for each in found)

    def begun(self):
        return [key.removeprefix(f"{self.key}/") for key, _ in self.uploads()]

    def begin_theirs(self, name):
        with self.client() as client:
            client.create_multipart_upload(Bucket=self.bucket, Key=f"{self.key}/{name}")

    def lose(self, committable):
        """Do what a lifecycle rule does."""
        ids = {upload for upload, _ in committable["uploads"]}
        there = [(key, upload) for key, upload in self.uploads() if upload in ids]
        with self.client() as client:
            for key, upload in there:
                client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
        return len(there)


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
