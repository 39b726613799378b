"""Pages and cards from Jinja2 templates, in which text from data can never become markup.

Whatever a template shows is escaped unless it is ``Markup``, which only templates and our own code make: for HTML in
``*.html.j2``, for Markdown in ``*.md.j2``. It is also made one clean line of at most 300 characters;
``text | upto(1000)`` shows more of a long one. A page that has a script names its digest, so no other script runs.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from markupsafe import escape as escape_html

from eval.report.markdown import escape as escape_markdown
from eval.report.plain_text import LONGEST, plain

HOME = "eval.report"
"""Package whose folder ``templates`` every template may extend and import from."""


def render_template(name: str, package: str = HOME, /, **values: object) -> str:
    """Return a template filled with values.

    Args:
        name: File in the folder ``templates`` of the package, ending in ``.html.j2`` or ``.md.j2``.
        package: Dotted name of the package.
        values: What the template shows, by name; a name that it uses and that is missing is an error.
    """
    return _environment(package, name.rsplit(".", 2)[-2]).get_template(name).render(values)


def _html(text: object, longest: int = LONGEST) -> Markup:
    return escape_html(plain(text, longest))


def _markdown(text: object, longest: int = LONGEST) -> Markup:
    return Markup(escape_markdown(text, longest))


def _digest(script: str) -> Markup:
    """Return the name of a script in a content security policy."""
    return Markup("sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())


SHOWN: dict[str, Callable[..., Markup]] = {"html": _html, "md": _markdown}
"""How a text is shown, by the form of the template."""


@functools.cache
def _environment(package: str, form: str) -> Environment:
    show = SHOWN[form]
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(place) for place in dict.fromkeys((package, HOME))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) else show(value),
    )
    environment.filters["upto"] = show
    environment.filters["digest"] = _digest
    return environment
