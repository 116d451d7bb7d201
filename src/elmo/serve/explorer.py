"""The explorer: a page that shows how a model sees words, and what the page asks the server.

`/` is the page; `/explorer/page/...` its files, from a list that is read once, so that no path comes from a request;
`/explorer/about`, `map`, `use` and `compare` answer its questions. Nothing is kept between requests but the vectors of
the last words that were asked for.

Shapes: N uses of a word, L layers, D width of a layer; answers have L + 1 rows, the last of which is the mix.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Response
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from elmo.api import Model
from elmo.engine import Precision
from elmo.errors import ElmoError, MissingExtraError
from elmo.explore.projection import Numbers, cosines, mixed, plane, turned
from elmo.explore.sample import WORDS, Sourced, Use, held_out, spread, uses_of
from elmo.lm.scores import Likeliest, Scorer, head_of
from elmo.serve.settings import Settings
from elmo.serve.work import Work, tokenizer
from elmo.vocab import SPECIAL_WORDS, Vocabulary

USES_SHOWN = 150
USES_COMPARED = 8
WORDS_KEPT = 16  # whose vectors are kept: 2 MB each at most, at the original size
CANDIDATES = 6
YOURS = "yours"
"""The source of what was typed into the page."""

# Scripts, styles and requests of this server alone, and no string is ever made into markup.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

Text = Annotated[str, Field(max_length=4000)]
Shares = Annotated[list[Annotated[float, Field(ge=0, le=1e6)]] | None, Field(max_length=64)]
"""What each layer weighs in the mix; the model's own mix, or all alike, if not given."""


class MapAsked(BaseModel):
    """A word in the sample and in sentences of one's own; without a word, every token of those."""

    word: Annotated[str, Field(max_length=100)] = ""
    text: Text = ""
    shares: Shares = None


class UseAsked(MapAsked):
    """One of the uses on a map."""

    index: Annotated[int, Field(ge=0, lt=USES_SHOWN)]


class CompareAsked(BaseModel):
    """Two sentences, or two words."""

    first: Text
    second: Text
    shares: Shares = None


@dataclass(frozen=True)
class Found:
    """Uses on a map, and their vectors."""

    uses: list[Use]
    total: int
    """How many there are, of which the uses are some."""
    layers: NDArray[np.float32]
    """`(L, N, D)`."""


class Explorer:
    """Answers to what the page asks. All that takes time goes through `work`."""

    def __init__(self, model: Model, work: Work) -> None:
        """Take a model, and what runs it."""
        self._model = model
        self._work = work
        self._kept: OrderedDict[tuple[str, str], Found] = OrderedDict()

    async def about(self) -> dict[str, Any]:
        """What the page says of the model and the sample, and what tasks have learned."""
        config = self._model.config
        return {
            "layers": config.n_layers,
            "dim": config.dim,
            "sentences": len(held_out()),
            "words": WORDS,
            "shares": self._shares(None),
            "tasks": [asdict(one) for one in self._work.settings.tasks],
        }

    async def map(self, asked: MapAsked) -> dict[str, Any]:
        """Uses of a word, and a point for each on the plane of each layer and of the mix."""
        found, shares = await self._find(asked), self._shares(asked.shares)
        planes = await self._work.run(lambda: _planes(found.layers, shares)) if found.uses else []
        return {
            "uses": [asdict(use) for use in found.uses],
            "total": found.total,
            "planes": [_rounded(points) for points in planes],
        }

    async def use(self, asked: UseAsked) -> dict[str, Any]:
        """How alike the uses are to one of them, by layer, and what each direction would put in its place."""
        found, shares = await self._find(asked), self._shares(asked.shares)
        if asked.index >= len(found.uses):
            raise ElmoError(f"index is {asked.index}: {len(found.uses)} uses are on the map, numbered from 0")
        use, precision = found.uses[asked.index], self._work.settings.precision
        layers = _with_mix(found.layers, shares)
        alike = [cosines(layer_ND[asked.index, None], layer_ND)[0] for layer_ND in layers]
        predicted = None
        if self._model.head is not None:
            predicted = await self._work.run(lambda: _predicted(self._model, use, precision), len(use.tokens))
        return {"cosines": [_rounded(row) for row in alike], "predicted": predicted}

    async def compare(self, asked: CompareAsked) -> dict[str, Any]:
        """Every token of one sentence with every one of another; of a word alone, its uses in the sample."""
        shares = self._shares(asked.shares)
        rows, columns = [await asyncio.to_thread(_compared, text) for text in (asked.first, asked.second)]
        first_LND, second_LMD = await self._vectors(rows), await self._vectors(columns)
        return {
            "rows": [asdict(use) for use in rows],
            "columns": [asdict(use) for use in columns],
            "cosines": await self._work.run(lambda: _matrices(first_LND, second_LMD, shares)),
        }

    async def _find(self, asked: MapAsked) -> Found:
        key = asked.word.strip(), asked.text.strip()
        if key not in self._kept:
            uses, total = await asyncio.to_thread(_uses, *key, self._work.settings)
            self._kept[key] = Found(uses, total, await self._vectors(uses))
            while len(self._kept) > WORDS_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    async def _vectors(self, uses: Sequence[Use]) -> NDArray[np.float32]:
        """`(L, N, D)`; each sentence is embedded once, however many of its tokens are wanted."""
        if not uses:
            return np.empty((self._model.config.n_layers, 0, self._model.config.dim), np.float32)
        sentences = _sentences(uses)
        layers = dict(zip(sentences, await self._work.layers([list(tokens) for tokens in sentences]), strict=True))
        return np.stack([layers[use.tokens][:, use.position] for use in uses], axis=1)

    def _shares(self, asked: Sequence[float] | None) -> list[float]:
        if asked is not None:
            return list(asked)
        if self._model.mix is not None:
            return self._model.mix.weights.detach().softmax(dim=0).tolist()
        return [1 / self._model.config.n_layers] * self._model.config.n_layers


