"""A kind of request: how its fields become what the engine computes, and the engine's outputs its result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

from mis_core.calibration import Calibrations
from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.limits import Limits
from mis_core.tokenization import Meter, Tokenizer, TooMuchWork

Fields = Mapping[str, object]
"""Fields of a request by their names: the JSON object of its route, or keyword arguments from Python.

From Python, tuples and integer arrays are lists, too, and NumPy integers are `int`.
"""

ServedModels = tuple[str, ...] | None
"""Names that the field `model` may have; None allows every name."""


@runtime_checkable
class Parsed(Protocol):
    """What a task has made of the fields of a request: what the engine computes, and whatever its result needs."""

    @property
    def requests(self) -> tuple[ScoreRequest, ...]:
        """What the engine computes; nothing if each of its items is wrong in itself."""


ParsedType = TypeVar("ParsedType", bound=Parsed)
Result = TypeVar("Result")


def _always(fields: Fields) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Task(Generic[ParsedType, Result]):
    """One kind of request. Its functions are pure and can be pickled, so that they may run anywhere.

    Attributes:
        name: What people call it, such as `score`.
        parse: Validates fields and tokenises their texts: with the model's tokenizer, which may be None where
            `has_text` is false, and within limits. Raises `RequestError`, whose `code` and `param` say how the request
            breaks the contract, or what the tokenizer's meter raises.
        finish: Turns the engine's outputs, one for each of the parsed `requests`, into the result, with the model's
            calibrations where they are loaded. Raises ValueError where outputs lack what was asked for, and
            FloatingPointError where it is not finite.
        has_text: Whether these fields need a tokenizer.
        model_names: Names of models that clients of its protocol send unless told otherwise; they stand for the served
            one.
    """

    name: str
    parse: Callable[[Fields, Tokenizer | None, Limits, ServedModels], ParsedType]
    finish: Callable[[ParsedType, tuple[EngineOutput, ...], Calibrations | None], Result]
    has_text: Callable[[Fields], bool] = _always
    model_names: tuple[str, ...] = ()

    def read(self, fields: Fields, tokenizer: Tokenizer | None, limits: Limits, models: ServedModels) -> ParsedType:
        """Parse; what would cost more than the limits allow is refused before it is done.

        Raises:
            RequestError: the request breaks the contract, or is too much work.
        """
        metered = None if tokenizer is None else tokenizer.metered(Meter(limits.max_work))
        try:
            return self.parse(fields, metered, limits, models)
        except TooMuchWork as error:
            message = (
                f"The texts are tokenised so often that they count as more than {error.most} characters. Send fewer "
                "or shorter ones at a time, or token ids."
            )
            raise RequestError("too_many_tokens", message) from None
