"""The run-config keys of simulated malicious clients."""

from task.config.sections import Section, knob
from task.config.when import When

# Train on examples with a trigger.
BACKDOORS = ("backdoor", "distributed-backdoor", "model-replacement")
ATTACK_SUCCESS = "attack-success"  # the measure of a backdoor on the global test set
MOVED = ("sign-flip", "scale", "gaussian", "distributed-backdoor", "model-replacement")
DEVIATING = ("little-is-enough", "min-max", "min-sum")  # go by deviations of the benign updates
_SCALED = ("sign-flip", "scale", "inner-product", "distributed-backdoor", "model-replacement")
INFORMED = ("little-is-enough", "inner-product", "min-max", "min-sum", "mimic")  # know the benign updates


class AttackConfig(Section, switch="kind"):
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
        0.0,
        "s, multiple of an update that goes up; 0 = sign-flip, distributed-backdoor 1, scale 10, "
        "inner-product 0.1, model-replacement all clients of a round",
        low=0,
        when=When("attack.kind", _SCALED),
    )
    deviations: float = knob(
        0.0,
        "z of little-is-enough, g of min-max and min-sum: deviations off the mean; 0 = by the paper",
        low=0,
        when=When("attack.kind", DEVIATING),
    )
    std: float = knob(
        1.0, "gaussian: standard deviation of the noise", above=0, when=When("attack.kind", ("gaussian",))
    )
    target: int = knob(
        0, "class of an example with the trigger of a backdoor", low=0, when=When("attack.kind", BACKDOORS)
    )
    poison: float = knob(
        0.5,
        "share of a malicious client's examples that have the trigger",
        above=0,
        high=1,
        when=When("attack.kind", BACKDOORS),
    )

    @property
    def parts(self) -> int:
        """Into how many parts the trigger is cut, of which a malicious client has one."""
        return 4 if self.kind == "distributed-backdoor" else 1
