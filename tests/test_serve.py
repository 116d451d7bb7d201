"""The server's interface for programs: the library's answers over HTTP, and one shape for every error."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import httpx
import numpy as np
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.numpy import load as load_packed
from schemathesis import GenerationMode

import elmo
from elmo.explore.neighbours import Query, nearest
from elmo.serve.app import create_app
from elmo.serve.guard import host_name
from elmo.serve.messages import EmbedRequest
from elmo.serve.routes import PATHS
from elmo.serve.settings import Settings
from test_lm_scores import drawn_model

SENTENCES = ["We sat on the bank of the river .", ["The", "bank", "raised", "its", "rates"], "", "One"]
KEY = "a key of some length"
PACKED = {"Accept": "application/octet-stream"}


class Client:
    """Asks an application, without a server between."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def request(self, method: str, path: str, **request: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://elmo") as client:
                return await client.request(method, path, **request)

        return asyncio.run(ask())

    def get(self, path: str, **request: Any) -> httpx.Response:
        return self.request("GET", path, **request)

    def post(self, path: str, **request: Any) -> httpx.Response:
        return self.request("POST", path, **request)


@pytest.fixture(scope="module")
def model() -> elmo.Model:
    return elmo.load()


@pytest.fixture(scope="module")
def client(model: elmo.Model) -> Client:
    return Client(create_app(model, Settings()))


