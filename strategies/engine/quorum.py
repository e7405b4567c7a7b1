"""How many replies a rule needs against f malicious clients, before the first round and in each one."""

from strategies.engine.state import AggregatedReplies
from task.config.knobs import Config
from task.spec.entry import Algorithm


def too_few(entry: Algorithm, config: Config, replies: int, asked: int) -> str:
    """Return why a rule cannot keep its promise with so many replies, or "" if it can.

    `replies` are good ones, or before the round those that may come; `asked` are the clients, of which f
    (``robust.byzantine``) are malicious by assumption. `Algorithm.withstands` says what the rule needs.
    """
    if entry.withstands is None:
        return ""
    each, more = entry.withstands
    f = config.robust.f(asked)
    needed = each * f + more
    if replies >= needed:
        return ""
    most = (replies - more) // each
    hint = f"with so many f is at most {most}" if most >= 0 else f"ask at least {more} clients a round"
    return (
        f'run-config key "robust.byzantine": {entry.name} needs at least {each} f + {more} = {needed} '
        f"replies against f = {f} malicious of {asked} clients asked; got {replies}: {hint}"
    )


def byzantine(reduced: AggregatedReplies, config: Config) -> int:
    """Return f: a share is one of the clients that were asked, as the silent ones may be the honest ones."""
    return config.robust.f(max(reduced.asked, len(reduced.clients)))
