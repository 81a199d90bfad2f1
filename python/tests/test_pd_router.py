"""The router among the examples: what it passes on, and what it refuses. vLLM itself is in test/vllm."""

import http.client
import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import ROOT


class Stub(ThreadingHTTPServer):
    """A server that notes what it is asked, and answers what it is told to."""

    def __init__(self, answer):
        self.asked, self.answer = [], answer
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.path, json.loads(body) if body else None, self.headers.get("Authorization")))
        text = self.server.answer.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture
def routed():
    """The port of a router, and its two servers."""
    prefill, decode = Stub('{"kv_transfer_params": {"remote_host": "prefill"}}'), Stub('{"choices": []}')
    command = [sys.executable, "-m", "nixl_gorail.examples.pd_router", "--listen", "127.0.0.1:0"]
    for role, server in (("prefill", prefill), ("decode", decode)):
        command += [f"--{role}", f"127.0.0.1:{server.server_port}"]
    router = subprocess.Popen(command, cwd=ROOT / "python", stderr=subprocess.PIPE, text=True)
    try:
        yield int(router.stderr.readline().rsplit(":", 1)[1]), prefill, decode
    finally:
        router.kill()
        router.wait()
        for server in (prefill, decode):
            server.shutdown()


def ask(port, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_completion(routed):
    port, prefill, decode = routed
    asked = json.dumps({"prompt": "a", "max_tokens": 9, "stream": True, "kv_transfer_params": {"remote_host": "attacker"}})
    assert ask(port, "POST", "/v1/completions?x=1", asked, Authorization="Bearer k") == (200, '{"choices": []}')
    path, first, key = prefill.asked[0]
    assert (path, first["max_tokens"], first["stream"], first["kv_transfer_params"]["do_remote_decode"], key) == ("/v1/completions", 1, False, True, "Bearer k")
    path, second, key = decode.asked[0]
    assert (path, second["max_tokens"], second["kv_transfer_params"], key) == ("/v1/completions", 9, {"remote_host": "prefill"}, "Bearer k")


def test_others(routed):
    port, prefill, decode = routed
    assert ask(port, "GET", "/v1/models", Authorization="Bearer k")[0] == 200
    assert decode.asked == [("/v1/models", None, "Bearer k")]
    for method, path in (("GET", "/metrics"), ("POST", "/v1/load_lora_adapter"), ("POST", "/v1/completions/../load")):
        assert ask(port, method, path, "{}" if method == "POST" else None)[0] == 404
    assert len(decode.asked) == 1 and not prefill.asked


@pytest.mark.parametrize("body", ["[]", "no JSON", '"text"', ""])
def test_bad_body(routed, body):
    assert ask(routed[0], "POST", "/v1/completions", body)[0] == 400


@pytest.mark.parametrize("head", ["GET /health HTTP/1.1\r\nContent-Length: 33", "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked",
                                  "POST /v1/completions HTTP/1.1\r\nContent-Length: -1", "POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999",
                                  "POST /v1/completions HTTP/1.1\r\nContent-Length: many"])
def test_no_second_request(routed, head):
    """What follows a head that the router does not take is no request of its own."""
    port, prefill, decode = routed
    with socket.create_connection(("127.0.0.1", port), timeout=20) as c:
        c.sendall(f"{head}\r\nHost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answers = b""
        while part := c.recv(65536):
            answers += part
    assert answers.count(b"HTTP/1.1 ") == 1 and answers.split()[1].startswith(b"4"), answers
    assert not prefill.asked and not decode.asked


def test_server_that_breaks(routed):
    port, prefill, decode = routed
    prefill.answer = "no JSON"
    assert ask(port, "POST", "/v1/completions", "{}")[0] == 502
    prefill.answer = '{"choices": []}'
    status, text = ask(port, "POST", "/v1/completions", "{}")
    assert status == 502 and "kv_producer" in text
