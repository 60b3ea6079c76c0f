import pytest
import torch
from tests.engine.harness import Engine, generate
from tests.engine.scheduling import prompt_of
from tests.engine.test_model_runner import make_runner, prompt, request, row
from tests.fakes import FakeRunner

from octavo.engine.batch import StepInput
from octavo.engine.device_error import DeviceError


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might", 71),
        ("CUDA error: unspecified launch failure", 71),
        ("CUDA error: uncorrectable ECC error encountered", 72),
        ("CUDA error: no CUDA-capable device is detected", 72),
        ("", 71),
    ],
)
def test_the_status_tells_whether_the_same_device_will_do(said: str, status: int) -> None:
    error = DeviceError(said)
    assert error.kind.exit_code == status
    assert "\n" not in error.message


def test_what_torch_raises_for_a_device_ends_the_step_as_a_device_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = make_runner()

    def broken(*_: object) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(runner, "_logits", broken)
    step = StepInput(rows=(row(request(1, prompt(1, 20)), range(1, 3)),))
    with pytest.raises(DeviceError, match="illegal memory"):
        runner.run(step)


def test_no_request_is_blamed_for_the_device() -> None:
    def lose(_: StepInput) -> None:
        raise DeviceError("CUDA error: uncorrectable ECC error encountered")

    engine = Engine(runner=FakeRunner(before=lose))
    ticket = engine.submit(generate(prompt_of(20, 1), max_tokens=5))
    with pytest.raises(DeviceError):
        engine.run()
    assert ticket.open == 1
