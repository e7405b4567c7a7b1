"""Server half of ``he = true``: sends what nodes need to encrypt, and checks the form of ciphertexts."""

from dataclasses import replace

from strategies.engine.rule import Phase
from strategies.engine.stage import ServerStage
from task.encryption import ckks
from task.encryption.sums import TOTAL
from task.wire import messages as wire
from task.wire.layouts import Forms
from task.wire.sealing import Sealed


class EncryptionStage(ServerStage):
    """Sends the weight that all clients have together, by which their shares of a mean stay in range."""

    name = "encryption"

    def before_send(self, phase: Phase) -> Phase:
        """Send the weight of the clients asked, at most."""
        if not phase.contract.encrypted:
            return phase
        return replace(phase, scalars={**phase.scalars, TOTAL: self._most_weight(phase)})

    def _most_weight(self, phase: Phase) -> float:
        if phase.contract.weight == "uniform":
            return float(len(phase.to))
        limits = self.engine.limits(phase.to, phase)
        return sum(of_client[wire.NUM_EXAMPLES] for of_client in limits.values())

    def encoding(self, phase: Phase) -> Sealed | None:
        """Return what reads the nodes' ciphertexts."""
        return Sealed() if phase.contract.encrypted else None

    def forms(self, forms: Forms) -> Forms:
        """Return the forms under the model in clear."""
        return replace(forms, shared=ckks.form_of(forms.shared))
