"""spaCy: a pipeline component that gives documents their ELMo vectors (`elmo[spacy]`).

    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo")
    doc = nlp("We sat on the bank. The bank raised its rates.")
    doc._.elmo.shape, doc[4].similarity(doc[7])

`doc._.elmo` has a row for each token of spaCy's, `(tokens, dim)`, or `(layers, tokens, dim)` for several layers.
`vector`, `has_vector` and `similarity` of documents, spans and tokens are of these rows: a span or a document has the
mean over its words, several layers the mean over them.

The model reads what spaCy's tokenizer found. A token of white space has no vector: the model does not see it, and its
row is zeros. A token with white space inside it (`New York`, by `merge_entities`) is read as its words, and has the
mean of theirs. Each sentence is read by itself where the component stands behind one that finds sentences; without
one, the whole document is read as one sentence.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from elmo.api import Model, dtype_of, is_embedded, load, save
from elmo.embed import Embedder, EmbedSettings, Vectors
from elmo.errors import ElmoError, MissingExtraError
from elmo.formats.native import is_ours

try:
    import srsly
    from spacy.language import Language
    from spacy.pipeline import Pipe
    from spacy.tokens import Doc, Span, Token
    from spacy.util import minibatch
except ImportError as error:
    raise MissingExtraError("The spaCy component", "spacy") from error

_MODEL = "model"  # its folder within the component's

if not Doc.has_extension("elmo"):
    Doc.set_extension("elmo", default=None)


class ElmoComponent(Pipe):
    """Gives documents their vectors. `nlp.add_pipe("elmo", config={...})` makes one.

    The model is loaded when the first document comes: where a pipeline is read from a folder, its own model takes the
    place of the one that the settings name, which need not be there any more.
    """

    def __init__(
        self,
        name: str = "elmo",
        *,
        model: str | None = None,
        device: str | None = None,
        settings: EmbedSettings | None = None,
    ) -> None:
        """Refuse settings that give no vector a token.

        Args:
            name: of the component in its pipeline.
            model: a path that `elmo.load` takes; None for the embedded model.
            device: where to compute.
            settings: those of the embedder; a document depends on no other, so the state cannot be carried.
        """
        self.name = name
        self.settings = settings or EmbedSettings()
        if self.settings.pool is not None or self.settings.state == "carry":
            raise ElmoError("the spaCy component gives a vector a token, from a zero or warm state: no pool, no carry")
        self._path = model
        self._device = device
        self._model: Model | None = None
        self._embedded = is_embedded(model)

    def loaded(self) -> Model:
        """The model, loaded from now on.

        A method, and not called `model`: spaCy asks each component it adds for an attribute of that name, which must
        not load a model that is not needed yet, or is not there any more.
        """
        if self._model is None:
            self._model = load(self._path)
        return self._model

    def __call__(self, doc: Doc) -> Doc:
        """Give one document its vectors."""
        self._annotate([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Give documents their vectors, a batch at a time."""
        batches: Iterator[list[Doc]] = minibatch(stream, size=batch_size)
        for docs in batches:
            try:
                self._annotate(docs)
            except Exception as error:  # what is to be done about it is the pipeline's to say
                self.get_error_handler()(self.name, self, docs, error)
            else:
                yield from docs

    def _annotate(self, docs: Sequence[Doc]) -> None:
        embedder = self._embedder()
        sentences = [[[token.text.split() for token in span] for span in _sentences(doc)] for doc in docs]
        vectors = iter(embedder.embed([[*chain.from_iterable(words)] for spans in sentences for words in spans]))
        nothing = embedder.embed([[]])
        for doc, spans in zip(docs, sentences, strict=True):
            doc._.elmo = np.concatenate([_by_token(next(vectors), words) for words in spans] or nothing, axis=-2)
            add_hooks(doc)

    def _embedder(self) -> Embedder:
        return self.loaded().embedder(device=self._device, **asdict(self.settings))

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """Write the model into the component's folder, in place of what was there; none if it is the embedded one."""
        Path(path).mkdir(parents=True, exist_ok=True)
        if self._embedded and (Path(path) / _MODEL).exists():
            shutil.rmtree(Path(path) / _MODEL)
        elif not self._embedded:
            save(self.loaded(), Path(path) / _MODEL, dtype=dtype_of(self.loaded()), overwrite=True)

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> ElmoComponent:
        """Take the model of a folder that `to_disk` has filled; one without a model has the embedded one."""
        folder = Path(path) / _MODEL
        if folder.exists():
            self._model, self._embedded = load(folder), False
        elif folder.parent.exists():
            self._path, self._model, self._embedded = None, None, True
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """The model's files by their names; none of the embedded one."""
        with TemporaryDirectory() as folder:
            self.to_disk(folder)
            files = {path.name: path.read_bytes() for path in Path(folder).glob(f"{_MODEL}/*")}
        return bytes(srsly.msgpack_dumps(files))

    def from_bytes(self, data: bytes, *, exclude: Iterable[str] = ()) -> ElmoComponent:
        """Take the model of what `to_bytes` made."""
        files: dict[str, bytes] = srsly.msgpack_loads(data)
        with TemporaryDirectory() as folder:
            if files:
                (Path(folder) / _MODEL).mkdir()
            for name, content in files.items():
                if not is_ours(name):
                    raise ElmoError(f"the component's bytes hold a file {name!r:.80}, which is no part of a model")
                (Path(folder) / _MODEL / name).write_bytes(content)
            self.from_disk(folder)
            if files:
                self.loaded().bilm  # noqa: B018 - into memory, before the file goes
        return self


