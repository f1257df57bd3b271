"""Folders of every kind, damaged in every way that is told apart: as they are, and with the manifest written anew."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from damaged_documents import DAMAGES, of_memory
from damages import Damage, of_manifest, write_anew
from evidence_makers import MAKERS, making, memory_profile
from mis_bench.evidence.folder import Checked, check_folder
from mis_bench.evidence.kinds import KINDS
from mis_bench.manifest import Kind

SHORT = ("sweep", "validate", "profile")
"""Kinds whose mechanisms the others share, but for those of their own."""

NIGHTLY = [pytest.param(kind, marks=[] if kind in SHORT else [pytest.mark.full]) for kind in get_args(Kind)]
RUNBOOK = Path(__file__).parents[3] / "docs" / "runbooks" / "benchmarks.md"


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`whole("run")`: a folder of a kind, made once. Do not change it."""
    made: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp("evidence") / kind
            with making(checkpoint) as maker:
                (memory_profile if kind == "memory" else MAKERS[kind])(maker, folder)  # type: ignore[index]
            made[kind] = folder
        return made[kind]

    return of


def damaged(whole: Path, place: Path, damage: Damage) -> Checked:
    """Check a copy, which is damaged by then."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(whole, place)
    damage.do(place)
    return check_folder(place)


def wrongs(whole: Path, place: Path, damages: Iterator[Damage]) -> Iterator[str]:
    """Yield every damage of which something else is said than should be."""
    for damage in damages:
        as_it_is = damaged(whole, place, damage).faults
        if not as_it_is:
            yield f"{damage.name}: not found"
        if damage.is_of_manifest:
            found = as_it_is
        else:
            write_anew(place)
            found = check_folder(place).faults
        if damage.says is None:
            if found:
                yield f"{damage.name}: found without its digest, so take it off the list: {found[0]}"
        elif not any(re.search(damage.says, fault) for fault in found):
            yield f"{damage.name}: {damage.says!r} is not said in {found[:3]}"


@pytest.mark.parametrize("kind", NIGHTLY)
def test_every_damage_is_found_even_with_a_rewritten_manifest(
    whole: Callable[[str], Path], tmp_path: Path, kind: Kind
) -> None:
    assert check_folder(whole(kind)).faults == []
    assert list(wrongs(whole(kind), tmp_path / "copy", DAMAGES[kind]())) == []


@pytest.mark.parametrize("kind", NIGHTLY)
def test_every_damage_of_the_manifest_is_found(whole: Callable[[str], Path], tmp_path: Path, kind: Kind) -> None:
    assert list(wrongs(whole(kind), tmp_path / "copy", of_manifest())) == []


def test_damages_of_a_profile_of_memory_are_found(whole: Callable[[str], Path], tmp_path: Path) -> None:
    assert check_folder(whole("memory")).faults == []
    assert list(wrongs(whole("memory"), tmp_path / "copy", of_memory())) == []


def test_every_kind_has_files_a_maker_and_damages() -> None:
    assert set(KINDS) == set(MAKERS) == set(DAMAGES) == set(get_args(Kind))


def test_what_only_a_digest_finds_is_listed_in_the_runbook() -> None:
    section = RUNBOOK.read_text(encoding="utf-8").partition("### What only a digest finds")[2].partition("\n## ")[0]
    listed = {line.removeprefix("- ") for line in section.splitlines() if line.startswith("- ")}
    damages = [*of_memory(), *(damage for kind in get_args(Kind) for damage in DAMAGES[kind]())]
    assert listed == {damage.name for damage in damages if damage.says is None}
