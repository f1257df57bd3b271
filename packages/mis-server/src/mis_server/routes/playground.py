"""`GET /playground`: a page that asks this server. It holds no data and so needs no key; what it asks for does."""

from collections.abc import Mapping
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from mis_server.playground import PAGE, File

_HEADERS = {
    # Scripts and styles are this server's own files, requests go to this server only, and no text becomes markup.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # kept, but asked for again: files of two versions must not meet
}


def router_of(files: Mapping[str, File]) -> APIRouter:
    """Return the routes of the page's files, which are named by their paths, and of the page with a slash behind it."""
    router = APIRouter(include_in_schema=False)
    for path, file in files.items():
        router.get(path)(partial(_send, file))
    if PAGE in files:
        router.get(f"{PAGE}/")(_lead_to_page)
    return router


async def _lead_to_page() -> Response:
    # Not the page itself: it names its files relative to a path without a slash. So does this, for prefixes of proxies.
    return RedirectResponse(f"..{PAGE}", headers=_HEADERS)


async def _send(file: File, request: Request) -> Response:
    headers = _HEADERS | {"etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
