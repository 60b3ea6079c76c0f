"""What an operator tells of a service while the gateways lose its engines."""

from __future__ import annotations

from tests.sim.history import History
from tests.sim.kube.api_server import Call
from tests.sim.kube.operators import patched
from tests.sim.kube.script import Act, Options, Scenario
from tests.sim.kube.simulate import LIMIT_S, MAX_STEPS
from tests.sim.kube.world import World
from tests.sim.loop import SimLoop
from tests.sim.virtual_run import virtual_run

from octavo.operator import conditions
from octavo.operator.kinds import INFERENCE_SERVICE

SERVICE = {"model": {"uri": "file:///models/a"}, "engine": {}, "replicas": 1}


def told(*faults: Act) -> list[tuple[int, str]]:
    """Returns the reasons of Ready from the first Serving on, each with the second it came in."""
    options = Options(
        services=1, operators=1, gateways=2, fault_s=200.0, load_s=1.0, going_s=1.0, history=1000,
        kinds=(), delay_s=0.02, core=0,
    )  # fmt: skip
    users = (Act(0.5, "apply", "service0", SERVICE),)
    scenario = Scenario(seed=0, options=options, users=users, faults=faults)
    reasons: list[tuple[int, str]] = []

    async def main(loop: SimLoop, history: History) -> None:
        def note(call: Call) -> None:
            if call.kind is INFERENCE_SERVICE and call.manifest:
                found = conditions.find(call.manifest["status"]["conditions"], "Ready")["reason"]
                if [found] != [reason for _, reason in reasons[-1:]]:
                    reasons.append((int(loop.time() - began), found))

        began = loop.time()
        with patched():
            world = World(scenario, loop, history)
            world.server.after.append(note)
            await world.run()

    _, history = virtual_run(main, seed=0, trace=False, limit_s=LIMIT_S, max_steps=MAX_STEPS)
    assert not history.violations
    return reasons[[reason for _, reason in reasons].index("Serving") :]


def test_gateways_that_find_engines_again_are_not_told() -> None:
    reasons = told(
        Act(50.0, "gateways_cut_off"),
        Act(60.0, "restart", "operator0"),
        Act(70.0, "end_gateways_cut_off"),
        Act(90.0, "gateways_cut_off"),
        Act(110.0, "end_gateways_cut_off"),
    )
    assert [reason for _, reason in reasons] == ["Serving"]


def test_gateways_that_find_engines_no_more_are_told_once_until_they_do() -> None:
    reasons = told(
        Act(50.0, "gateways_cut_off"),
        Act(60.0, "gateway_new", "gateway0"),
        Act(100.0, "restart", "operator0"),
        Act(120.0, "pause", "operator0"),
        Act(140.0, "end_pause", "operator0"),
        Act(145.0, "gateway_silent", "gateway1"),
        Act(165.0, "end_gateway_silent", "gateway1"),
        Act(180.0, "end_gateways_cut_off"),
    )
    assert [reason for _, reason in reasons] == ["Serving", "NotRoutable", "Serving"]
    assert 75 <= reasons[1][0] <= 90
    assert 180 <= reasons[2][0] <= 190
