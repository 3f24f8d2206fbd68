"""The page that searches the documents. It never enlists: here, Spark's tasks do all the work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import flask
from markupsafe import Markup, escape
from werkzeug.serving import WSGIRequestHandler, make_server

from spark_pipeline.parts import Parts, open_database, summary_key

FIELDS = ("headline", "length", "version")
# What can be in no document stands for the marks until all else is escaped.
BEGIN, END = "\x02", "\x03"
SEARCH = f"""
SELECT id, title, version, count(*) OVER () AS found,
    ts_headline('english', body, query,
        'MaxWords=18, MinWords=9, StartSel={BEGIN}, StopSel={END}') AS text
FROM search, websearch_to_tsquery('english', %s) AS query
WHERE words @@ query
ORDER BY ts_rank(words, query) DESC, id
LIMIT 10
"""  # noqa: S608 - two constants of ours are put in
PAGE = """
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{ words or "Search" }}</title>
<style>
  body { font: 16px/1.45 sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
         color: #1f2933 }
  input { font: inherit; padding: .35rem .6rem; width: 60% }
  button { font: inherit; padding: .35rem .9rem }
  article { border-top: 1px solid #d9e0e6; padding: .7rem 0 }
  h2 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere }
  p { margin: .15rem 0 } .dim { color: #5b6b7b; font-size: .88rem; overflow-wrap: anywhere }
  mark { background: #ffe8b3 } .behind { color: #8a5a00; font-weight: normal; font-size: .88rem }
</style>
<form><input name="q" value="{{ words }}" aria-label="Words" autofocus>
<button>Search</button></form>
<p class="dim">{% if words %}{{ found }} of {% endif %}{{ documents }} documents in the index;
{{ behind }} are being worked on</p>
{% for each in results %}
<article>
  <h2>{{ each.title }}
  {% if each.behind %}<span class="behind">is being worked on</span>{% endif %}</h2>
  <p>{{ each.text }}</p>
  <p class="dim">{{ each.id }}, version {{ each.version }}.
  {% if each.summary %}Summary in Redis:
  {% for name, value in each.summary.items() %}{{ name }}
  {{ value }}{{ ", " if not loop.last }}{% endfor %}{% else %}Its summary has expired{% endif %}</p>
</article>
{% endfor %}
</html>
"""


def create_app(parts: Parts) -> flask.Flask:
    """Return the app; `parts` are this process's structures."""
    app = flask.Flask(__name__)

    def search(words: str) -> tuple[list[dict[str, Any]], int]:
        """Return how many search rows match, and the best of them with what Redis knows of each."""
        with open_database("page") as database:
            rows = database.execute(SEARCH, (words,)).fetchall()
        with parts.summaries.pipeline() as pipeline:
            for document, *_ in rows:
                pipeline.hmget(summary_key(document), list(FIELDS))
            known = pipeline.execute()
        behind = parts.behind.are_tracked([row[0] for row in rows])
        results = []
        for (document, title, version, _, text), values, is_behind in zip(
            rows, known, behind, strict=True
        ):
            pairs = zip(FIELDS, values, strict=True)
            results.append(
                {
                    "id": document,
                    "title": title,
                    "version": version,
                    "text": marked(text),
                    "behind": is_behind,
                    "summary": {name: value.decode() for name, value in pairs if value is not None},
                }
            )
        return results, rows[0][3] if rows else 0

    @app.get("/")
    def page() -> str:
        # PostgreSQL's text holds no NUL.
        words = flask.request.args.get("q", "").replace("\0", " ").strip()[:200]
        results, found = search(words) if words else ([], 0)
        with open_database("page") as database:
            row = database.execute("SELECT count(*) FROM search").fetchone()
        return flask.render_template_string(
            PAGE,
            words=words,
            results=results,
            found=found,
            documents=row[0] if row else 0,
            behind=parts.behind.count(),
        )

    return app


def marked(text: str) -> Markup:
    """Return a piece of a document as HTML, with what was found marked."""
    safe = str(escape(text)).replace(BEGIN, "<mark>").replace(END, "</mark>")
    return Markup(safe)  # noqa: S704 - escaped in the line above


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        """Print no line for each request: the progress is printed there."""


@contextmanager
def served(app: flask.Flask, port: int) -> Iterator[str]:
    """Serve the app on loopback meanwhile; yield its address. Port 0 is any free one."""
    server = make_server("127.0.0.1", port, app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
