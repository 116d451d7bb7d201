"""The application: routes behind a guard, one shape for every error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from elmo import __version__
from elmo.api import Model
from elmo.errors import ElmoError
from elmo.serve import explorer, routes
from elmo.serve.guard import Guard
from elmo.serve.metrics import Metrics
from elmo.serve.refused import Refused
from elmo.serve.settings import Settings
from elmo.serve.work import Work


def create_app(model: Model, settings: Settings) -> FastAPI:
    """An application that serves a model. Its `state.work` is what computes."""
    metrics = Metrics()
    work = Work(model, settings, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await work.close()

    # No pages of documentation: FastAPI's load their scripts from elsewhere.
    app = FastAPI(
        title="elmo",
        version=__version__,
        description=routes.__doc__ or "",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.work = work
    app.include_router(routes.routes(model, work, metrics))
    app.include_router(explorer.routes(model, work))
    _add_errors(app)
    app.add_middleware(Guard, work=work, metrics=metrics, paths=routes.PATHS)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
        )
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refuse(request: Request, error: Refused) -> Response:
        return JSONResponse(error.content, error.status, error.headers)

    @app.exception_handler(ElmoError)
    async def mistake(request: Request, error: ElmoError) -> Response:
        return await refuse(request, Refused(400, "invalid", str(error)))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return await refuse(request, Refused(422, "invalid", _explained(error)))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        refused = Refused(error.status_code, "http", str(error.detail))
        return JSONResponse(refused.content, refused.status, refused.headers | dict(error.headers or {}))


def _explained(error: RequestValidationError) -> str:
    """What is wrong and where, without what was given."""
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5])
