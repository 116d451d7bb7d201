"""The explorer page: what it is made of and what it asks for.

Without the API key, where there is one, a browser may get `/` and what is under `/explorer/page/`, and nothing else.
"""

from __future__ import annotations

from fastapi import APIRouter

from elmo.api import Model
from elmo.serve.work import Work


def routes(model: Model, work: Work) -> APIRouter:
    """The routes of the page, `/` and `/explorer/...`; all that is computed goes through `work`."""
    return APIRouter()
