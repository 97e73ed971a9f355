"""Decoders with one mistake in their steps."""

from dataclasses import fields

from treeopt.runtime import Decoder
from treeopt.runtime.decoding.step import Stepper


def decoder_with(stepper):
    """Return a kind of decoder that decodes its steps with another kind of stepper."""

    class Changed(Decoder):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self._stepper = stepper(*(getattr(self._stepper, field.name) for field in fields(Stepper)))

    return Changed


class RestartedGenerator(Stepper):
    """Restarts the generator of a sequence in every step."""

    def draft(self, sequences):
        for number in sequences:
            self.targets[number].generator.manual_seed(number)
        return super().draft(sequences)
