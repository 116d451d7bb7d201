"""`elmo serve`: a model over HTTP, with a page to explore it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from elmo.errors import ElmoError, MissingExtraError
from elmo.options import OptionsOption, VocabOption

_KEY = "ELMO_API_KEY"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The embedded model if not given.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    precision: Annotated[str, typer.Option(help="fp32 (the published numbers), bf16, int8 or auto.")] = "fp32",
    batch_tokens: Annotated[int, typer.Option(help="Tokens computed together.")] = 2048,
    wait_ms: Annotated[float, typer.Option(help="How long a request waits for others to join its batch.")] = 2.0,
    max_body_bytes: Annotated[int, typer.Option(help="Of a request; more is answered with 413.")] = 2**20,
    max_sentences: Annotated[int, typer.Option(help="Of a request; more is answered with 413.")] = 256,
    max_tokens: Annotated[int, typer.Option(help="Of a request; more is answered with 413.")] = 4096,
    max_length: Annotated[int, typer.Option(help="Tokens of a sentence; more is answered with 413.")] = 512,
    max_requests: Annotated[int, typer.Option(help="In the house; beyond it they are answered with 429.")] = 256,
    max_house_tokens: Annotated[int, typer.Option(help="Of all requests in the house; beyond it, 429.")] = 2**15,
    timeout: Annotated[float, typer.Option(help="Seconds to wait and compute; then the answer is 503.")] = 30.0,
    body_timeout: Annotated[float, typer.Option(help="Seconds for a request to come in; then it is 408.")] = 10.0,
    api_key_file: Annotated[
        Path | None, typer.Option(help=f"File with the key that clients must show; or set {_KEY}.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Answer to this name and those of loopback only; repeat for several."),
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Let pages of this origin ask; repeat for several.")
    ] = None,
    task: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Task model whose layer weights the page shows; repeat for several."),
    ] = None,
    options: OptionsOption = None,
    vocab: VocabOption = None,
) -> None:
    """Serve a model over HTTP: vectors, neighbours, substitutes, scores, and a page to explore it."""
    key = _key(api_key_file)
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import orjson  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("elmo serve", "serve") from error
    from elmo.command_io import load_model
    from elmo.serve.app import create_app
    from elmo.serve.server import listen, run
    from elmo.serve.settings import Settings
    from elmo.tasks.saved import read_learned

    chosen: Any = precision
    settings = Settings(
        name="default" if model is None else Path(model).resolve().name,
        precision=chosen,
        batch_tokens=batch_tokens,
        wait_ms=wait_ms,
        max_body_bytes=max_body_bytes,
        max_sentences=max_sentences,
        max_tokens=max_tokens,
        max_length=max_length,
        max_requests=max_requests,
        max_house_tokens=max_house_tokens,
        timeout=timeout,
        body_timeout=body_timeout,
        api_key=key,
        hosts=_hosts(host, key, allow_host or []),
        cors=tuple(cors or ()),
        tasks=tuple(map(read_learned, task or ())),
    )
    with listen(host, port) as listening:
        app = create_app(load_model(model, options, vocab), settings)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"

        def ready() -> None:
            print(f"serving {settings.name} at {address}", flush=True)
            if key is None and host not in _LOOPBACK:
                print(f"note: anyone who can reach {host} may ask; set {_KEY} for a key", file=sys.stderr)

        run(app, listening, ready)


def _hosts(host: str, key: str | None, allowed: Sequence[str]) -> tuple[str, ...]:
    """The server's names, if it has some, or where nothing but its address keeps others out."""
    from elmo.serve.guard import host_name

    known = bool(allowed) or (key is None and host in _LOOPBACK)
    return (*_LOOPBACK, *map(host_name, allowed)) if known else ()


def _key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(_KEY, "").strip() or None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ElmoError(f"cannot read --api-key-file {file}: {error}") from error
    if not key:
        raise ElmoError(f"--api-key-file {file} is empty: write the key into it, or leave the option out")
    return key
