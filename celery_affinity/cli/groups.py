"""Groups of commands. An unknown command gets the question "did you mean ...?"."""

import click


class SuggestingGroup(click.Group):
    """A group that suggests the most similar name for an unknown command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            from ..options.did_you_mean import closest_question  # Celery's own commands must not load it

            question = closest_question(args[0], self.list_commands(ctx))
            if not question:
                raise
            # The same text with all versions of click: newer ones suggest names too, but not for lazy commands.
            raise click.UsageError(f"No such command {args[0]!r}{question}", ctx) from exc


class DefaultListGroup(SuggestingGroup):
    """A group whose default command is ``list``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
