"""The files of the servers' pages, which any browser gets without a token: the page asks for it itself."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

from lmgym.apps.serve.guard import PAGE_FILES, Refusal

KINDS = {".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def add_files(app: FastAPI, page: str) -> None:
    """Adds the routes of a page, `/`, and of the files that pages load, `/page/NAME`."""
    folder = Path(__file__).parent

    @app.get("/", include_in_schema=False)
    async def whole_page():
        return Response((folder / page).read_bytes(), media_type="text/html; charset=utf-8", headers=HEADERS)

    @app.get("/page/{name}", include_in_schema=False)
    async def file(name: str):
        if f"/page/{name}" not in PAGE_FILES:
            raise Refusal(404, "no such file of the page")
        kind = KINDS[Path(name).suffix]
        return Response((folder / name).read_bytes(), media_type=f"{kind}; charset=utf-8", headers=HEADERS)
