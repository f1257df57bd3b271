"""Which rows of two runs may be compared: those of the same model and type, asked the same in the same way."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mis_bench.results.figures import Row
from mis_bench.results.records import Results

_MODELS = ("random weights", "configuration and weights' index", "weights", "name")
"""What tells models apart, the surest first; the first that both rows have decides."""


@dataclass(frozen=True, slots=True)
class RowKey:
    """What two rows must have in common.

    Attributes:
        models: What is known of the model, by `_MODELS`.
        facts: Everything else, by what it is called.
    """

    models: Mapping[str, str]
    facts: Mapping[str, object]

    @classmethod
    def of(cls, row: Row, results: Results) -> "RowKey":
        """Describe a row of a run."""
        case, target = results.plan.case(row.case), results.plan.target(row.target)
        about = next(
            (each.about for each in reversed(results.opened) if each.target == row.target and each.about), None
        )
        is_random = (target.model or "").startswith("random:")
        known = (
            target.model if is_random else None,
            target.model_sha256,
            about.model_sha256 if about else None,
            about.model if about else None,
        )
        models = {kind: model for kind, model in zip(_MODELS, known, strict=True) if model}
        facts = {
            "dtype": row.dtype,
            "quantization": (about.options.get("quantization") if about else None) or "none",
            "workload": case.workload.sha256,
            "items": row.num_items,
            "labels": row.num_labels,
            "cache": row.cache,
            "load": row.load,
            "items of a call": row.chunk_items,
            "phase": row.phase,
        }
        return cls(models, facts)

    def unlike(self, other: "RowKey") -> Iterator[str]:
        """Yield what is not the same, beginning with the model."""
        shared = [kind for kind in _MODELS if kind in self.models and kind in other.models]
        if not shared:
            yield "nothing says that the model is the same"
        elif self.models[shared[0]] != other.models[shared[0]]:
            mine, theirs = self.models[shared[0]], other.models[shared[0]]
            is_name = shared[0] in ("random weights", "name")
            yield f"model is {mine} and was {theirs}" if is_name else f"model differs in its {shared[0]}"
        for name, fact in self.facts.items():
            if fact != other.facts[name]:
                yield f"{name} is {_short(fact)} and was {_short(other.facts[name])}"


def _short(fact: object) -> str:
    return str(fact)[:20]


def partners(now: Sequence[tuple[Row, RowKey]], then: Sequence[tuple[Row, RowKey]]) -> list[tuple[Row, Row]]:
    """Return the rows that are alike, of now and then: first those of the same target, then of what is left.

    Each is in one pair at most, and in none where it is not clear in which.
    """
    alike = [(row, other) for row, key in now for other, theirs in then if not any(key.unlike(theirs))]
    found: list[tuple[Row, Row]] = []
    for wanted in ([pair for pair in alike if pair[0].target == pair[1].target], alike):
        taken = {id(row) for pair in found for row in pair}
        left = [pair for pair in wanted if not taken & set(map(id, pair))]
        uses = Counter(id(row) for pair in left for row in pair)
        found += [pair for pair in left if all(uses[id(row)] == 1 for row in pair)]
    order = {id(row): index for index, (row, _) in enumerate(now)}
    return sorted(found, key=lambda pair: order[id(pair[0])])
