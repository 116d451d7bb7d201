"""Deep contextualized word representations (ELMo) of sentences, over HTTP.

Requests are JSON. `/v1/embed` answers in JSON or, with `Accept: application/octet-stream`, in the safetensors format:
one array a sentence, named "0", "1" and so on, and in its metadata, under "elmo", JSON with `model`, `tokens` and
`texts`. Every error is `{"error": {"code": ..., "message": ...}}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi.responses import PlainTextResponse

from elmo.api import Model
from elmo.embed import EmbedSettings, as_tokens
from elmo.explore.neighbours import Neighbour, Query, nearest
from elmo.lm.scores import ScoreOptions, Scores, head_of
from elmo.model import ScalarMix, parameter_count
from elmo.serve import messages
from elmo.serve.metrics import CONTENT_TYPE, Metrics
from elmo.serve.refused import Refused
from elmo.serve.vectors import Pieces, json_pieces, packed, reduced
from elmo.serve.work import Work, tokenizer

PATHS = ("/v1/embed", "/v1/neighbours", "/v1/substitutes", "/v1/score", "/v1/models", "/healthz", "/metrics")

_PACKED = "application/octet-stream"
_CHARACTERS_A_TOKEN = 16  # of raw text, at most: three times what English has
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": messages.Error, "description": description}
    for status, description in (
        (400, "Cannot be done: the message says why."),
        (401, "The server wants its key."),
        (408, "The request came in too slowly."),
        (413, "The body, or the sentences or tokens in it, are beyond the limits."),
        (422, "Not what is expected: the message says where."),
        (429, "The house is full; Retry-After says when to try again."),
        (503, "Not computed in time, or the server is ending."),
    )
}


def routes(model: Model, work: Work, metrics: Metrics) -> APIRouter:
    """The routes of the interface for programs."""
    router = APIRouter(responses=_ERRORS)
    name = work.settings.name
    mix = model.mix or ScalarMix(model.config.n_layers)
    scoring: ScoreOptions = {"precision": work.settings.precision}

    def score_all(sentences: list[list[str]]) -> list[Scores]:
        return model.score(sentences, **scoring)

    @router.post(
        "/v1/embed",
        response_model=messages.EmbedAnswer,
        responses={200: {"content": {_PACKED: {"schema": {"type": "string", "format": "binary"}}}}},
    )
    async def embed(request: messages.EmbedRequest, accept: Annotated[str, Header()] = "*/*") -> Response:
        """Vectors of sentences, computed together with those of other requests."""
        settings = EmbedSettings(layers=request.layers, pool=request.pool, dtype=request.dtype)
        settings.layer_numbers(model.config.n_layers)
        texts, sentences = await _split(request.sentences, request.tokenize, work)
        arrays = [reduced(layers_LTD, settings, mix) for layers_LTD in await work.layers(sentences)]
        if _PACKED in accept:
            about: dict[str, object] = {"model": name, "tokens": sentences, "texts": texts}
            return Pieces(packed(arrays, about), _PACKED)
        items = (
            {"text": text, "tokens": tokens, "vectors": vectors}
            for text, tokens, vectors in zip(texts, sentences, arrays, strict=True)
        )
        return Pieces(json_pieces({"model": name}, "sentences", items), "application/json")

    @router.post("/v1/neighbours", response_model=messages.NeighboursAnswer)
    async def neighbours(request: messages.NeighboursRequest) -> Response:
        """The tokens of some sentences that are nearest to words in theirs, the best of each sentence."""
        queries = [Query(query.sentence, query.position) for query in request.queries]
        _, sentences = await _split(request.sentences, request.tokenize, work)
        read = [*(list(query.tokens) for query in queries), *sentences]
        work.check(read)

        def search() -> list[list[Neighbour]]:
            embedder = model.embedder(layers=request.layers, precision=work.settings.precision)
            return nearest(embedder, queries, sentences, request.k, same_word=request.same_word)

        found = await work.run(search, sum(map(len, read)))
        return _json({"model": name}, "neighbours", [[asdict(hit) for hit in hits] for hits in found])

    @router.post("/v1/substitutes", response_model=messages.SubstitutesAnswer)
    async def substitutes(request: messages.SubstitutesRequest) -> Response:
        """What else could stand in a place, by the language model."""
        tokens = as_tokens(request.sentence)
        work.check([tokens])
        head_of(model)
        found = await work.run(lambda: model.substitutes(tokens, request.position, request.k, **scoring), len(tokens))
        return _json({"model": name}, "substitutes", [asdict(one) for one in found])

    @router.post("/v1/score", response_model=messages.ScoreAnswer)
    async def score(request: messages.ScoreRequest) -> Response:
        """How likely each word is, given all before it and given all behind it."""
        texts, sentences = await _split(request.sentences, request.tokenize, work)
        head_of(model)
        found = await work.each(score_all, sentences)
        scored = [
            {"text": text} | asdict(one) | {"total": one.total, "perplexity": one.perplexity}
            for text, one in zip(texts, found, strict=True)
        ]
        return _json({"model": name}, "sentences", scored)

    @router.get("/v1/models")
    async def models() -> messages.ModelsAnswer:
        """What is served."""
        facts = messages.ModelFacts(
            name=name,
            parameters=parameter_count(model.config),
            layers=model.config.n_layers,
            dim=model.config.dim,
            precision=work.precision,
            predicts_words=model.head is not None,
        )
        return messages.ModelsAnswer(models=[facts])

    @router.get("/healthz")
    async def healthz() -> messages.Health:
        """That the server is there; it needs no key."""
        return messages.Health(status="ok")

    @router.get("/metrics", response_class=PlainTextResponse)
    async def counters() -> Response:
        """Counters in the text format of Prometheus."""
        return Response(metrics.text(*work.load), media_type=CONTENT_TYPE)

    return router


async def _split(given: Sequence[str | list[str]], tokenize: bool, work: Work) -> tuple[list[int], list[list[str]]]:
    """Sentences as tokens, and which of those that were given each is of."""
    if tokenize:
        # Before it is tokenized, for that takes time.
        limit = _CHARACTERS_A_TOKEN * work.settings.max_tokens
        if (size := sum(len(text) for text in given if isinstance(text, str))) > limit:
            raise Refused(413, "too_large", f"{size:,} characters of raw text: at most {limit:,} are allowed")
        texts, sentences = await asyncio.to_thread(_tokenized, given)
    else:
        texts, sentences = list(range(len(given))), [as_tokens(sentence) for sentence in given]
    work.check(sentences)
    return texts, sentences


def _tokenized(given: Sequence[str | list[str]]) -> tuple[list[int], list[list[str]]]:
    texts, sentences = [], []
    for number, text in enumerate(given):
        found = [sentence.tokens for sentence in tokenizer()(text)] if isinstance(text, str) else [text]
        texts += [number] * len(found)
        sentences += found
    return texts, sentences


def _json(head: dict[str, object], name: str, items: Any) -> Response:
    return Pieces(json_pieces(head, name, iter(items)), "application/json")
