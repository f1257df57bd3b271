"""What all artifacts share: a schema's name and version, the environment, and how they are written and read."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import mis_bench
from mis_bench.environment import Environment

KINDS: dict[str, type["Artifact"]] = {}
"""Every kind of artifact by its `schema_version`; filled by the classes themselves, so ask `kinds()`."""


class ArtifactError(ValueError):
    """A file is not the artifact that it should be; names the file and the field."""


class Part(BaseModel):
    """A part of an artifact: unknown fields are refused, and numbers are finite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Artifact(Part):
    """A file that a command writes.

    A subclass names its schema, `class RunResult(Artifact, schema="mis-run-v1")`, and declares its fields.
    """

    SCHEMA: ClassVar[str]

    schema_version: str = Field(default="", description="Name and version of the schema that the file follows.")
    generated_by: str = Field(
        default_factory=lambda: f"mis-bench {mis_bench.__version__}", pattern=r"^mis-bench \d+\.\d+\.\d+"
    )
    environment: Environment

    def __init_subclass__(cls, schema: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.SCHEMA = schema
        KINDS[schema] = cls
        # Before pydantic collects the fields: the only value allowed, and the default.
        cls.__annotations__["schema_version"] = Literal[schema]  # pyrefly: ignore[not-a-type]
        cls.schema_version = Field(default=schema, description=Artifact.model_fields["schema_version"].description)

    def inconsistencies(self) -> Iterator[str]:
        """Yield every way in which the fields contradict each other, one sentence each; a subclass has its own."""
        yield from ()

    def write(self, path: Path) -> None:
        """Write as indented JSON; the file is complete or absent, never half written."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        partial.replace(path)


def kinds() -> dict[str, type[Artifact]]:
    """Return every kind by its `schema_version`, whichever modules were imported so far."""
    from mis_bench import artifacts

    for module in pkgutil.iter_modules(artifacts.__path__):
        importlib.import_module(f"{artifacts.__name__}.{module.name}")
    return KINDS


def read_artifact(path: Path) -> Artifact:
    """Read any artifact, checked against its schema and its own rules.

    Raises:
        ArtifactError: it is no artifact, or breaks its schema; the first fault is named.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: {error}") from None
    known = kinds()
    kind = known.get(fields.get("schema_version", "")) if isinstance(fields, dict) else None
    if kind is None:
        raise ArtifactError(f"{path}: schema_version must be one of {', '.join(sorted(known))}")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise ArtifactError(f"{path}: {'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}") from None
