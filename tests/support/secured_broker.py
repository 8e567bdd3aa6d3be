"""A broker that asks for a password and goes by ACLs, and what its clients and its administrator
need."""

import uuid

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from support.waiting import until

PASSWORD = "planted-hunter2,=\"'"
SCRAM = {
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "ads",
    "sasl.password": PASSWORD,
}


class Secured:
    """A broker with users, and its administrator."""

    def __init__(self, kafka):
        self.kafka = kafka
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        self.ca = {"ssl.ca.location": str(kafka.tls_dir / "ca.pem")}
        self.certificate = {
            "ssl.certificate.location": str(kafka.tls_dir / "client.pem"),
            "ssl.key.location": str(kafka.tls_dir / "client.key"),
        }

    def scram(self, user="ads", password=PASSWORD, **more):
        options = {
            **SCRAM,
            **self.ca,
            "bootstrap.servers": self.kafka.sasl_servers,
            "sasl.username": user,
        }
        return {**options, "sasl.password": password, **more}

    def mutual(self):
        return {
            "bootstrap.servers": self.kafka.tls_servers,
            "security.protocol": "ssl",
            **self.ca,
            **self.certificate,
        }

    def topic(self):
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.kafka.create_topic(name)
        return name

    @staticmethod
    def acl(kind, name, operation, user, pattern=ResourcePatternType.LITERAL):
        return AclBinding(
            kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW
        )

    def for_topic(self, topic, user="ads", operation=AclOperation.WRITE):
        return self.acl(ResourceType.TOPIC, topic, operation, user)

    def for_ids(self, prefix, user="ads", operation=AclOperation.WRITE):
        return self.acl(
            ResourceType.TRANSACTIONAL_ID,
            f"{prefix}:",
            operation,
            user,
            ResourcePatternType.PREFIXED,
        )

    def grant(self, *acls):
        """Grant the rights; they count when this returns."""
        for future in self.admin.create_acls(list(acls)).values():
            future.result(20)
        until(lambda: all(self._known(acl) for acl in acls), 20, "the broker goes by the new ACLs")

    def revoke(self, *acls):
        """Take the rights away; they are gone when this returns."""
        for future in self.admin.delete_acls([self._filter(acl) for acl in acls]).values():
            assert future.result(20), "there was no such ACL"
        until(
            lambda: not any(self._known(acl) for acl in acls),
            20,
            "the broker no longer goes by the ACLs",
        )

    def _known(self, acl):
        # The controller answers when an ACL is in its log; the broker goes by it when it has read
        # that log, and tells here what it goes by.
        return self.admin.describe_acls(self._filter(acl)).result(20)

    @staticmethod
    def _filter(a):
        return AclBindingFilter(
            a.restype,
            a.name,
            a.resource_pattern_type,
            a.principal,
            a.host,
            a.operation,
            a.permission_type,
        )
