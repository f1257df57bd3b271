"""What a rerank answers: documents with their relevance, the best first."""

from dataclasses import dataclass

import msgspec

from mis_core.tasks.fields.item_errors import ItemError

_DOCUMENTS_PER_UNIT = 100


@dataclass(frozen=True, slots=True)
class RankedText:
    """A document as it was sent."""

    text: str


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """One document.

    Attributes:
        index: Its index in the request.
        relevance_score: Probability that it answers the query, 0 to 1.
        document: The document, if `return_documents`.
    """

    index: int
    relevance_score: float
    document: RankedText | None = None


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Where prompt tokens came from."""

    cached_tokens: int


@dataclass(frozen=True, slots=True)
class RerankUsage:
    """Token counts; what all documents share counts once."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


@dataclass(frozen=True, slots=True)
class ApiVersion:
    """The version of Cohere's API whose shape this is."""

    version: str = "2"


@dataclass(frozen=True, slots=True)
class BilledUnits:
    """What Cohere would bill: a search unit for every 100 documents."""

    search_units: int

    @classmethod
    def of(cls, documents: int) -> "BilledUnits":
        """Return the units of so many documents."""
        return cls(-(-documents // _DOCUMENTS_PER_UNIT))


@dataclass(frozen=True, slots=True)
class RankedTokens:
    """Token counts in Cohere's format."""

    input_tokens: int
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RerankMeta:
    """Metadata that Cohere's clients read.

    Attributes:
        api_version: Version of Cohere's API.
        billed_units: What Cohere would bill.
        tokens: Token counts.
        truncated: Indices of the documents that were truncated, rising.
    """

    api_version: ApiVersion
    billed_units: BilledUnits
    tokens: RankedTokens
    truncated: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents, the most relevant first, among equals in the order of the request.

    Attributes:
        results: The best `top_n`, or all.
        errors: Documents that were not scored, with `on_error: "item"`.
        usage: Token counts.
        meta: Metadata in Cohere's format.
        recipe: Name of the recipe of the prompts, or `custom` for the operator's template.
        calibration: Digest of the calibration of the scores, None if they have none; absent where none is loaded.
    """

    results: tuple[RankedDocument, ...]
    errors: tuple[ItemError, ...]
    usage: RerankUsage
    meta: RerankMeta
    recipe: str
    calibration: str | msgspec.UnsetType | None = msgspec.UNSET
