"""`workstealing dashboard`: the dashboard, served to this machine."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path
from typing import Any

from workstealing.cli.arguments import whole
from workstealing.cli.clients import (
    add_fleet_options,
    application_prints_to_stderr,
    ledger_for,
    load_app,
    named_app,
)
from workstealing.cli.output import add_json_option, print_json, say
from workstealing.errors import ConfigurationError
from workstealing.recruiting import Recruiter
from workstealing.store.client import URL_VARIABLES

TOKEN_VARIABLE = "WORKSTEALING_DASHBOARD_TOKEN"  # noqa: S105 - where it is, not what it is
VIEW_TOKEN_VARIABLE = "WORKSTEALING_DASHBOARD_VIEW_TOKEN"  # noqa: S105
HOST = "127.0.0.1"
PORT = 8765
MOST_CONNECTIONS = 64
"""How many connections there are at a time; each of them has a thread."""

CLIENT_SECONDS = 30.0
"""After so many seconds the server leaves a client that does not read, or has not asked by then."""

DESCRIPTION = """\
Serve the dashboard: one page with the figures of every job, from the fleet's ledger, and the
backlog of the structures of the recruiter's jobs. It needs the extra: pip install
'workstealing[dashboard]'.
"""
EPILOG = f"""\
Without a token only this machine can reach the dashboard, and it changes nothing. {TOKEN_VARIABLE}
in the environment, or --token-file, gives the admin's token: it lets a user log in and steer.
{VIEW_TOKEN_VARIABLE} gives a token for users who only look. Ctrl-C ends it with status 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    add_fleet_options(parser)
    parser.add_argument(
        "--host",
        default=HOST,
        metavar="ADDRESS",
        help="the address to listen at; one that other machines can reach needs a token"
        " (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=PORT,
        metavar="N",
        help="the port to listen at, 0 for any free one (default: %(default)s)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="read the admin's token from the first line of this file",
    )
    parser.add_argument(
        "--survey",
        type=Path,
        metavar="FILE",
        help="show the last survey: the file into which workstealing survey --json was printed",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C.

    Returns: 0. Raises: WorkStealingError for bad input, or if the address is not free.
    """
    server, token = make_server(options)
    host, port = server.server_address[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}/"
    if options.json:
        print_json({"url": url, "steers": token is not None})
    else:
        how = "log in with the token" if token is not None else f"read only: no {TOKEN_VARIABLE}"
        say(f"the dashboard is at {url} ({how}); Ctrl-C ends it")
    try:
        with application_prints_to_stderr():
            server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0


def make_server(options: argparse.Namespace) -> tuple[Any, str | None]:
    """Return the web server, which listens already, and the admin's token.

    Arguments:
        options: of the command line.

    Raises: ConfigurationError; MissingExtraError.
    """
    from workstealing.dashboard import create_dashboard
    from workstealing.dashboard.security import is_loopback

    token, view_token = _token(options.token_file), os.environ.get(VIEW_TOKEN_VARIABLE) or None
    if token is None and not is_loopback(options.host):
        raise ConfigurationError(
            f"other machines may reach {options.host!r}: set {TOKEN_VARIABLE} or give --token-file,"
            f" or listen at {HOST}"
        )
    recruiter = load_app(options.app) if named_app(options.app) else Recruiter()
    client, name = ledger_for(options, recruiter)
    if client is None:
        raise ConfigurationError(
            f"no Redis was named for the ledger: give --url, or set {' or '.join(URL_VARIABLES)}"
        )
    blueprint = create_dashboard(
        recruiter,
        client,
        token=token,
        view_token=view_token,
        name=name,
        survey=options.survey,
    )

    import flask

    from workstealing.dashboard.serving import BoundedServer

    app = flask.Flask("workstealing.dashboard", static_folder=None)
    app.register_blueprint(blueprint, url_prefix="/")
    # Ours, because werkzeug ends the process where a port is taken.
    with _listener(options.host, options.port) as listener:
        server = BoundedServer(listener, app, seconds=CLIENT_SECONDS, most=MOST_CONNECTIONS)
    return server, token


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"{host}:{port} cannot be listened at: {error.strerror or 'no such address'}; give"
            " another --host or --port"
        ) from error


def _token(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        with path.open(encoding="utf-8") as file:
            token = file.readline(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the token file {str(path)!r} cannot be read: {type(error).__name__}"
        ) from error
    if not token:
        raise ConfigurationError(f"the token file {str(path)!r} begins with an empty line")
    return token


def _port(text: str) -> int:
    port = whole(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port: expected 0 to 65535")
    return port
