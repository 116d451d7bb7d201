"""The server as a process: many clients at once, bad ones among them, its limits on time, its end."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from conftest import small_options, write_model
from elmo.errors import ElmoError
from elmo.serve.command import serve
from elmo.serve.server import _make_room, _patient
from serve_clients import HOST, Server, answer, embed, gone, hostile, once, post, press

KEY = "a key of some length"
SHOWN = f"X-API-Key: {KEY}"
REQUESTS = [embed(f"sentence number {n} of those that are sent", SHOWN) for n in range(200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    write_model(folder, small_options())
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server(folder, "--body-timeout", 1, key=KEY, threads=1) as server:
        yield server


def test_many_clients_at_once_share_batches_and_meet_no_error(server: Server) -> None:
    load = asyncio.run(press(server.port, REQUESTS, 64, 1))
    memory = server.memory()
    more = asyncio.run(press(server.port, REQUESTS, 64, 2))
    assert load.errors == more.errors == 0
    requests, batches = server.metric("elmo_batch_requests_sum"), server.metric("elmo_batch_requests_count")
    assert requests == load.statuses["200"] + more.statuses["200"]
    assert requests / batches >= 5
    assert server.metric("elmo_house_requests") == server.metric("elmo_house_tokens") == 0
    assert server.memory() < 1.05 * memory


def test_hostile_clients_get_what_is_documented_and_others_are_served(server: Server) -> None:
    async def both() -> tuple[dict[str, str], int, int]:
        over = asyncio.Event()
        good = asyncio.create_task(press(server.port, REQUESTS, 8, 60, over))
        found = await hostile(server.port, KEY)
        over.set()
        load = await good
        return found, load.statuses["200"], load.errors

    memory = server.memory()
    found, served, errors = asyncio.run(both())
    assert found == {
        "1 GB body": "413",
        "1 GB body in chunks": "413",
        "10^6 tokens": "413",
        "slow head": "cut",
        "slow body": "408",
        "endless head": "cut",
        "endless trailer": "cut",
        "requests without end": "cut",
        "10^6 mistakes": "422",
        "invalid JSON": "422",
        "wrong key": "401",
        "no HTTP": "400",
    }
    assert errors == 0
    assert served > 100
    assert server.memory() < memory + 50
    assert server.process.poll() is None


def test_a_request_behind_another_has_as_much_time_as_the_first() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.5)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def ask_twice_at_once() -> list[str]:
        config = uvicorn.Config(app, http=_patient(head_seconds=0.2, seconds=30, body_bytes=100), lifespan="off")
        config.load()
        state = ServerState()

        def connection() -> asyncio.Protocol:
            return config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[call-arg]

        server = await asyncio.get_running_loop().create_server(connection, HOST, 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(post(b"{}") * 2)
            answers = [(await answer(reader))[0] for _ in range(2)]
            assert await reader.read() == b""  # a third one does not come, and its head is not waited for
            writer.close()
        return answers

    assert asyncio.run(ask_twice_at_once()) == ["200", "200"]


def test_the_process_may_open_as_many_files_as_it_takes_connections() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = 512  # and more than the tests have open
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_now, before[1]))
        _make_room(open_now)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > open_now
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_client_that_goes_away_frees_its_place(folder: Path) -> None:
    large = post(b'{"sentences": [%b]}' % b",".join([b'"%b"' % (b"word " * 500)] * 8))

    async def leave(port: int) -> None:
        await asyncio.gather(*(gone(port, large) for _ in range(30)))

    # 4,000 tokens each, and room for two: were places kept, the last request would be refused.
    with Server(folder, "--max-house-tokens", 8000, threads=1) as server:
        asyncio.run(leave(server.port))
        for _ in range(100):
            if server.metric("elmo_house_requests") == 0:
                break
        assert server.metric("elmo_house_tokens") == 0
        assert asyncio.run(once(server.port, embed("still there"))) == "200"


def test_a_full_house_answers_429(folder: Path) -> None:
    with Server(folder, "--max-requests", 4, "--wait-ms", 50, threads=1) as server:
        load = asyncio.run(press(server.port, REQUESTS, 32, 1))
        assert load.statuses.keys() == {"200", "429"}
        assert asyncio.run(once(server.port, embed("now there is room"))) == "200"


def test_the_end_under_load_loses_no_request(folder: Path) -> None:
    async def end(server: Server) -> tuple[int, str, dict[str, int]]:
        good = asyncio.create_task(press(server.port, REQUESTS, 32, 60))
        await asyncio.sleep(1)
        code, errors = await asyncio.to_thread(server.stop)
        return code, errors, dict((await good).statuses)

    with Server(folder, threads=1) as server:
        code, errors, statuses = asyncio.run(end(server))
    assert statuses.keys() == {"200"}
    assert code == 0
    assert errors == ""


def test_nothing_of_a_request_is_written_anywhere(folder: Path) -> None:
    with Server(folder, threads=1) as server:
        for data in (
            embed("a private matter"),
            post(b'{"private": "matter"}'),
            post(b"private", path="/private?private"),
        ):
            asyncio.run(once(server.port, data))
        assert server.stop() == (0, "")


def test_at_loopback_without_a_key_the_server_has_names(folder: Path) -> None:
    def status(server: Server, name: str) -> int:
        asked = http.client.HTTPConnection(HOST, server.port, timeout=60)
        with contextlib.closing(asked):
            asked.request("GET", "/healthz", headers={"Host": f"{name}:{server.port}"})
            return asked.getresponse().status

    with Server(folder, "--allow-host", "Elmo.example:8000", threads=1) as server:
        assert {name: status(server, name) for name in ("localhost", "elmo.example", "evil.example")} == {
            "localhost": 200,
            "elmo.example": 200,
            "evil.example": 421,
        }
    with Server(folder, threads=1) as server:
        assert (status(server, HOST), status(server, "evil.example")) == (200, 421)
    with Server(folder, key=KEY, threads=1) as server:
        assert status(server, "elmo.example") == 200


def test_an_address_that_is_taken_is_a_mistake(folder: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ElmoError, match=f"port {port}"):
            serve(str(folder), port=port)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_tokens": 0}, "batch_tokens is 0"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"api_key_file": Path("nowhere")}, "cannot read --api-key-file"),
        ({"port": 99999}, "port 99999"),
        ({"host": "no.such.host.invalid"}, "no.such.host.invalid"),
        ({"host": "a" * 64}, "cannot serve at aaa"),
    ],
)
def test_mistakes_are_explained(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        serve(str(folder), **({"port": 0} | options))


def test_without_its_extra_the_command_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['fastapi'] = None; sys.argv = ['elmo', 'serve']; from elmo.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "pip install 'elmo[serve]'" in result.stderr
