"""The playground's page and its files, which are read once and served from memory."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from firth.objectives.registry import OBJECTIVES
from firth.serve.api_errors import ApiError
from firth.serve.server_config import API_KEY
from firth.utils import attention_view, html_page

HOME = Path(__file__).parent
FILES = "/playground/files/{path:path}"
ATTENTION_SCRIPT = "scripts/attention_view.js"  # made of the scripts of `firth inspect`
POLICY = (  # the page may load and call this server only
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
TYPES = {".css": "text/css", ".js": "text/javascript"}


def page_routes(*, key_required: bool) -> list[Route]:
    """Return the routes of the page and its files."""
    html, files = page_html(key_required=key_required), page_files()

    async def page(request: Request) -> Response:
        return Response(html, media_type="text/html", headers=HEADERS)

    async def file(request: Request) -> Response:
        name = request.path_params["path"]
        if name not in files:  # a dict lookup: no path of a request is opened
            return ApiError(404, "The playground has no such file.").response()
        return Response(files[name], media_type=TYPES[Path(name).suffix], headers=HEADERS)

    return [Route("/", page), Route(FILES, file)]


def page_html(*, key_required: bool) -> str:
    """Return the page; with `key_required` it asks for the API key first.

    >>> 'data-key-required="true"' in page_html(key_required=True)
    True
    """
    text = _read(HOME / "playground.html")
    values = {
        "key_required": str(key_required).lower(),
        "key_variable": API_KEY,
        "objectives": " ".join(OBJECTIVES),
    }
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", escape(value))
    return text


def page_files() -> Mapping[str, str]:
    """Return the stylesheet and the scripts by their path below `/playground/files/`.

    >>> sorted(page_files())[:2]
    ['scripts/api.js', 'scripts/attention_view.js']
    """
    style, _ = attention_view.style_and_script()
    scripts = {
        path.relative_to(HOME).as_posix(): _read(path)
        for path in sorted((HOME / "scripts").rglob("*.js"))
    }
    return {
        "style.css": "\n".join([_read(html_page.STYLE), style, _read(HOME / "playground.css")]),
        ATTENTION_SCRIPT: attention_view.script_module(),
        **scripts,
    }


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
