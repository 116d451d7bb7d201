"""What the explorer page is told: maps, uses and comparisons are those of the library, within the server's limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import elmo
from conftest import run_elmo, small_options, write_model
from elmo.explore.projection import cosines, mixed
from elmo.explore.sample import held_out, uses_of
from elmo.serve.app import create_app
from elmo.serve.settings import Settings

TEXT = "We sat on the bank. The bank is closed."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> elmo.Model:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, small_options())
    return elmo.load(folder)


class Client:
    """Asks an application without a network."""

    def __init__(self, model: elmo.Model, settings: Settings) -> None:
        self._app = create_app(model, settings)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run(self._app.state.work.close())

    def get(self, path: str) -> Any:
        return asyncio.run(self._request("GET", path))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return asyncio.run(self._request("POST", path, json=body))

    async def _request(self, method: str, path: str, **kwargs: Any) -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://here") as client:
            return await client.request(method, path, **kwargs)


@pytest.fixture(scope="module")
def client(model: elmo.Model) -> Iterator[Client]:
    with Client(model, Settings()) as client:
        yield client


def asked(client: Client, what: str, **body: Any) -> Any:
    response = client.post(f"/explorer/{what}", body)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(client: Client, what: str, **body: Any) -> str:
    response = client.post(f"/explorer/{what}", body)
    assert response.status_code in (400, 413, 422), response.text
    return str(response.json()["error"]["message"])


def vectors(model: elmo.Model, uses: list[dict[str, Any]]) -> Any:
    embedded = model.embed([use["tokens"] for use in uses], layers="all")
    return np.stack([layers[:, use["position"]] for layers, use in zip(embedded, uses, strict=True)], axis=1)


class TestMap:
    def test_it_has_every_use_in_the_sample_and_a_point_for_each_on_every_plane(self, client: Client) -> None:
        found = asked(client, "map", word="spring")
        assert [use["tokens"] for use in found["uses"]] == [list(use.tokens) for use in uses_of("spring", held_out())]
        assert np.shape(found["planes"]) == (4, found["total"], 2)

    def test_sentences_of_ones_own_come_first(self, client: Client) -> None:
        found = asked(client, "map", word="Bank", text=TEXT)
        assert [(use["source"], use["tokens"][use["position"]]) for use in found["uses"][:2]] == [("yours", "bank")] * 2
        assert found["uses"][2]["source"] != "yours"

    def test_without_a_word_it_has_every_token_of_them(self, client: Client) -> None:
        found = asked(client, "map", text=TEXT)
        assert [use["tokens"][use["position"]] for use in found["uses"]] == [
            *["We", "sat", "on", "the", "bank", "."],
            *["The", "bank", "is", "closed", "."],
        ]

    @pytest.mark.parametrize("body", [{}, {"word": "zyzzyva"}, {"word": " ", "text": "\n \n"}])
    def test_of_nothing_there_is_an_empty_one(self, client: Client, body: dict[str, str]) -> None:
        assert asked(client, "map", **body) == {"uses": [], "total": 0, "planes": []}

    def test_of_a_frequent_word_it_has_as_many_uses_as_a_request_may_have_tokens(self, model: elmo.Model) -> None:
        with Client(model, Settings(max_tokens=500)) as client:
            found = asked(client, "map", word="the", text=TEXT)
        assert found["total"] > 1000
        assert 400 < sum(len(use["tokens"]) for use in found["uses"]) <= 500

    def test_it_obeys_every_limit_of_the_server(self, model: elmo.Model) -> None:
        with Client(model, Settings(max_sentences=12, max_length=20)) as client:
            uses = asked(client, "map", word="the")["uses"]
        assert len(uses) == 12
        assert max(len(use["tokens"]) for use in uses) <= 20

    def test_the_mix_moves_with_its_shares(self, client: Client) -> None:
        found = asked(client, "map", word="bank", shares=[0, 3, 0])
        assert found["planes"][3] == found["planes"][1] != found["planes"][2]

    @pytest.mark.parametrize("shares", [[1, 1], [0, 0, 0], [1, 1, -1], ["x", 1, 1]])
    def test_shares_that_are_none_are_refused(self, client: Client, shares: list[Any]) -> None:
        assert "shares" in refusal(client, "map", word="bank", shares=shares)


class TestUse:
    def test_its_cosines_are_those_of_the_vectors(self, client: Client, model: elmo.Model) -> None:
        uses = asked(client, "map", word="bank", text=TEXT)["uses"]
        found = asked(client, "use", word="bank", text=TEXT, shares=[1, 2, 1], index=1)
        layers = vectors(model, uses)
        for row, layer in zip(found["cosines"], [*layers, mixed(layers, [1, 2, 1])], strict=True):
            assert row == pytest.approx(cosines(layer[1, None], layer)[0].tolist(), abs=1e-4)

    def test_a_model_without_a_head_predicts_nothing(self, client: Client) -> None:
        assert asked(client, "use", word="bank", index=0)["predicted"] is None

    def test_one_that_is_not_on_the_map_is_refused(self, client: Client) -> None:
        assert "index is 40: 0 uses are on the map" in refusal(client, "use", word="zyzzyva", index=40)


class TestCompare:
    def test_two_sentences_are_compared_token_by_token(self, client: Client, model: elmo.Model) -> None:
        found = asked(client, "compare", first="We sat.", second="She sat down.")
        first, second = model.embed(["We sat .", "She sat down ."], layers="all")
        assert np.array(found["cosines"][:3]) == pytest.approx(
            np.stack([cosines(one, other) for one, other in zip(first, second, strict=True)]), abs=1e-4
        )

    def test_two_words_are_compared_by_their_uses_in_the_sample(self, client: Client) -> None:
        found = asked(client, "compare", first="bank", second="river")
        assert {use["tokens"][use["position"]].lower() for use in found["rows"]} == {"bank"}
        assert np.shape(found["cosines"]) == (4, 8, 8)

    def test_a_word_that_the_sample_lacks_stands_alone(self, client: Client) -> None:
        assert asked(client, "compare", first="zyzzyva", second="bank")["rows"][0]["tokens"] == ["zyzzyva"]

    def test_nothing_is_refused(self, client: Client) -> None:
        assert "nothing to compare" in refusal(client, "compare", first="", second="bank")


class TestFiles:
    def test_pages_may_load_from_this_server_alone(self, client: Client) -> None:
        for path in ("/", "/explorer/page/app.js", "/explorer/page/nothing.js"):
            policy = client.get(path).headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy

    @pytest.mark.parametrize("name", ["nothing.js", "../explorer.py", "..%2fexplorer.py", "%2e%2e/explorer.py", ""])
    def test_there_is_nothing_but_the_pages_files(self, client: Client, name: str) -> None:
        assert client.get(f"/explorer/page/{name}").status_code == 404

    def test_text_is_never_parsed_as_markup(self) -> None:
        scripts = list((Path(elmo.__file__).parent / "serve" / "page").glob("*.js"))
        assert len(scripts) > 3
        for script in scripts:
            for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
                assert name not in script.read_text(encoding="utf-8"), script.name


def test_a_folder_that_is_no_task_model_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    result = run_elmo("serve", "--task", tmp_path)
    assert result.returncode == 2
    assert b"is no task model" in result.stderr
