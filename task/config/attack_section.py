"""The run-config keys of simulated malicious clients."""

from task.config.sections import Section, knob
from task.config.when import When

# Attacks that train on examples with a trigger.
BACKDOORS = ("backdoor", "distributed-backdoor", "model-replacement")
ATTACK_SUCCESS = "attack-success"  # the measure of a backdoor on the global test set
MOVED = ("sign-flip", "scale", "gaussian", "distributed-backdoor", "model-replacement")
DEVIATING = ("little-is-enough", "min-max", "min-sum")  # scale by the deviations of the benign updates
_SCALED = ("sign-flip", "scale", "inner-product", "distributed-backdoor", "model-replacement")
INFORMED = ("little-is-enough", "inner-product", "min-max", "min-sum", "mimic")  # need the benign updates


class AttackConfig(Section, switch="kind"):
    """Simulated malicious clients, to test rules with (see ``client_app/stages/attacks.py``)."""

    kind: str = knob(
        "none",
        "attack of the malicious clients",
        choices=("none", "sign-flip", "scale", "gaussian", "label-flip", *INFORMED, *BACKDOORS),
    )
    fraction: float = knob(0.2, "share of malicious clients, drawn by seed and name", low=0, high=1)
    scale: float = knob(
        0.0,
        "s, factor on the uploaded update; 0 = sign-flip, distributed-backdoor 1, scale 10, "
        "inner-product 0.1, model-replacement the number of clients in the round",
        low=0,
        when=When("attack.kind", _SCALED),
    )
    deviations: float = knob(
        0.0,
        "z of little-is-enough, g of min-max and min-sum: deviations from the mean; 0 = as in the paper",
        low=0,
        when=When("attack.kind", DEVIATING),
    )
    std: float = knob(
        1.0, "gaussian: standard deviation of the noise", above=0, when=When("attack.kind", ("gaussian",))
    )
    target: int = knob(
        0,
        "backdoor: class that examples with the trigger should get",
        low=0,
        when=When("attack.kind", BACKDOORS),
    )
    poison: float = knob(
        0.5,
        "backdoor: share of a malicious client's examples with the trigger",
        above=0,
        high=1,
        when=When("attack.kind", BACKDOORS),
    )

    @property
    def backdoor(self) -> bool:
        """Whether the malicious clients train on a trigger."""
        return self.kind in BACKDOORS

    @property
    def parts(self) -> int:
        """Number of parts of the trigger; each malicious client has one."""
        return 4 if self.kind == "distributed-backdoor" else 1
