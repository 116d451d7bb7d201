"""Models of the Hugging Face hub: `hf://owner/name`, `hf://owner/name@revision` (`elmo[hf]`)."""

from __future__ import annotations

import re
from pathlib import Path

from elmo.errors import ElmoError, MissingExtraError

PREFIX = "hf://"

# A file in a folder of the repository, and code above all, is never fetched.
_FILES = ["config.json", "model*.safetensors", "vocab.txt", "README.md", "*options.json", "*.hdf5"]
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_ADDRESS = re.compile(rf"{PREFIX}(?P<repository>{_NAME}/{_NAME})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*))?")


def snapshot(address: str) -> Path:
    """A local folder with the files of a model, fetched if they are not in huggingface_hub's cache.

    Args:
        address: `hf://owner/name`, the main branch; `hf://owner/name@revision` for another one, a tag or a commit.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or ".." in address or "--" in match["repository"]:
        raise ElmoError(
            f"{address!r:.200} is no repository of the hub: give hf://owner/name or hf://owner/name@revision"
        )
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise MissingExtraError("A model of the Hugging Face hub", "hf") from error
    try:
        folder = snapshot_download(
            match["repository"], revision=match["revision"], allow_patterns=_FILES, ignore_patterns=["*/*"]
        )
    except LocalEntryNotFoundError as error:
        raise ElmoError(f"{address} is not in the local cache, and the hub cannot be reached: {error}") from error
    except (OSError, HFValidationError) as error:  # its own errors of the network are OSErrors
        raise ElmoError(f"cannot get {address}: {error}") from error
    return Path(folder)
