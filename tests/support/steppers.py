"""Decoders whose steps have one mistake."""

from dataclasses import fields

from treeopt.runtime import Decoder
from treeopt.runtime.decoding.step import Stepper


def decoder_with(stepper):
    """Return a kind of decoder that decodes its steps with another kind of stepper."""

    class Changed(Decoder):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self._stepper = stepper(*(getattr(self._stepper, each.name) for each in fields(Stepper)))

    return Changed


class NoiseAgain(Stepper):
    """Begins the random numbers of a text anew in every step."""

    def draft(self, texts):
        for text in texts:
            self.targets[text].noise.manual_seed(text)
        return super().draft(texts)
