"""transformers' own SmolLM2, read from the GGUF file with its own code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers

from octavo.engine.models.resolve import resolve


class Reference:
    """transformers' own model, and what it answers."""

    def __init__(self) -> None:
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        path = resolve("smollm2")
        self.config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        with torch.device("meta"):
            empty = transformers.LlamaForCausalLM(self.config)
        # neither of the two has types
        load: Any = load_gguf_checkpoint
        loaded = load(path, return_tensors=True, model_to_load=empty)
        self.tensors: dict[str, torch.Tensor] = loaded["tensors"]
        self.model: Any = transformers.LlamaForCausalLM(self.config)
        self.model.train(mode=False)
        self._load(self.tensors)

    def use(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Computes with changed weights from now on."""
        self._load({name: change(tensor) for name, tensor in self.tensors.items()})

    @torch.inference_mode()
    def likeliest(self, prompt: list[int], output: list[int]) -> list[int]:
        """Greedy tokens, each after the prompt and all of `output` before its place.

        They equal `output` if and only if `generate` would give it, at a tenth of the time.
        """
        ids: list[int] = self.logprobs(prompt, output).argmax(-1).tolist()
        return ids

    @torch.inference_mode()
    def generate(self, prompt: list[int], length: int) -> list[int]:
        """Greedy tokens, the end token allowed to pass as any other."""
        made = self.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=length,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        ids: list[int] = made[0, len(prompt) :].tolist()
        return ids

    @torch.inference_mode()
    def logprobs(self, prompt: list[int], output: list[int]) -> torch.Tensor:
        """Log-probabilities of each output position given all tokens before: [output, vocab]."""
        ids = torch.tensor([[*prompt, *output[:-1]]])
        logits: torch.Tensor = self.model(ids, logits_to_keep=len(output)).logits[0]
        return torch.log_softmax(logits.float(), dim=-1)

    def _load(self, tensors: dict[str, torch.Tensor]) -> None:
        missing, unexpected = self.model.load_state_dict(tensors, strict=False)
        assert not unexpected
        assert missing == ["lm_head.weight"]  # tied to the embedding


@functools.cache
def reference_model() -> Reference:
    """Returns the only one of a process: to make one takes 20 s of a core."""
    return Reference()
