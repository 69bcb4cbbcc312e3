"""Layer: faces. An executed notebook as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from agentkit.errors import RunError
from agentkit.runs import write_atomic

TEMPLATE = """
{%- extends 'basic/index.html.j2' -%}
{% block input %}<details class="code"><summary>code</summary>{{ super() }}</details>{% endblock %}
{% block in_prompt %}{% endblock %}
{% block output_area_prompt %}{% endblock %}
"""

CSS = """
:root { color-scheme: light; }
body { margin: 0; font: 16px/1.55 system-ui, "DejaVu Sans", sans-serif; color: #222; }
main { max-width: 52rem; margin: 0 auto; padding: 1.5rem; }
nav { max-width: 52rem; margin: 0 auto; padding: 1rem 1.5rem 0; font-size: .9rem; }
nav ol { columns: 2; margin: .3rem 0 0; padding-left: 1.4rem; }
nav a { color: #0072B2; text-decoration: none; }
nav a:hover, nav a:focus { text-decoration: underline; }
h1, h2, h3 { line-height: 1.25; margin: 1.8em 0 .5em; }
h1 { font-size: 1.7rem; margin-top: .5em; } h2 { font-size: 1.25rem; } h3 { font-size: 1.05rem; }
a.anchor-link { display: none; }
img, svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: .875rem; margin: 1rem 0; display: block;
  overflow-x: auto; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; }
thead th { border-bottom: 1.5px solid #666; vertical-align: bottom; }
tbody th { font-weight: 400; }
pre { overflow-x: auto; font: .8rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace;
  background: #f6f6f6; padding: .6rem .8rem; margin: .4rem 0; }
code { font: .9em ui-monospace, "DejaVu Sans Mono", monospace; }
details.code { margin: .4rem 0; color: #666; font-size: .8rem; }
details.code summary { cursor: pointer; }
.output_stderr, .jp-RenderedText[data-mime-type*="stderr"] { display: none; }
@media print { details.code { display: none; } nav ol { columns: 1; } }
"""

_HEADING = re.compile(r'<h([12]) id="([^"]+)">(.*?)</h\1>', re.S)
_TAG = re.compile(r"<[^>]+>")


def render_report(executed: Path, target: Path) -> Path:
    """Write the executed notebook as HTML: figures embedded, code folded, contents list in front.

    Raises RunError where the notebook is missing or is no notebook.
    """
    import nbformat
    from nbconvert import HTMLExporter
    from pygments.formatters import HtmlFormatter

    try:
        notebook = nbformat.read(executed, as_version=4)
    except OSError as error:
        raise RunError(
            str(executed), f"{error.strerror}", "an executed notebook", "run notebook 05"
        ) from error
    except (ValueError, nbformat.reader.NotJSONError) as error:
        raise RunError(str(executed), f"not a notebook ({error})", "an executed notebook") from None
    exporter = HTMLExporter(raw_template=TEMPLATE, anchor_link_text="")
    body, _ = exporter.from_notebook_node(_without_parameters(notebook))
    colours = HtmlFormatter().get_style_defs(".highlight")
    title, contents = _contents(body, executed.stem)
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{CSS}\n{colours}</style></head>\n"
        f'<body><nav aria-label="Contents">{contents}</nav>\n<main>{body}</main></body></html>\n'
    )
    write_atomic(target, page)
    return target


def _without_parameters(notebook: Any) -> Any:
    """Papermill puts the injected values after the defaults: the reader sees what was in force."""
    injected = any("injected-parameters" in c.metadata.get("tags", []) for c in notebook.cells)
    if injected:
        notebook.cells = [
            c for c in notebook.cells if "parameters" not in c.metadata.get("tags", [])
        ]
    return notebook


def _contents(body: str, fallback: str) -> tuple[str, str]:
    """(page title, contents list) from the headings of levels 1 and 2."""
    found = [(int(n), anchor, _TAG.sub("", text)) for n, anchor, text in _HEADING.findall(body)]
    title = next((html.unescape(text) for level, _, text in found if level == 1), fallback)
    items = "".join(
        f'<li><a href="#{anchor}">{text}</a></li>' for level, anchor, text in found if level == 2
    )
    return title.replace("¶", "").strip(), f"<ol>{items}</ol>".replace("¶", "")
