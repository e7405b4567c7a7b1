"""The run-config keys of simulated malicious clients."""

from task.config.sections import Section, knob

BACKDOORS = ("backdoor", "model-replacement")  # train on examples with a trigger
ATTACK_SUCCESS = "attack-success"  # the measure of a backdoor on the global test set
INFORMED = ("little-is-enough", "inner-product", "min-max", "min-sum", "mimic")  # know the benign updates


class AttackConfig(Section):
    """Simulated malicious clients, to test rules with (see ``client_app/stages/attacks.py``)."""

    kind: str = knob(
        "none",
        "what malicious clients do",
        choices=("none", "sign-flip", "scale", "gaussian", "label-flip", *INFORMED, *BACKDOORS),
    )
    fraction: float = knob(
        0.2, "share of the clients that are malicious, drawn by seed and name", low=0, high=1
    )
    scale: float = knob(
        0.0, "strength; 0 = sign-flip 1, scale 10, gaussian 1, inner-product 0.1, others by the paper", low=0
    )
    target: int = knob(0, "class of an example with the trigger of a backdoor", low=0)
    poison: float = knob(
        0.5,
        "share of a malicious client's examples that have the trigger",
        above=0,
        high=1,
    )
