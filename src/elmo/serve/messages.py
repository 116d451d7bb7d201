"""What requests and answers are made of; FastAPI makes the OpenAPI description of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

_BANK = "We sat on the bank of the river ."
_MEMBERS = 32  # of an object


def _checked(text: str | list[str]) -> str | list[str]:
    """What can be written again: JSON can escape half a character, and UTF-8 has no bytes for it."""
    try:
        " ".join([text] if isinstance(text, str) else text).encode()
    except UnicodeEncodeError:
        raise ValueError("a surrogate without its other half is no text") from None
    return text


def _distinct(layers: list[int]) -> list[int]:
    """Layers, each once: repeated, they would make an answer many times what its tokens are counted for."""
    if len(set(layers)) < len(layers):
        raise ValueError("a layer is named twice")
    return layers


# A list ends with its first error: a megabyte of numbers where there should be text has a million of them, which take
# seconds and a gigabyte to put together.
Text = Annotated[
    str | Annotated[list[str], Field(fail_fast=True)],
    AfterValidator(_checked),
    Field(description="A list of tokens, or a string, which is split at white space.", examples=[_BANK]),
]
Sentences = Annotated[list[Text], Field(fail_fast=True, examples=[[_BANK, ["pre", "tokenised", "too"]]])]
Tokenize = Annotated[bool, Field(description="Strings are raw text: split them into sentences and words.")]
Layer = Annotated[int, Field(ge=0, le=1000)]
SomeLayers = Annotated[
    list[Layer], Field(min_length=1, max_length=16, json_schema_extra={"uniqueItems": True}), AfterValidator(_distinct)
]
Count = Annotated[int, Field(ge=1, le=1000, description="How many, at most.")]
Position = Annotated[int, Field(ge=0, le=2**31, description="Which token, from 0.", examples=[4])]


def _config(**example: JsonValue) -> ConfigDict:
    """How a request is read, and one that works."""
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


class Request(BaseModel):
    """What all that is read has in common."""

    @model_validator(mode="before")
    @classmethod
    def _few_members(cls, given: Any) -> Any:
        """Each member that is not expected would be an error of its own."""
        if isinstance(given, dict) and len(given) > _MEMBERS:
            raise ValueError(f"an object of {len(given):,} members: at most {_MEMBERS} can be meant")
        return given


class EmbedRequest(Request):
    """What to embed; the names are those of `model.embed`."""

    model_config = _config(sentences=[_BANK, ["pre", "tokenised", "too"]], layers="average", pool="mean")

    sentences: Sentences
    tokenize: Tokenize = False
    layers: Annotated[
        Literal["all", "average", "top", "mix"] | Layer | SomeLayers,
        Field(description="A name, a layer's number, or a list of numbers.", examples=["average"]),
    ] = "average"
    pool: Annotated[
        Literal["mean", "max"] | None, Field(description="One vector a sentence instead of one a token.")
    ] = None
    dtype: Literal["float32", "float16"] = "float32"


class Query(Request):
    """A word in its sentence."""

    model_config = _config(sentence=_BANK, position=4)

    sentence: Text
    position: Position


class NeighboursRequest(Request):
    """Words in their sentences, and the sentences in which to look for their like."""

    model_config = _config(
        queries=[{"sentence": _BANK, "position": 4}], sentences=["The bank raised its rates .", "A lake has a shore ."]
    )

    queries: Annotated[list[Query], Field(min_length=1, max_length=64)]
    sentences: Sentences
    tokenize: Tokenize = False
    k: Count = 5
    layers: Annotated[Literal["average", "top", "mix"] | Layer, Field(examples=["top"])] = "top"
    same_word: Annotated[bool, Field(description="Only the same word, in whatever case.")] = False


class SubstitutesRequest(Request):
    """A place in a sentence."""

    model_config = _config(sentence=_BANK, position=4, k=5)

    sentence: Text
    position: Position
    k: Count = 10


class ScoreRequest(Request):
    """What to score."""

    model_config = _config(sentences=[_BANK])

    sentences: Sentences
    tokenize: Tokenize = False


Numbers = list[float] | list[list[float]] | list[list[list[float]]]


class Embedded(BaseModel):
    """A sentence and its vectors."""

    text: Annotated[int, Field(description="Which of the request's sentences it is, or is of.")]
    tokens: list[str]
    vectors: Annotated[
        Numbers,
        Field(description="(tokens, dim); (layers, tokens, dim) of several layers; (dim,), (layers, dim) pooled."),
    ]


class EmbedAnswer(BaseModel):
    """The vectors, in order."""

    model: str
    sentences: list[Embedded]


class Neighbour(BaseModel):
    """A token that was found."""

    score: Annotated[float, Field(description="Cosine of its vector and the query's.")]
    tokens: list[str]
    position: int
    sentence: Annotated[int, Field(description="Which of the sentences that were searched, from 0.")]


class NeighboursAnswer(BaseModel):
    """For each query the nearest tokens, best first."""

    model: str
    neighbours: list[list[Neighbour]]


class Substitute(BaseModel):
    """A word that could stand there."""

    word: str
    probability: Annotated[float, Field(description="By both directions together.")]
    forward: Annotated[float, Field(description="ln p given the words before.")]
    backward: Annotated[float, Field(description="ln p given the words behind.")]


class SubstitutesAnswer(BaseModel):
    """The words, best first."""

    model: str
    substitutes: list[Substitute]


class Scored(BaseModel):
    """ln p of each word and, last, of the sentence's end."""

    text: int
    tokens: list[str]
    forward: list[float]
    backward: list[float]
    unknown: Annotated[list[bool], Field(description="Words outside the vocabulary, predicted as <UNK>.")]
    total: Annotated[float, Field(description="ln p of the sentence, mean of both directions.")]
    perplexity: Annotated[float | None, Field(description="null where it is too large for a number.")]


class ScoreAnswer(BaseModel):
    """The scores, in order."""

    model: str
    sentences: list[Scored]


class ModelFacts(BaseModel):
    """What a model is and can do."""

    name: str
    parameters: int
    layers: int
    dim: int
    precision: str
    predicts_words: Annotated[bool, Field(description="Whether it has its head, for substitutes and scores.")]


class ModelsAnswer(BaseModel):
    """The models that are served: one."""

    models: list[ModelFacts]


class Health(BaseModel):
    """That the server is there."""

    status: Literal["ok"]


class Problem(BaseModel):
    """What went wrong."""

    code: Annotated[str, Field(examples=["too_large"])]
    message: Annotated[str, Field(description="What was given, what is allowed, what to do.")]


class Error(BaseModel):
    """The shape of every error."""

    error: Problem
