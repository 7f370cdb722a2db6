"""An HTTP sink says in a few words why it has no answer, and nothing of its library's insides."""

import datetime
import re
import socket
import ssl
from contextlib import contextmanager
from threading import Thread

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from weir.pipelines.publishing.http_errors import reason_of

TIMEOUT_S = 0.3


@contextmanager
def listening(answer=None, context=None):
    """The port of a server that answers each connection with these bytes and closes it; without them, never."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    try:
                        secured = context.wrap_socket(connection, server_side=True) if context else connection
                        secured.recv(1 << 16)
                        secured.sendall(answer)
                    except OSError:
                        pass

        if answer is not None:
            Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def reason(url, **options):
    with pytest.raises(requests.RequestException) as raised:
        requests.post(url, data=b"[]", timeout=TIMEOUT_S, **options)
    found = reason_of(raised.value, url, TIMEOUT_S)
    assert not re.search(r"pool|object at|urllib3|Errno|Error\(|\.c:", found, re.IGNORECASE), found
    return found


def test_a_server_that_is_not_there():
    assert reason(f"http://127.0.0.1:{unused_port()}/") == "connection refused"


def test_a_server_that_does_not_answer():
    with listening() as port:
        assert reason(f"http://127.0.0.1:{port}/") == "no answer within 0.3 s"
        assert reason(f"https://127.0.0.1:{port}/") == "no answer within 0.3 s"


def test_a_server_that_closes_the_connection():
    with listening(b"") as port:
        assert reason(f"http://127.0.0.1:{port}/") == "the server closed the connection without an answer"


def test_a_host_that_nobody_knows():
    assert reason("http://no-such-host.invalid/orders") == "cannot find the host no-such-host.invalid"


def test_an_answer_that_is_not_http_is_not_repeated():
    with listening(b"hello Bearer secret\n") as port:
        assert reason(f"http://127.0.0.1:{port}/") == "the answer of the server is not HTTP"


def test_a_server_without_tls():
    with listening(b"HTTP/1.1 400 no\r\n\r\n") as port:
        assert reason(f"https://127.0.0.1:{port}/") == "no TLS connection: wrong version number"


def test_a_certificate_is_named_as_the_cause(tmp_path):
    context, authority = certified(tmp_path, "localhost")
    with listening(b"", context) as port:
        invalid = "the certificate of the server is not valid: "
        assert reason(f"https://localhost:{port}/") == f"{invalid}self-signed certificate"
        of_another = reason(f"https://127.0.0.1:{port}/", verify=str(authority))
        assert of_another.startswith(f"{invalid}IP address mismatch")


def test_a_proxy_is_named():
    refused = {"http": f"http://127.0.0.1:{unused_port()}"}
    assert reason("http://example.org/", proxies=refused) == "cannot connect to the proxy: connection refused"
    unknown = {"http": "http://no-such-proxy.invalid:80"}
    assert reason("http://example.org/", proxies=unknown) == "cannot connect to the proxy: cannot find its host"
    with listening(b"HTTP/1.1 407 Log in\r\n\r\n") as port:
        asks = {"https": f"http://127.0.0.1:{port}"}
        said = "cannot connect to the proxy: Tunnel connection failed: 407 Log in"
        assert reason("https://example.org/", proxies=asks) == said


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (OSError(113, "No route to host"), "no route to host"),
        (ValueError("a strange one"), "a strange one"),
        (ValueError(), "ValueError"),
    ],
)
def test_of_any_other_the_innermost_cause_is_said(cause, said):
    assert reason_of(requests.ConnectionError(requests.ConnectionError(cause)), "http://example.org/", 1) == said


def certified(folder, host):
    """A server's side of TLS, with a certificate that it has signed itself, and the file of that."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    return context, certificate
