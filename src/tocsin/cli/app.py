"""Commands and their options.

Enters: arguments. Leaves: a call of the module that does the work. Only the standard library, Typer
and the names of the engines are imported here. Other distributions add commands as entry points of
the group `tocsin.commands`: functions that take the application.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tocsin.cli import broker_app, demo_app, match_app, pipeline_app, subscriptions_app
from tocsin.cli.console import guarded
from tocsin.cli.shared import EXIT_CODES, AsJson, Dialect, Types
from tocsin.errors import ArgumentError

GROUP = "tocsin.commands"


class _Commands(TyperGroup):
    """The commands; those of other distributions are loaded when none of ours is meant."""

    _is_complete = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, or None."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        self._add_plugged_in()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        self._add_plugged_in()
        return super().list_commands(ctx)

    def _add_plugged_in(self) -> None:
        """Load the commands of other distributions; say what to install where there are none."""
        if self._is_complete:
            return
        self._is_complete = True
        plugged_in = typer.Typer(add_completion=False, rich_markup_mode=None)
        entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
        for entry in entries:
            entry.load()(plugged_in)
        for name in () if entries else ("bench", "report"):
            settings = {"ignore_unknown_options": True}
            plugged_in.command(name, hidden=True, context_settings=settings)(_absent)
        plugged_in.command("-", hidden=True)(_absent)  # so that it is a group
        for name, command in typer.main.get_group(plugged_in).commands.items():
            if name != "-":
                self.commands.setdefault(name, command)


app = typer.Typer(
    name="tocsin",
    cls=_Commands,
    help="Content-based publish/subscribe: which subscriptions does an event match?",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(subscriptions_app.app)
app.add_typer(pipeline_app.app)
app.add_typer(demo_app.app)
broker_app.register(app, EXIT_CODES)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        import tocsin

        typer.echo(f"tocsin {tocsin.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command(epilog=EXIT_CODES)
@guarded
def check(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Conditions.")],
    types: Types = [],  # noqa: B006 - Typer copies it
    params: Annotated[
        list[str],
        typer.Option(
            "--param",
            metavar="NAME=VALUE",
            help="A value for :NAME: a literal of the language, or else a string. Repeatable.",
        ),
    ] = [],  # noqa: B006
    dialect: Dialect = "sql",
    as_json: AsJson = False,
) -> int:
    """Show how conditions are read, their normal form, and what looks wrong with them."""
    from tocsin.cli.check import check as run
    from tocsin.language import dialects

    dialects.check(dialect)
    return run([dialects.write(text, dialect) for text in texts], types, params, as_json)


match_app.register(app)


@app.command(epilog=EXIT_CODES)
@guarded
def explain(
    store: Annotated[
        str | None, typer.Argument(metavar="[STORE]", help="A store: a folder, or a URL.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A subscription; without it, the index is described."),
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="A condition, in place of a store.")
    ] = None,
    event: Annotated[
        str | None, typer.Option("--event", "-e", help="An event, as a JSON object.")
    ] = None,
    params: Annotated[
        list[str], typer.Option("--param", metavar="NAME=VALUE", help="A value for :NAME.")
    ] = [],  # noqa: B006
    types: Types = [],  # noqa: B006
    integers: Annotated[
        bool, typer.Option("--integers", help="The id is an integer, not a string.")
    ] = False,
    dialect: Dialect = "sql",
) -> int:
    """Say how a subscription is indexed, or why an event does or does not match it."""
    from tocsin.cli import subscriptions

    options = subscriptions.ExplainOptions(params, types, integers, dialect)
    return subscriptions.explain(store, where, id, event, options)


@guarded
def _absent(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> int:
    """Measure: needs the laboratory."""
    raise ArgumentError("this needs the laboratory: pip install tocsin-lab")
