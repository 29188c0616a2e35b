"""One self-contained HTML file: styles, data and the chart library are in it, nothing is requested."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paribus.compare.markup import text
from paribus.sources.cache import cache_folder, write_whole

ASSETS = Path(__file__).parent / "assets"


def page(title: str, body: str, charts: Mapping[str, Any]) -> str:
    """Wrap a body into a page; `charts` holds the specifications and rows that the page's script draws.

    The policy in the head lets the page load nothing and run only the scripts that stand in it, by hash.
    Without charts the chart library is left out.
    """
    style = _asset("report.css")
    scripts = [chart_library(), _asset("report.js")] if charts else [_asset("report.js")]
    allowed = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    data = json.dumps(charts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        f'<script type="application/json" id="charts">{_inert(data)}</script>\n'
        + "".join(f'<script type="module">{script}</script>\n' for script in scripts)
        + "</body>\n</html>\n"
    )


def chart_library() -> str:
    """Return Vega-Lite and its embedder as one script; built once for a version of vl-convert and cached."""
    path = cache_folder("pages") / f"vega-{version('vl-convert-python')}.js"
    if path.exists() and path.stat().st_size:
        return path.read_text(encoding="utf-8")
    import vl_convert

    # Without a snippet the whole library is bundled; its type stub does not know that this is allowed.
    bundle = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue]
    script = bundle.replace("</script", "<\\/script")
    write_whole(path, script.encode())
    return script


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _inert(data: str) -> str:
    """Keep data from ending the script element that holds it."""
    return data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
