"""Encrypted and authenticated listeners for the embedded broker, with certificates made by
``openssl`` at its first start.

For tests and demo only. The plaintext listener stays, and whoever connects there is a super user:
it is how a test grants rights.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from onceforall.embedded.network import HOST
from onceforall.errors import EmbeddedServerError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DEADLINE_S = 30.0
_SCRAM_ITERATIONS = 4096
_MODULES = "org.apache.kafka.common.security"
_OPENSSL_SETTINGS = f"""[req]
distinguished_name = name
prompt = no
[name]
CN = onceforall-test
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[broker]
basicConstraints = CA:FALSE
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = IP:{HOST}
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[client]
basicConstraints = CA:FALSE
extendedKeyUsage = clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@dataclass(frozen=True)
class SecureListeners:
    """Two more listeners of the embedded broker, and who may connect there.

    Attributes:
        sasl_port: SASL over TLS (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, and OAUTHBEARER with
            unsecured tokens).
        tls_port: TLS with a client certificate.
        folder: where the certificates are: ``ca.pem``, and ``client.pem`` with ``client.key``,
            principal ``User:CN=client``. The broker's is for 127.0.0.1 and no other name.
        users: passwords by user, for PLAIN.
    """

    sasl_port: int
    tls_port: int
    folder: Path
    users: Mapping[str, str]

    def properties(self) -> dict[str, str]:
        """Return the broker settings of the two listeners and of the authorizer, which refuses
        what no ACL allows.
        """
        sasl = "listener.name.secure"
        users = " ".join(
            f"user_{user}={_quoted(password)}" for user, password in self.users.items()
        )
        return {
            f"{sasl}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"{sasl}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required {users};",  # noqa: E501
            f"{sasl}.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",  # noqa: E501
            f"{sasl}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",  # noqa: E501
            f"{sasl}.oauthbearer.sasl.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "  # noqa: E501
            'unsecuredLoginStringClaim_sub="broker";',
            "listener.name.mutual.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "broker.both.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def make_certificates(folder: Path) -> None:
    """Make an authority of its own and certificates of the broker and of a client; do nothing where
    they are already.

    Raises:
        EmbeddedServerError: ``openssl`` is not installed, or failed.
    """
    if (folder / "broker.both.pem").exists():
        return
    program = shutil.which("openssl")
    if program is None:
        raise EmbeddedServerError(
            "A broker with users= needs the program openssl to make its certificates. Install it, "
            "or leave users= out."
        )
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    settings = folder / "openssl.cnf"
    settings.write_text(_OPENSSL_SETTINGS, encoding="ascii")
    key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-config",
        str(settings),
    ]
    authority = [
        "-x509",
        "-days",
        "3650",
        "-subj",
        "/CN=onceforall test authority",
        "-extensions",
        "ca",
    ]
    _openssl(program, folder, ["req", *key, *authority, "-keyout", "ca.key", "-out", "ca.pem"])
    for name in ("broker", "client"):
        _openssl(
            program,
            folder,
            ["req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"],
        )
        signing = [
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "3650",
            "-extfile",
            str(settings),
        ]
        request = [
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            *signing,
            "-extensions",
            name,
            "-out",
            f"{name}.pem",
        ]
        _openssl(program, folder, request)
    both = (folder / "broker.key").read_text(encoding="ascii") + (folder / "broker.pem").read_text(
        encoding="ascii"
    )
    (folder / "broker.both.pem").write_text(both, encoding="ascii")


def _openssl(program: str, folder: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_DEADLINE_S,
        check=False,
    )
    if done.returncode != 0:
        raise EmbeddedServerError(
            f"openssl {arguments[0]} failed; check the installed openssl. It "
            f"said:\n{done.stderr.strip()}"
        )


def set_password(servers: str, user: str, password: str) -> None:
    """Give a user a SCRAM password, for both mechanisms; an earlier one no longer counts.

    Args:
        servers: of the plaintext listener.
        user: who.
        password: the new password.

    Raises:
        MissingExtraError: confluent-kafka is not installed.
        EmbeddedServerError: the broker refused, or did not answer within 30 s.
    """
    try:
        ck: Any = import_module("confluent_kafka.admin")
        from confluent_kafka import KafkaException
    except ImportError as error:
        raise MissingExtraError("confluent-kafka", "kafka") from error
    admin = ck.AdminClient({"bootstrap.servers": servers})
    try:
        for mechanism in (ck.ScramMechanism.SCRAM_SHA_256, ck.ScramMechanism.SCRAM_SHA_512):
            how = ck.ScramCredentialInfo(mechanism, _SCRAM_ITERATIONS)
            wanted = ck.UserScramCredentialUpsertion(user, how, password.encode())
            admin.alter_user_scram_credentials([wanted])[user].result(_DEADLINE_S)
    except (KafkaException, TimeoutError) as error:
        raise EmbeddedServerError(
            f"The password of {user!r} could not be set: {error}. Restart the broker."
        ) from error
