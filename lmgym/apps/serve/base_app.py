"""An application with the errors, health and metrics that every server here has; it imports no torch."""

from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from lmgym import __version__
from lmgym.apps.serve.guard import Refusal
from lmgym.apps.serve.metrics import Metrics
from lmgym.data.rejections import RowError
from lmgym.errors import InputError, one_line


def new_app(title: str, metrics: Metrics, gauges: Callable[[], Mapping[str, float]]) -> FastAPI:
    """An application with the errors, health and metrics of every server here."""
    # the pages of Swagger load scripts from elsewhere
    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None)
    _add_errors(app)

    @app.get("/health")
    async def health():
        return {"status": "ok", "version": __version__}

    @app.get("/metrics")
    async def counted():
        return PlainTextResponse(metrics.text(gauges()), media_type="text/plain; version=0.0.4")

    return app


def _add_errors(app: FastAPI) -> None:
    """Every error as one line of words in the form of OpenAI's and vLLM's servers."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal):
        return error.answer()

    @app.exception_handler(InputError)
    async def wrong(_: Request, error: InputError):
        return Refusal(400, str(error)).answer()

    @app.exception_handler(RowError)
    async def wrong_row(_: Request, error: RowError):
        return Refusal(400, f"{error.field}: {error.found}").answer()

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError):
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            found = f"{first['ctx']['error']} at character {first['loc'][-1]:,}"
            return Refusal(400, f"the body is not JSON: {one_line(found)}").answer()
        where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
        return Refusal(400, one_line(f"{where}: {first['msg']}")).answer()

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException):
        paths = ", ".join(sorted(getattr(route, "path", "") for route in app.routes))
        words = {404: f"no such path; needed: one of {paths}", 400: "the body cannot be read; needed: JSON"}
        return Refusal(error.status_code, words.get(error.status_code, str(error.detail))).answer()