def ask(client: Client, path: str, headers: dict[str, str] | None = None, **request: Any) -> Any:
    answer = client.post(path, json=request, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def problem(answer: Any) -> str:
    """The message of an error, after a look at its shape."""
    content = answer.json()
    assert content.keys() == {"error"}
    assert content["error"].keys() == {"code", "message"}
    return str(content["error"]["message"])


class TestEmbed:
    @pytest.mark.parametrize("pool", [None, "mean", "max"])
    @pytest.mark.parametrize("layers", ["average", "all", "top", "mix", 0, [2, 0]])
    def test_the_vectors_are_those_of_the_library(
        self, client: Client, model: elmo.Model, layers: Any, pool: Any
    ) -> None:
        answer = ask(client, "/v1/embed", sentences=SENTENCES, layers=layers, pool=pool).json()
        packed = load_packed(ask(client, "/v1/embed", PACKED, sentences=SENTENCES, layers=layers, pool=pool).content)
        assert answer["model"] == "default"
        for i, vectors in enumerate(model.embed(SENTENCES, layers=layers, pool=pool)):
            np.testing.assert_allclose(packed[str(i)], vectors, atol=1e-6)
            read = np.array(answer["sentences"][i]["vectors"], np.float32).reshape(vectors.shape)
            assert np.array_equal(read, packed[str(i)])  # as text it loses nothing
        assert [one["tokens"] for one in answer["sentences"]][1:] == [SENTENCES[1], [], ["One"]]

    def test_half_precision_is_half_as_large(self, client: Client, model: elmo.Model) -> None:
        whole = ask(client, "/v1/embed", PACKED, sentences=["a b"]).content
        half = ask(client, "/v1/embed", PACKED, sentences=["a b"], dtype="float16").content
        assert load_packed(half)["0"].dtype == np.float16
        assert len(whole) - len(half) == 2 * 768 * 2
        np.testing.assert_allclose(load_packed(half)["0"], load_packed(whole)["0"], atol=1e-2)

    def test_what_is_packed_has_its_tokens_with_it(self, client: Client, tmp_path: Any) -> None:
        (tmp_path / "vectors").write_bytes(ask(client, "/v1/embed", PACKED, sentences=["a b", "c"]).content)
        with safe_open(tmp_path / "vectors", "np") as file:
            assert json.loads(file.metadata()["elmo"]) == {
                "model": "default",
                "tokens": [["a", "b"], ["c"]],
                "texts": [0, 1],
            }

    def test_raw_text_is_split_into_sentences(self, client: Client) -> None:
        given = ["I can't. Can you?", ["as", "is."]]
        found = ask(client, "/v1/embed", sentences=given, tokenize=True, pool="mean").json()["sentences"]
        assert [(one["text"], one["tokens"]) for one in found] == [
            (0, ["I", "ca", "n't", "."]),
            (0, ["Can", "you", "?"]),
            (1, ["as", "is."]),
        ]

    def test_no_sentence_is_no_error(self, client: Client) -> None:
        assert ask(client, "/v1/embed", sentences=[]).json()["sentences"] == []

    def test_a_large_answer_is_whole(self, client: Client) -> None:
        sentences = [["word"] * 200] * 3
        answer = ask(client, "/v1/embed", sentences=sentences, layers="all")
        assert "content-length" not in answer.headers  # it was sent while it was made
        assert [np.shape(one["vectors"]) for one in answer.json()["sentences"]] == [(3, 200, 768)] * 3


class TestPredictions:
    def test_neighbours(self, client: Client, model: elmo.Model) -> None:
        query = {"sentence": SENTENCES[0], "position": 4}
        answer = ask(client, "/v1/neighbours", queries=[query], sentences=SENTENCES[1:], k=3).json()["neighbours"]
        (expected,) = nearest(model.embedder(layers="top"), [Query(SENTENCES[0], 4)], SENTENCES[1:], 3)
        assert [(hit["position"], hit["sentence"]) for hit in answer[0]] == [
            (hit.position, hit.sentence) for hit in expected
        ]
        assert answer[0][0]["tokens"][answer[0][0]["position"]] == "bank"

    def test_substitutes(self, client: Client, model: elmo.Model) -> None:
        answer = ask(client, "/v1/substitutes", sentence=SENTENCES[0], position=4, k=4).json()["substitutes"]
        expected = model.substitutes(SENTENCES[0], 4, 4)
        assert [one["word"] for one in answer] == [one.word for one in expected]
        assert answer[0]["probability"] == pytest.approx(expected[0].probability, rel=1e-4)

    def test_scores(self, client: Client, model: elmo.Model) -> None:
        answer = ask(client, "/v1/score", sentences=SENTENCES).json()["sentences"]
        for one, expected in zip(answer, model.score(SENTENCES), strict=True):
            assert one["tokens"] == list(expected.tokens)
            np.testing.assert_allclose(one["forward"], expected.forward, atol=1e-3)
            assert one["perplexity"] == pytest.approx(expected.perplexity, rel=1e-3)

    def test_a_model_without_a_head_says_so(self, model_folder: Any) -> None:
        client = Client(create_app(elmo.load(model_folder), Settings()))
        for path, request in (
            ("/v1/score", {"sentences": ["a"]}),
            ("/v1/substitutes", {"sentence": "a", "position": 0}),
        ):
            answer = client.post(path, json=request)
            assert answer.status_code == 400
            assert "no language model head" in problem(answer)
        assert not client.get("/v1/models").json()["models"][0]["predicts_words"]


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "body", "status", "message"),
        [
            ("/v1/embed", b"{", 422, "JSON"),
            ("/v1/embed", b"", 422, "required"),
            ("/v1/embed", b"\xff\xfe", 422, "JSON"),
            ("/v1/embed", b"[" * 100_000, 400, "body"),
            ("/v1/embed", b'{"sentences": "one"}', 422, "sentences"),
            ("/v1/embed", b'{"sentences": ["\\ud800"]}', 422, "sentences"),
            ("/v1/embed", b'{"sentences": [], "\\ud800": 1}', 422, "unicode"),
            ("/v1/embed", b'{"sentences": [NaN]}', 422, "sentences"),
            ("/v1/embed", b'{"sentences": ["a"], "layer": 1}', 422, "layer"),
            ("/v1/embed", b'{"sentences": ["a"], "layers": 7}', 400, "from 0 to 2"),
            ("/v1/embed", b'{"sentences": ["a"], "layers": true}', 422, "layers"),
            ("/v1/embed", b'{"sentences": ["a"], "layers": [0, 1, 0]}', 422, "twice"),
            ("/v1/embed", b'{"sentences": ["a"], "pool": "min"}', 422, "pool"),
            ("/v1/substitutes", b'{"sentence": "a b", "position": 2}', 400, "position is 2"),
            ("/v1/substitutes", b'{"sentence": "", "position": 0}', 400, "empty"),
            ("/v1/neighbours", b'{"queries": [{"sentence": "a", "position": 1}], "sentences": []}', 400, "position"),
            ("/nowhere", b"{}", 404, "Not Found"),
            ("/healthz", b"{}", 405, "Not Allowed"),
        ],
    )
    def test_all_have_one_shape(self, client: Client, path: str, body: bytes, status: int, message: str) -> None:
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == status, answer.text
        assert message in problem(answer)

    @pytest.mark.parametrize(
        "body",
        [
            b'{"sentences": [%b]}' % b",".join([b"1"] * 100_000),
            b'{"sentences": [[%b]]}' % b",".join([b"1"] * 100_000),
            b'{"sentences": [], %b}' % b",".join(b'"%d": 1' % number for number in range(50_000)),
        ],
    )
    def test_of_many_mistakes_few_are_looked_for(self, body: bytes) -> None:
        with pytest.raises(ValidationError) as error:
            EmbedRequest.model_validate_json(body)
        assert error.value.error_count() <= 3

    def test_what_comes_with_a_question_that_has_no_body_is_dropped(self, client: Client) -> None:
        assert client.request("GET", "/healthz", content=b"x" * 2**21).status_code == 200

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            ({"sentences": ["a"] * 9}, "9 sentences"),
            ({"sentences": ["a " * 40]}, "40 tokens"),
            ({"sentences": ["a " * 12]}, "in one sentence"),
            ({"sentences": ["a " * 300], "tokenize": True}, "characters of raw text"),
            ({"sentences": ["Yes! " * 15], "tokenize": True}, "15 sentences"),
            ({"sentences": ["a" * 2000]}, "larger than 1,000 bytes"),
        ],
    )
    def test_what_is_too_large_says_how_large_it_may_be(
        self, model: elmo.Model, request_: dict[str, Any], message: str
    ) -> None:
        limits = Settings(max_sentences=8, max_tokens=32, max_length=10, max_body_bytes=1000)
        answer = Client(create_app(model, limits)).post("/v1/embed", json=request_)
        assert answer.status_code == 413
        assert message in problem(answer)

    def test_a_bug_is_logged_without_the_request(
        self, model: elmo.Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = create_app(model, Settings())

        async def broken(sentences: list[str]) -> None:
            raise RuntimeError(f"cannot do {sentences}")

        monkeypatch.setattr(app.state.work, "layers", broken)
        with caplog.at_level(logging.DEBUG, logger="elmo"):
            answer = Client(app).post("/v1/embed", json={"sentences": ["a private matter"]})
        assert answer.status_code == 500
        assert "private" not in caplog.text + answer.text
        assert "RuntimeError" in caplog.text
        assert "in broken" in caplog.text


@pytest.fixture(scope="module")
def locked(model: elmo.Model) -> Client:
    return Client(create_app(model, Settings(api_key=KEY)))


@pytest.fixture(scope="module")
def local(model: elmo.Model) -> Client:
    return Client(create_app(model, Settings(hosts=("localhost", "127.0.0.1", "::1", "elmo.example"))))


class TestWhoMayAsk:
    @pytest.mark.parametrize("headers", [{"X-API-Key": KEY}, {"Authorization": f"bearer {KEY}"}])
    def test_who_shows_the_key(self, locked: Client, headers: dict[str, str]) -> None:
        assert locked.get("/v1/models", headers=headers).status_code == 200

    @pytest.mark.parametrize("value", [b"", b"a key of some lengti", b"\xe9", KEY.encode() + b"x"])
    @pytest.mark.parametrize("name", ["X-API-Key", "Authorization"])
    def test_nobody_else(self, locked: Client, name: str, value: bytes) -> None:
        answer = locked.get("/v1/models", headers={name: value if name == "X-API-Key" else b"Bearer " + value})
        assert answer.status_code == 401
        assert "Authorization: Bearer KEY" in problem(answer)
        assert answer.headers["WWW-Authenticate"] == "Bearer"

    @pytest.mark.parametrize("path", ["/metrics", "/v1/embed", "/explorer/map", "/nowhere", "/explorer/pages"])
    def test_all_but_a_few_paths_are_locked(self, locked: Client, path: str) -> None:
        assert locked.get(path).status_code == 401

    @pytest.mark.parametrize("path", ["/healthz", "/", "/openapi.json", "/explorer/page/app.js"])
    def test_those_few_are_open_to_be_read(self, locked: Client, path: str) -> None:
        assert locked.get(path).status_code == 200
        assert locked.post(path).status_code == 401  # it would take a place

    @pytest.mark.parametrize("name", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "elmo.example."])
    def test_who_calls_the_server_by_a_name_of_its_own(self, local: Client, name: str) -> None:
        assert local.get("/v1/models", headers={"Host": name}).status_code == 200

    @pytest.mark.parametrize("name", ["evil.example:8000", "localhost.evil.example", "[::2]", "", ":8000"])
    def test_no_page_whose_own_name_leads_here(self, local: Client, name: str) -> None:
        for path in ("/v1/models", "/", "/healthz"):
            answer = local.get(path, headers={"Host": name})
            assert answer.status_code == 421
            assert "--allow-host NAME" in problem(answer)

    def test_pages_of_other_origins_only_if_they_are_named(self, model: elmo.Model, client: Client) -> None:
        named = Client(create_app(model, Settings(cors=("https://good.example",), api_key=KEY)))
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "X-API-Key"}
        for asked, origin, allowed in (
            (named, "https://good.example", "https://good.example"),
            (named, "https://bad.example", None),
            (client, "https://good.example", None),
        ):
            answer = asked.request("OPTIONS", "/v1/embed", headers=preflight | {"Origin": origin})
            assert answer.headers.get("Access-Control-Allow-Origin") == allowed
            answer = asked.get("/healthz", headers={"Origin": origin})
            assert answer.headers.get("Access-Control-Allow-Origin") == allowed


