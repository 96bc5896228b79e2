"""Access rules: a test per rule."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from celery_affinity.errors import SettingError
from celery_affinity.web import asgi
from celery_affinity.web.auth import MAX_BYTES, AuthMiddleware, read_tokens

from .conftest import Client, error_of

TOKENS = {"r" * 16: "read", "s" * 16: "submit", "a" * 16: "admin"}
ROLES = {role: token for token, role in TOKENS.items()}
PAUSE = ("POST", "/api/types/pdf/pause")


# -- hosts


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:5556", "127.0.0.1:80", "[::1]:5556", "10.1.2.3"])
def test_this_machine_and_addresses_are_hosts(web, host):
    assert web.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:5556", "", "localhost.evil.example", "127.0.0.1.evil"])
def test_other_name_of_this_host_is_refused(web, host):
    reply = web.get("/healthz", headers={"Host": host})
    assert reply.status_code == 421
    assert "Host header must name this machine" in error_of(reply)


def test_configured_name_is_a_host(serve):
    web = serve(names=["Shop.example"])
    assert web.get("/healthz", headers={"Host": "shop.example:443"}).status_code == 200
    assert web.get("/healthz", headers={"Host": "evil.example"}).status_code == 421
    assert serve(names=["*"]).get("/healthz", headers={"Host": "any.example"}).status_code == 200


# -- tokens and roles


def test_without_tokens_only_this_machine_gets_replies(serve):
    assert serve().get("/api/types").status_code == 200
    assert serve(client=("::1", 1)).get("/api/types").status_code == 200
    far = serve(client=("10.0.0.7", 1))
    assert far.get("/api/types").status_code == 403
    assert far.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("role", "codes"), [("read", (200, 403, 403)), ("submit", (200, 200, 403)), ("admin", (200, 200, 202))]
)
def test_each_role_has_its_permissions(serve, role, codes):
    web = serve(tokens=TOKENS, token=ROLES[role], client=("10.0.0.7", 1))
    reads, submits, changes = codes
    assert web.get("/api/types").status_code == reads
    submitted = web("POST", "/api/jobs", json={})
    assert (submitted.status_code == 403) == (submits == 403)
    assert web(*PAUSE).status_code == changes


@pytest.mark.parametrize("header", [None, "Bearer " + "x" * 16, "Bearer", "Basic " + "a" * 16, "Bearer ä", "a" * 16])
def test_request_without_a_token_is_refused(serve, header):
    web = serve(tokens=TOKENS)
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    for path in ("/api/types", "/metrics", "/openapi.json", "/api/jobs/x", "/nowhere", "/page"):
        reply = web.get(path, headers=headers)
        assert reply.status_code == 401, path
        assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert web.get("/healthz", headers=headers).status_code == 200


def test_tokens_are_compared_in_constant_time(serve, monkeypatch):
    compared = []
    monkeypatch.setattr(
        "celery_affinity.web.auth.hmac.compare_digest", lambda one, other: compared.append(1) or one == other
    )
    assert serve(tokens=TOKENS, token=ROLES["read"]).get("/api/types").status_code == 200
    assert len(compared) == len(TOKENS)


@pytest.mark.parametrize("tokens", [{"a" * 15: "admin"}, {"a" * 16: "root"}, {"ä" * 16: "read"}])
def test_weak_token_or_unknown_role_is_refused(serve, tokens):
    with pytest.raises(SettingError, match="tokens must be lines of a role"):
        serve(tokens=tokens)


def test_tokens_are_read_from_file_or_environment(tmp_path, monkeypatch):
    path = tmp_path / "tokens"
    path.write_text(f"# for the page\nread {'r' * 16}\n\nadmin {'a' * 16}\n")
    assert read_tokens(str(path)) == {"r" * 16: "read", "a" * 16: "admin"}
    assert read_tokens(None) is None
    monkeypatch.setenv("CELERY_AFFINITY_WEB_TOKENS", f"read {'r' * 16},admin {'a' * 16}")
    assert read_tokens(None) == {"r" * 16: "read", "a" * 16: "admin"}


@pytest.mark.parametrize("text", ["", "admin short", f"root {'x' * 16}", "s3cr3t-s3cr3t-s3cr3t"])
def test_invalid_token_file_is_refused_without_showing_tokens(tmp_path, text):
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(SettingError, match="lines of a role") as raised:
        read_tokens(str(path))
    assert "s3cr3t" not in str(raised.value)
    with pytest.raises(SettingError, match="cannot be read"):
        read_tokens(str(tmp_path / "none"))


def test_read_only_server_changes_nothing(serve):
    web = serve(read_only=True, tokens=TOKENS, token=ROLES["admin"])
    assert web.get("/api/types").status_code == 200
    for call in (PAUSE, ("POST", "/api/jobs"), ("DELETE", "/api/jobs/x"), ("PATCH", "/api/settings")):
        assert web(*call).status_code == 403


# -- other sites


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_page_of_another_site_changes_nothing(web, headers):
    assert web(*PAUSE, headers=headers).status_code == 403
    assert web(*PAUSE, headers={"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}).status_code == 202


def test_other_sites_cannot_read_or_frame_replies(web):
    for path in ("/healthz", "/api/types", "/nowhere"):
        headers = web.get(path, headers={"Origin": "http://evil.example"}).headers
        assert not [name for name in headers if name.startswith("access-control") or name == "set-cookie"]
        assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
    assert "access-control-allow-origin" not in web("OPTIONS", "/api/types").headers


def test_content_policy_forbids_inline_code_and_other_targets(web):
    policy = web.get("/").headers["Content-Security-Policy"]
    rules = dict(each.strip().split(" ", 1) for each in policy.split(";"))
    assert rules == {
        "default-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }


# -- bodies


def test_body_that_is_not_json_is_refused(web, subtests):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"):
        with subtests.test(kind):
            reply = web(*PAUSE, content=b"{}", headers={"Content-Type": kind})
            assert (reply.status_code, "a body must be JSON" in error_of(reply)) == (400, True)
    for body in (b"{", b"\xff", b'{"reason": NaN}', b'"\\ud800"', b"[" * 100_000, b"1e999", b"1" * 5000, b"{}{}"):
        with subtests.test(str(body[:10])):
            assert web(*PAUSE, content=body, headers={"Content-Type": "application/json"}).status_code == 400


def test_body_is_limited_to_a_megabyte(web):
    async def endless():
        while True:
            yield b" " * 100_000

    kind = {"Content-Type": "application/json"}
    large = b'"' + b"x" * MAX_BYTES + b'"'
    assert web(*PAUSE, content=large, headers=kind).status_code == 413
    assert web(*PAUSE, content=endless(), headers=kind).status_code == 413
    assert web(*PAUSE, content=b"{}", headers={**kind, "Content-Length": "x"}).status_code == 413


def test_missing_body_is_given_up(monkeypatch):
    monkeypatch.setattr("celery_affinity.web.auth.BODY_S", 0.05)

    async def never():
        await asyncio.Event().wait()

    sent = []

    async def send(message):
        sent.append(message)

    async def inner(*_):
        raise AssertionError

    headers = [(b"host", b"localhost"), (b"content-length", b"5")]
    scope = {"type": "http", "method": "POST", "path": "/api/jobs", "headers": headers, "client": ("127.0.0.1", 1)}
    asyncio.run(AuthMiddleware(inner, None, False, ())(scope, never, send))
    assert sent[0]["status"] == 408


def test_mounted_app_has_the_same_rules(app, serve):
    web = Client(Starlette(routes=[Mount("/affinity", asgi(app, tokens=TOKENS))]), token=ROLES["submit"])
    assert web.get("/affinity/healthz").status_code == 200
    assert web.get("/affinity/api/types").status_code == 200
    assert web("POST", "/affinity" + PAUSE[1]).status_code == 403
    assert web("POST", "/affinity/api/jobs", json={}).status_code != 403
    web.close()
