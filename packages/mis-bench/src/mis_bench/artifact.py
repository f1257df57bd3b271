"""Documents that commands write: a schema's name and version, unknown fields refused, complete or absent on disk."""

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import mis_bench

MODULES = ("manifest", "results.plan", "results.summary", "validation.gates", "profile.records")
"""Modules that declare kinds of artifacts; a new one is a line here."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class ArtifactError(ValueError):
    """A file is not the artifact that it should be; names the file and the field."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an `OSError` name a file if it names none: that of a full disk does not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


class Part(BaseModel):
    """A part of an artifact: immutable, unknown fields are refused, and numbers are finite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Artifact(Part):
    """A JSON file. A subclass names its schema: `class Plan(Artifact, schema="mis-plan-v2", older=("mis-plan-v1",))`.

    Documents of older versions are read, too; what these did not have is optional.
    """

    SCHEMA: ClassVar[str]
    OLDER: ClassVar[tuple[str, ...]]

    schema_version: str = Field(default="", description="Name and version of the schema that the file follows.")
    generated_by: str = Field(
        default_factory=lambda: f"mis-bench {mis_bench.__version__}", pattern=r"^mis-bench \d+\.\d+\.\d+"
    )

    def __init_subclass__(cls, schema: str, older: tuple[str, ...] = (), **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.SCHEMA, cls.OLDER = schema, older
        # Before pydantic collects the fields: the only values allowed, and the default.
        cls.__annotations__["schema_version"] = Literal[(schema, *older)]  # pyrefly: ignore[invalid-literal, not-a-type]
        described = Artifact.model_fields["schema_version"].description
        cls.schema_version = Field(default=schema, description=described)  # pyrefly: ignore[read-only]

    @property
    def is_old(self) -> bool:
        """Whether it follows an older version of its schema."""
        return self.schema_version != self.SCHEMA

    def write(self, path: Path) -> None:
        """Write as indented JSON; the file is complete or absent, never half written.

        Raises:
            OSError: it cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        with naming(path):
            try:
                partial.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise


def kinds() -> dict[str, type[Artifact]]:
    """Return every kind of artifact by its `schema_version`, older ones included."""
    for module in MODULES:
        importlib.import_module(f"mis_bench.{module}")
    return {version: kind for kind in Artifact.__subclasses__() for version in (kind.SCHEMA, *kind.OLDER)}


def read_artifact(path: Path) -> Artifact:
    """Read any artifact, checked against its schema.

    Raises:
        ArtifactError: it is no artifact, or breaks its schema; the first fault is named.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: {error}") from None
    known = kinds()
    kind = known.get(str(fields.get("schema_version"))) if isinstance(fields, dict) else None
    if kind is None:
        raise ArtifactError(f"{path}: schema_version must be one of {', '.join(sorted(known))}")
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8-sig"))
    except ValidationError as error:
        raise ArtifactError(f"{path}: {first_fault(error)}") from None


def first_fault(error: ValidationError) -> str:
    """Return the first fault that pydantic found: where, and what."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}"


def schemas() -> dict[str, str]:
    """Return the text of every JSON schema by its file's name, `mis-plan-v2.json` for instance; of no older ones."""
    described = {}
    for name, kind in sorted(kinds().items()):
        if name == kind.SCHEMA:
            schema = kind.model_json_schema()
            version = schema["properties"]["schema_version"]
            version.pop("enum", None)
            version["const"] = name
            described[f"{name}.json"] = json.dumps({"$schema": _DIALECT, **schema}, indent=1) + "\n"
    return described


if __name__ == "__main__":
    from mis_bench import artifact  # the module that others know, not `__main__`

    for name, text in artifact.schemas().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")
