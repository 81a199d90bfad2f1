"""A router for vLLM servers that prefill and servers that decode (NixlConnector). It shows the protocol; production has routers of its own.

    python -m nixl_gorail.examples.pd_router --prefill HOST:PORT ... --decode HOST:PORT ... [--listen 127.0.0.1:8000]

A completion goes first to a prefill server, for one token. Its answer says where the KV of the prompt is (kv_transfer_params). The router
hands that to a decode server, which pulls the KV and answers the client. /v1/models and /health go to a decode server, and nothing else.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PATHS = {("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/health")}
TIMEOUT = 600  # seconds, for an answer
MOST = 8 << 20  # bytes of a request
REMOTE_DECODE = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
                 "remote_host": None, "remote_port": None}


class Refused(Exception):
    """What a server answered instead of what the router needs."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def ask(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection(*server, timeout=TIMEOUT)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        return connection, connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise Refused(502, f"{server[0]}:{server[1]} does not answer: {error!r}") from error


def prefilled(server, path, request, headers):
    """Has a server compute the prompt and keep its KV. Returns what the decode server needs to pull it."""
    first = {**request, "max_tokens": 1, "stream": False, "kv_transfer_params": REMOTE_DECODE}
    first.pop("stream_options", None)
    if "max_completion_tokens" in first:
        first["max_completion_tokens"] = 1
    connection, answer = ask(server, "POST", path, json.dumps(first), headers)
    try:
        text = answer.read().decode()
        params = json.loads(text).get("kv_transfer_params") if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
        raise Refused(502, f"{server[0]}:{server[1]} gave no answer that can be read: {error!r}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise Refused(answer.status, text)
    if not params:
        raise Refused(502, f"{server[0]}:{server[1]} gave no kv_transfer_params: start it with --kv-transfer-config and kv_role kv_producer")
    return params


class Router(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds for a client to send its request

    def do_GET(self):
        self.answer("GET")

    def do_POST(self):
        self.answer("POST")

    def answer(self, method):
        try:
            path, body = urlsplit(self.path).path, self.body(method)
            if (method, path) not in PATHS:
                raise Refused(404, f"{method} {path} is not for this router")
            headers = {name: self.headers[name] for name in ("Authorization", "X-Request-Id") if name in self.headers}
            headers.setdefault("X-Request-Id", str(uuid.uuid4()))
            if method == "POST":
                request = json.loads(body)
                if not isinstance(request, dict):
                    raise Refused(400, "the body is no JSON object")
                request["kv_transfer_params"] = prefilled(next(self.server.prefill), path, request, headers)  # never a client's own
                body = json.dumps(request).encode()
            connection, answer = ask(next(self.server.decode), method, path, body, headers)
        except Refused as error:
            self.send(error.status, "text/plain", str(error).encode())
            return
        except (ValueError, TypeError) as error:
            self.send(400, "text/plain", f"the request cannot be read: {error}".encode())
            return
        with contextlib.closing(connection):
            if answer.headers.get("Content-Length") or answer.status == 204:
                try:
                    whole = answer.read()
                except (OSError, http.client.HTTPException) as error:
                    self.send(502, "text/plain", f"the decode server broke off: {error}".encode())
                    return
                self.send(answer.status, answer.headers.get_content_type(), whole)
            else:
                self.stream(answer)

    def body(self, method):
        """The body of the request. A body that is not read would be taken for the next request."""
        given = self.headers.get("Content-Length") or "0"
        length = int(given) if given.isascii() and given.isdigit() and len(given) < 12 else -1
        if "Transfer-Encoding" in self.headers or not 0 <= length <= MOST or method == "GET" and length:
            self.close_connection = True
            raise Refused(413 if length > MOST else 411, f"give a POST a Content-Length of at most {MOST}, and a GET none")
        return self.rfile.read(length)

    def send(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, answer):
        """Hands tokens on as they come. A stream that breaks off has no last chunk."""
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers.get_content_type())
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        while part := answer.read1(65536):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        """Says nothing: the servers log each request."""


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for role in ("prefill", "decode"):
        parser.add_argument(f"--{role}", metavar="HOST:PORT", type=address, nargs="+", required=True, help=f"servers that {role}; requests take turns")
    parser.add_argument("--listen", metavar="HOST:PORT", type=address, default=("127.0.0.1", 8000))
    args = parser.parse_args()
    with ThreadingHTTPServer(args.listen, Router) as server:
        server.daemon_threads = True
        server.prefill, server.decode = itertools.cycle(args.prefill), itertools.cycle(args.decode)
        print(f"pd_router: listens on {args.listen[0]}:{server.server_address[1]}", file=sys.stderr, flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
