"""TLS certificates for tests: an authority, a certificate that it signed, and a server that uses both."""

import datetime
import ipaddress
from contextlib import contextmanager

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.embedded.server import free_port

from .servers import WITH_TLS


def make(directory, *, address="127.0.0.1", days=1):
    """Write ``ca.pem``, ``server.pem`` and ``server.key`` for *address*, valid for *days*, into *directory*."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _sign("authority", authority_key, "authority", authority_key, address, 1, is_authority=True)
    server = _sign("server", server_key, "authority", authority_key, address, days, is_authority=False)
    for name, certificate in (("ca.pem", authority), ("server.pem", server)):
        (directory / name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / "server.key").write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def tls_options(port, directory):
    """Return the options of a server with TLS on *port* and the certificates that `make` wrote into *directory*."""
    options = ["--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(directory / "ca.pem")]
    return [*options, "--tls-cert-file", str(directory / "server.pem"), "--tls-key-file", str(directory / "server.key")]


@contextmanager
def tls_server(directory, **certificate):
    """Yield a server and its ``rediss://`` URL. Its certificates are made in *directory* with `make`."""
    make(directory, **certificate)
    port = free_port()
    with EmbeddedServer(executable=WITH_TLS, options=tls_options(port, directory)) as server:
        yield server, f"rediss://127.0.0.1:{port}/0"


def _sign(name, key, issuer, issuer_key, host, days, *, is_authority):
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address(host))
    # Python 3.13 and newer verify strictly: they require the key identifiers and the key usage of an authority.
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _name(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