def test_metrics_count_by_path_and_status(model: elmo.Model) -> None:
    client = Client(create_app(model, Settings()))
    ask(client, "/v1/embed", sentences=["a b", "c"])
    client.post("/v1/embed", content=b"{")
    for number in range(20):
        client.get(f"/made-up/{number}")
    answer = client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = {}
    for line in answer.text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [\d.]+', line), line
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    assert samples['elmo_requests_total{path="/v1/embed",status="200"}'] == 1
    assert samples['elmo_requests_total{path="/v1/embed",status="422"}'] == 1
    assert samples['elmo_requests_total{path="other",status="404"}'] == 20
    assert samples["elmo_tokens_total"] == 3
    assert samples['elmo_request_seconds_bucket{path="/v1/embed",le="+Inf"}'] == 2
    assert samples["elmo_house_requests"] == samples["elmo_house_tokens"] == 0


def test_the_description_has_examples_that_work(client: Client) -> None:
    description = client.get("/openapi.json").json()
    for path in ("/v1/embed", "/v1/neighbours", "/v1/substitutes", "/v1/score"):
        body = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        examples = description["components"]["schemas"][body["$ref"].rpartition("/")[2]]["examples"]
        assert examples
        for example in examples:
            ask(client, path, **example)


@pytest.mark.parametrize(
    ("path", "mode"),
    [(path, GenerationMode.POSITIVE) for path in PATHS]
    + [(path, GenerationMode.NEGATIVE) for path in PATHS[:4]],  # the others take nothing that could be wrong
)
def test_no_request_that_the_description_allows_or_forbids_breaks_the_server(path: str, mode: GenerationMode) -> None:
    described = schemathesis.openapi.from_asgi("/openapi.json", create_app(drawn_model(), Settings(wait_ms=0)))
    (operation,) = described[path].values()

    @hypothesis_settings(max_examples=100, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case[Any]) -> None:
        answer = case.call()
        assert answer.status_code < 500
        if answer.status_code >= 400:
            problem(answer)

    check()


def test_a_name_may_be_given_as_a_browser_shows_it() -> None:
    names = ["elmo.example:8000", "Elmo.Example.", "[::2]:8000", "::2", "10.0.0.7:80"]
    assert [host_name(name) for name in names] == ["elmo.example", "elmo.example", "::2", "::2", "10.0.0.7"]
