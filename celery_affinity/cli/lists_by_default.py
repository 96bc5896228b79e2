"""Groups of commands, such as ``keys``, that list what there is if no command is named."""

import click


class ListsByDefault(click.Group):
    """A group whose command ``list`` need not be named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
