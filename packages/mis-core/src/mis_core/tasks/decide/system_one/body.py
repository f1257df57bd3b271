"""The body of System One: TypeSafe's protocol, which other servers speak, too.

`questions` has a reader of its own, in `questions`, so that each question may be wrong by itself. The types of its
members here are for documents. Subject: the OpenAPI document of TypeSafe's service, as its Python client has it.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mis_core.tasks.decide.questions import MAX_CHOICES, MAX_LEVELS, ReadingOrder
from mis_core.tasks.fields.body import Body, CacheSalt, Calibration, ModelName, about

Content = str | dict[str, Any] | list[Any]
"""What the model reads as it is if it is a text, and as compact JSON otherwise."""

AbstainBelow = Annotated[float, Meta(ge=0, le=1)]


class Sides(Struct, frozen=True, forbid_unknown_fields=True, rename={"yes": "true", "no": "false"}):
    """What counts as yes, and what as no."""

    yes: Content | None = None
    no: Content | None = None


class QuestionFields(Struct, frozen=True, kw_only=True):
    """What all questions have. Names that begin with `x_` and are not known are ignored."""

    instructions: Content | None = None
    x_abstain_below: AbstainBelow | None = None


class NoulFields(QuestionFields, frozen=True, kw_only=True, tag_field="type", tag="noul"):
    """Is it so? It needs instructions, or a description of one side."""

    criteria: Sides | None = None


class ChoiceFields(QuestionFields, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    """Which is it? Each choice has a description, or null."""

    criteria: Annotated[dict[str, Content | None], Meta(min_length=2, max_length=MAX_CHOICES)]


class ScoreFields(QuestionFields, frozen=True, kw_only=True, tag_field="type", tag="score"):
    """How much is it?"""

    criteria: Annotated[
        list[Content], Meta(min_length=2, max_length=MAX_LEVELS, description="From the lowest to the highest.")
    ]


Questions = Annotated[
    dict[str, Any],
    Meta(min_length=1),
    about(
        "The questions, keyed by ids that you choose. Each is answered independently.",
        noun="an object with a question for each id",
        each=NoulFields | ChoiceFields | ScoreFields,
        empty="empty_questions",
    ),
]
"""The type of the field `questions`."""


class SystemOneOptions(Body, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """How questions are asked, whatever they are about; other fields are ignored."""

    model: ModelName = None
    assets: Annotated[
        dict[str, Any] | None,
        about("Not supported: it holds images, and the model reads text only.", wrong="unsupported_parameter"),
    ] = None
    x_on_error: Annotated[
        Literal["request", "item"],
        about(
            "What happens if a question cannot be answered: `request` refuses the whole request; `item` gives the "
            "question an entry in `x_errors` and answers the rest."
        ),
    ] = "request"
    x_choice_order: ReadingOrder = None
    x_cache_salt: CacheSalt = None
    x_calibration: Calibration = None
    x_abstain_below: Annotated[
        AbstainBelow | None,
        about(
            "`x_abstained` lists the ids of answers whose confidence is below this. A question may set its own. The "
            "confidence of a noul is twice the distance of its probability from one half."
        ),
    ] = None


class SystemOneBody(SystemOneOptions, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Fields of `POST /v1/systemone`."""

    state: Annotated[
        Any,
        about(
            "What the questions are about. The prompt of MIS writes an object or a list as compact JSON.",
            noun="a text, an object or a list",
            schemas=(str, dict[str, Any], list[Any]),
        ),
    ]
    questions: Questions


class SystemOneBatchBody(SystemOneOptions, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Fields of `POST /v1/systemone/batch`. Each state may be wrong by itself: it is read as a request of its own."""

    states: Annotated[
        list[Any],
        Meta(min_length=1),
        about(
            "What the questions are about, each answered by itself. An object or a list is read as compact JSON.",
            noun="a list of texts, objects or lists",
            each=(str, dict[str, Any], list[Any]),
            empty="empty_states",
        ),
    ]
    questions: Questions