def routes(model: Model, work: Work) -> APIRouter:
    """The page, its files and its questions.

    Args:
        model: what is looked at.
        work: what runs it.
    """
    router, explorer = APIRouter(include_in_schema=False), Explorer(model, work)
    files = _files()

    @router.get("/")
    @router.get("/explorer/page/{name}")
    async def page(name: str = "index.html") -> Response:
        if name not in files:
            return Response(status_code=404, headers=HEADERS)
        return Response(files[name], media_type=_TYPES[Path(name).suffix], headers=HEADERS)

    router.get("/explorer/about")(explorer.about)
    router.post("/explorer/map")(explorer.map)
    router.post("/explorer/use")(explorer.use)
    router.post("/explorer/compare")(explorer.compare)
    return router


def _files() -> dict[str, bytes]:
    folder = resources.files("elmo") / "serve" / "page"
    return {file.name: file.read_bytes() for file in folder.iterdir() if Path(file.name).suffix in _TYPES}


def _uses(word: str, text: str, limits: Settings) -> tuple[list[Use], int]:
    """What goes on a map, and how many uses there are: first those in the user's text, then some of the sample's."""
    own, most = _split(text), min(USES_SHOWN, limits.max_sentences)
    mine, others = (uses_of(word, own), uses_of(word, held_out())) if word else (_every_token(own), [])
    first, short = mine[:most], [use for use in others if len(use.tokens) <= limits.max_length]
    shown = [*first, *spread(short, most - len(first))]
    while len(shown) > len(first) and sum(map(len, _sentences(shown))) > limits.max_tokens:
        shown = [*first, *spread(short, len(shown) - len(first) - 1)]
    return shown, len(mine) + len(others)


def _compared(text: str) -> list[Use]:
    sentences = _split(text)
    if not sentences:
        raise ElmoError("there is nothing to compare: give a word or a sentence on each side")
    if len(sentences) == 1 and len(sentences[0].tokens) == 1:
        return spread(uses_of(sentences[0].tokens[0], held_out()), USES_COMPARED) or _every_token(sentences)
    return _every_token(sentences)[:USES_SHOWN]


def _split(text: str) -> list[Sourced]:
    """Sentences of raw text; of lines and white space where there is no tokenizer."""
    lines = text.splitlines()
    try:
        sentences = [sentence.tokens for line in lines for sentence in tokenizer()(line)] if lines else []
    except MissingExtraError:
        sentences = [line.split() for line in lines]
    return [Sourced(YOURS, tuple(tokens)) for tokens in sentences if tokens]


def _sentences(uses: Sequence[Use]) -> list[tuple[str, ...]]:
    return list(dict.fromkeys(use.tokens for use in uses))


def _every_token(sentences: Sequence[Sourced]) -> list[Use]:
    return [Use(one.source, one.tokens, position) for one in sentences for position in range(len(one.tokens))]


def _with_mix(layers_LND: NDArray[np.float32], shares: Sequence[float]) -> list[NDArray[Any]]:
    return [*layers_LND, mixed(layers_LND, shares)]


def _planes(layers_LND: NDArray[np.float32], shares: Sequence[float]) -> list[Numbers]:
    """A plane a layer and one of the mix, each turned to that of the top layer."""
    top = plane(layers_LND[-1])
    return [turned(plane(layer_ND), top) for layer_ND in _with_mix(layers_LND, shares)]


def _matrices(first_LND: NDArray[np.float32], second_LMD: NDArray[np.float32], shares: Sequence[float]) -> list[Any]:
    """`(L + 1, N, M)`."""
    pairs = zip(_with_mix(first_LND, shares), _with_mix(second_LMD, shares), strict=True)
    return [_rounded(cosines(first, second)) for first, second in pairs]


def _predicted(model: Model, use: Use, precision: Precision) -> dict[str, list[dict[str, Any]]]:
    """The likeliest words by what stands before, by what stands behind, and by both."""
    head, vocab = head_of(model)
    scorer = Scorer(model.embedder(layers="top", batch_size=1, precision=precision), head, vocab)
    forward, backward = scorer.likeliest(list(use.tokens), CANDIDATES, without=SPECIAL_WORDS)
    both = model.substitutes(list(use.tokens), use.position, CANDIDATES, precision=precision)
    return {
        "forward": _candidates(forward, use.position, vocab),
        "backward": _candidates(backward, use.position, vocab),
        "both": [{"word": one.word, "probability": round(one.probability, 4)} for one in both],
    }


def _candidates(likeliest: Likeliest, position: int, vocab: Vocabulary) -> list[dict[str, Any]]:
    pairs = zip(likeliest.ids[position].tolist(), np.exp(likeliest.log_probs[position]).tolist(), strict=True)
    return [{"word": vocab.words[number], "probability": round(share, 4)} for number, share in pairs]


def _rounded(numbers: Numbers) -> Any:
    """Lists of numbers with as many digits as can be seen."""
    return np.round(numbers, 4).tolist()
