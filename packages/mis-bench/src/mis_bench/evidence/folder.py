"""One folder of evidence: what it is, whether all of it is there, and what is wrong with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mis_bench.artifact import Artifact, ArtifactError, read_artifact
from mis_bench.environment import Environment
from mis_bench.evidence.kinds import FILES, KINDS, EvidenceKind
from mis_bench.manifest import MANIFEST, Kind, Manifest
from mis_bench.results.plan import Plan


class Checked(NamedTuple):
    """A file or folder, what is wrong with it, and what a reader should know; one sentence each."""

    path: Path
    faults: list[str]
    warnings: list[str]


def check_folder(folder: Path) -> Checked:
    """Check a folder that holds evidence, or a part of it."""
    faults, warnings = [], list[str]()
    try:
        for fault in _faults(folder, warnings):
            faults.append(fault)  # noqa: PERF402 - those before an error are kept
    except ArtifactError as error:
        faults.append(_below(folder, str(error)))
    except (OSError, ValueError, ArithmeticError, RecursionError) as error:  # of content that no schema refuses
        faults.append(f"it cannot be checked: {type(error).__name__}: {error}")
    return Checked(folder, faults, warnings)


def check_file(path: Path) -> Checked:
    """Check a document that stands alone, by its schema."""
    try:
        read_artifact(path)
    except ArtifactError as error:
        return Checked(path, [str(error).removeprefix(f"{path}: ")], [])
    return Checked(path, [], [])


def _faults(folder: Path, warnings: list[str]) -> Iterator[str]:
    if not (folder / MANIFEST).exists():
        yield from _without_manifest(folder, warnings)
        return
    manifest = read_artifact(folder / MANIFEST)
    if not isinstance(manifest, Manifest):
        raise ArtifactError(f"{folder / MANIFEST} is not a {Manifest.SCHEMA}")
    kind = KINDS[manifest.kind]
    listed = {each.path for each in manifest.files}
    changes = list(manifest.changes(folder))
    yield from changes
    missing = [name for name in kind.stated if not (folder / name).exists()]
    needs = f"evidence of kind {manifest.kind} needs"
    yield from (f"{name}: it is missing, and {needs} it" for name in missing if name not in listed)
    for name in kind.stated:
        if name not in listed:
            yield f"{MANIFEST}: files does not list {name}, which {needs}"
    for name in sorted(FILES - {MANIFEST} - set(kind.stated)):
        if (folder / name).exists():
            yield f"{name}: evidence of kind {manifest.kind} has no such file"
    if missing:
        return
    documents = {name: _document(folder / name, wanted) for name, wanted in kind.documents.items()}
    for name, document in documents.items():
        if document.is_old:
            yield f"{name}: schema_version is {document.schema_version}, which had no {MANIFEST}"
        warnings += _unknown(name, document)
    yield from kind.check(folder, manifest.kind)


def _without_manifest(folder: Path, warnings: list[str]) -> Iterator[str]:
    """Check a folder that was interrupted, or made before there were manifests."""
    there = sorted(name for name in FILES if (folder / name).exists())
    for evidence in {kind.first: kind for kind in KINDS.values()}.values():
        mine = [name for name in there if name in evidence.stated]
        if mine and evidence.first not in mine:
            yield f"{evidence.first}: it is missing, so nothing can be said of {' and '.join(mine)}"
        elif mine:
            yield from _old(folder, evidence, warnings)


def _old(folder: Path, evidence: EvidenceKind, warnings: list[str]) -> Iterator[str]:
    first = _document(folder / evidence.first, evidence.documents[evidence.first])
    kind: Kind = first.preset if isinstance(first, Plan) else next(name for name in KINDS if KINDS[name] is evidence)
    missing = [name for name in evidence.stated if not (folder / name).exists()]
    if not first.is_old:
        yield f"there is no {MANIFEST}: evidence of kind {kind}, which was interrupted"
    elif missing:
        yield f"there is no {' and no '.join(missing)}: evidence of kind {kind}, which was interrupted"
    for name in evidence.documents:
        if name in missing:
            continue
        document = _document(folder / name, evidence.documents[name])
        if document.is_old != first.is_old:
            yield f"{name}: {document.schema_version} does not match {first.schema_version} of {evidence.first}"
    warnings += _unknown(evidence.first, first)
    if first.is_old and not missing:
        yield from evidence.check(folder, kind)


def _document(path: Path, wanted: type[Artifact]) -> Artifact:
    document = read_artifact(path)
    if not isinstance(document, wanted):
        raise ArtifactError(f"{path}: schema_version is {document.schema_version}, not {wanted.SCHEMA}")
    return document


def _unknown(name: str, document: Artifact) -> Iterator[str]:
    """Yield what a document does not tell of where it was made."""
    where = getattr(document, "environment", None)
    if not isinstance(where, Environment):
        return
    if where.commit is None:
        yield f"{name}: environment.commit is unknown"
    others = {package: found for package, found in where.commits.items() if found.commit != where.commit}
    if others:
        told = ", ".join(f"{package} of {found}" for package, found in others.items())
        yield f"{name}: environment.commits differ: {told}, and mis-bench of {(where.commit or 'none')[:12]}"


def _below(folder: Path, sentence: str) -> str:
    """Return a sentence that begins with a file, without its folder."""
    return sentence.removeprefix(f"{folder}/")
