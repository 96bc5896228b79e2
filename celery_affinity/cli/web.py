"""``celery -A proj affinity web``: the HTTP interface."""

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..errors import AffinityError
from ..versions import install_with
from .broker import check_conf


@click.command(cls=CeleryCommand)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=5556,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="File with one line for each token: role (read, submit, admin or worker), a space, and the token.",
)
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option(
    "--allow",
    multiple=True,
    default=["*"],
    metavar="PATTERN",
    help="Tasks that can be submitted; * stands for anything. Can be repeated.",
)
@click.option(
    "--name", "names", multiple=True, metavar="HOST", help="Name by which clients reach this host. Can be repeated."
)
@click.option(
    "--traces",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Directory with traces that `lab record` wrote: the page shows them, and what other slots would change.",
)
@click.pass_context
@handle_preload_options
def web(
    ctx: click.Context,
    host: str,
    port: int,
    token_file: str | None,
    read_only: bool,
    allow: tuple[str, ...],
    names: tuple[str, ...],
    traces: str | None,
) -> None:
    """Serve jobs, types and workers over HTTP: needs the extra `web`.

    Without tokens, only clients on this machine get an answer, and they may do everything.
    """
    try:
        from ..web.serve import serve  # not at the top: other commands do without the extra
    except ImportError as exc:
        raise click.ClickException(f"{exc}: {install_with('web')}") from exc
    check_conf(ctx.obj.app)
    try:
        serve(
            ctx.obj.app,
            host=host,
            port=port,
            token_file=token_file,
            read_only=read_only,
            allow=allow,
            names=names,
            traces=traces,
            on_ready=lambda url: click.echo(f"web ready on {url}"),
        )
    except AffinityError as exc:
        raise click.ClickException(str(exc)) from exc
    except OSError as exc:
        raise click.ClickException(f"cannot listen at {host}:{port}: {exc.strerror or exc}") from exc
