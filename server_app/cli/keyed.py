"""Commands that take run-config keys: an argument that stands alone leads to the option it is meant for."""

import shlex
from pathlib import Path

import click
from typer.core import TyperCommand

from task.errors import ConfigError


class KeyedCommand(TyperCommand):
    """A command with the option ``-c``, and without arguments of its own."""

    allow_extra_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse words that belong to no option, with the option to type."""
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            raise ConfigError(_option_for(ctx, rest))
        return rest


def _option_for(ctx: click.Context, words: list[str]) -> str:
    """Return the error about such words: a path, a data set, a recipe or keys."""
    from task.config.data_paths import keys_of_path, path_in
    from task.config.options import parse_options
    from task.config.read import recipes
    from task.datasets import DATASETS

    word = words[0]
    forms, path = path_in(word)
    if not forms and Path(word).exists():
        forms, path = path_in(f"./{word}")
    if word in recipes() or word.endswith(".toml"):
        option = f"--recipe {shlex.quote(word)}"
    elif "=" in word and not forms:
        parse_options(words)  # which says what is wrong in them
        option = f"-c {shlex.quote(' '.join(words))}"
    else:
        keys = (
            f'dataset="{word}"' if word in DATASETS else keys_of_path(forms, path) if forms else "KEY=VALUE"
        )
        option = f"-c {shlex.quote(keys)}"
    return f"{ctx.info_name}: expected options only; got {word}. Type: bouquet {ctx.info_name} {option}"