@Language.factory(
    "elmo",
    assigns=["doc._.elmo"],
    default_config={
        "model": None,
        "layers": "average",
        "precision": "fp32",
        "state": "zero",
        "batch_tokens": None,
        "device": None,
    },
)
def make_component(
    nlp: Language,
    name: str,
    model: str | None,
    layers: str | int | list[int],
    precision: str,
    state: str,
    batch_tokens: int | None,
    device: str | None,
) -> ElmoComponent:
    """The component from its part of a pipeline's configuration: the fields of `EmbedSettings`, a path, a device."""
    settings: Any = {"layers": layers, "precision": precision, "state": state, "batch_tokens": batch_tokens}
    return ElmoComponent(name, model=model, device=device, settings=EmbedSettings(**settings))


def add_hooks(doc: Doc) -> Doc:
    """Have `vector`, `has_vector` and `similarity` come from `doc._.elmo`.

    The component does so. spaCy stores no hooks: a document that was read from bytes, or that comes from one of
    several processes, has its `doc._.elmo`, and needs them again.
    """
    hooks: dict[str, Callable[..., Any]] = {"vector": _vector, "has_vector": _has_vector, "similarity": _similarity}
    for place in (doc.user_hooks, doc.user_span_hooks, doc.user_token_hooks):
        place.update(hooks)
    return doc


def _sentences(doc: Doc) -> list[Span]:
    if len(doc) == 0:
        return []
    return list(doc.sents) if doc.has_annotation("SENT_START") else [doc[:]]


def _by_token(vectors: Vectors, tokens: Sequence[Sequence[str]]) -> Vectors:
    """Rows for tokens `(..., T, D)` from those for the words that they are made of `(..., W, D)`."""
    if all(len(words) == 1 for words in tokens):
        return vectors
    rows = np.zeros((*vectors.shape[:-2], len(tokens), vectors.shape[-1]), dtype=vectors.dtype)
    start = 0
    for place, words in enumerate(tokens):
        if words:
            rows[..., place, :] = vectors[..., start : start + len(words), :].mean(axis=-2)
        start += len(words)
    return rows


def _vector(item: Doc | Span | Token) -> Vectors:
    doc, places = _words(item)
    rows = doc._.elmo
    if rows is None or rows.shape[-2] != len(doc):
        found = "no vectors" if rows is None else f"vectors of {rows.shape[-2]}"
        raise ElmoError(
            f"the document has {len(doc)} tokens and {found}: it was cut or its tokens were changed behind the "
            "component; give it to the component again"
        )
    rows = rows if rows.ndim == 2 else rows.mean(axis=0)
    vector: Vectors = rows[places].mean(axis=0) if places else np.zeros_like(rows, shape=rows.shape[1])
    return vector


def _has_vector(item: Doc | Span | Token) -> bool:
    return bool(_words(item)[1])


def _similarity(item: Doc | Span | Token, other: Any) -> float:
    """Cosine; 0 with what has no vector."""
    ours, theirs = np.asarray(item.vector), np.asarray(other.vector)
    if len(theirs) != len(ours):
        raise ElmoError(
            f"vectors of {len(ours)} and {len(theirs)} numbers cannot be compared: give both to one pipeline"
        )
    lengths = float(np.linalg.norm(ours)) * float(np.linalg.norm(theirs))
    return float(ours @ theirs) / lengths if lengths else 0.0


def _words(item: Doc | Span | Token) -> tuple[Doc, list[int]]:
    """The document, and which of its tokens are words of an item."""
    if isinstance(item, Token):
        return item.doc, [item.i] if not item.is_space else []
    doc = item if isinstance(item, Doc) else item.doc
    return doc, [token.i for token in item if not token.is_space]
