"""S19: a server that lies to some nodes, in order to read what another one adds to a masked sum."""

from __future__ import annotations

from tests.faults.case import Rig, case
from tests.faults.cases_members import other_app

TESTS = "tests/strategies/test_secure_orders.py::"
# Added to `strategies.channels.masked`: a seed says which lie all nodes but the first get in round 1.
LIES = """

def _rate(content, session):
    content["config"]["lr"] = 0.0


def _model(content, session):
    found = wire.read_arrays(content["arrays"])
    content["arrays"] = wire.pack_arrays({n: np.zeros_like(a) for n, a in found.items()})


def _clients(content, session):
    content["config"]["clients"] = ["nobody"] * len(content["config"]["clients"])


def _round(content, session):
    session["round"] = session["round"] + 1


def _run(content, session):
    session["run"] = "another"


_TOLD = (_rate, _model, _clients)
_ALL = (_round, _run)


def _lying(made, masked):
    def orders(self, *arguments):
        messages = made(self, *arguments)
        lie = (*_TOLD, *_ALL)[self.engine.config.seed]
        for message in messages[1:] if self.engine.round == 1 else ():
            if masked or lie in _ALL:
                record = ConfigRecord(dict(message.content[secure.SECAGG]))
                message.content[secure.SECAGG] = record
                lie(message.content, record)
        return messages

    return orders


SecurePhase._orders = _lying(SecurePhase._orders, False)
SecurePhase._masked_orders = _lying(SecurePhase._masked_orders, True)
"""
NOBODY = "clients that they do not have"  # for this reason, which lasts, the run ends
SAYS = {
    "lr = 0": "a different request than the others",
    "another model": "a different request than the others",
    NOBODY: "this node hosts ward-",
    "another round": "keys that the node of that name has signed",
    "another run": "keys that the node of that name has signed",
}


@case(
    "S23",
    "A server makes two nodes add what it knows to a masked sum, to read the third one's model",
    "no sum is opened, whatever the server orders; the round keeps the model, and the nodes' reasons are "
    "reported; a later round of honest orders works",
    "the link is started with a server that gives two of three nodes lr = 0, a model of zeros, clients that "
    "they do not have, and sessions of another round and run; runs of secagg = true",
    tests=(
        f"{TESTS}test_a_node_that_is_asked_for_something_else_adds_nothing_and_no_sum_is_opened",
        f"{TESTS}test_nodes_under_unlike_run_configs_add_up_to_nothing",
        f"{TESTS}test_a_second_name_of_a_run_gives_no_second_sum_of_a_round",
        "tests/secagg/test_orders.py",
    ),
)
def unlike_orders(rig: Rig) -> str:
    fed = rig.fed()
    told = []
    fed.machines["link"].stop()
    try:
        fed.start_link(code=other_app(fed.folder / "lying-app", "strategies/channels/masked.py", LIES))
        fed.until(lambda: fed.online() >= set(fed.wards), 120, "all nodes at the lying link")
        for seed, lie in enumerate(SAYS):
            run = rig.submit(2, secagg=True, seed=seed, min_nodes=3, round_timeout=60.0)
            told.append(lie)
            if lie == NOBODY:
                fed.until(lambda job=run.job: job().ended, 240, "the end of the run")  # type: ignore[misc]
                assert SAYS[lie] in run.job().reason, run.job()
                assert len({row["model_sha256"] for row in run.rows()}) == 1, lie
                continue
            run.wait_end()
            first, second, third = run.rows()
            assert second["skipped"], (lie, second)
            assert first["model_sha256"] == second["model_sha256"] != third["model_sha256"], lie
            why = " ".join(q["got"] for q in second["quarantined"])
            assert SAYS[lie] in why, (lie, why[:500])
    finally:
        fed.machines["link"].stop()
        fed.start_link()
        fed.until(lambda: fed.online() >= set(fed.wards), 120, "all nodes back")
    run = rig.submit(2, secagg=True, min_replies=3)
    run.wait_end()
    return f"nothing was opened under {', '.join(told)}; then, honestly, {rig.same(run)}"
