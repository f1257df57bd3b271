"""Which program an operation of a CPU belongs to, whatever its number says."""

from mis_bench.profile.programs import TracedInstruction, TracedProgram, instructions_of

NORM, DOWN = (
    TracedInstruction("fusion", "jit(step)/layers/mlp/norm/mul"),
    TracedInstruction("fusion", "jit(step)/layers/mlp/down/dot"),
)
SMALL = TracedProgram("jit_step", {"fusion.1": NORM, "fusion.2": DOWN})
LARGE = TracedProgram("jit_step", {"fusion.1": NORM, "fusion.2": NORM, "fusion.3": DOWN})
OTHER = TracedProgram("jit_draw", {"fusion.1": DOWN})


def test_numbers_count_where_all_are_right() -> None:
    runs = {("jit_step", 1): {"fusion.1", "fusion.2"}, ("jit_draw", 3): {"fusion.1"}}
    found = instructions_of(runs, {1: SMALL, 2: LARGE, 3: OTHER})
    assert found == {("jit_step", 1): SMALL.instructions, ("jit_draw", 3): OTHER.instructions}


def test_a_step_compiled_by_another_process_is_found_by_what_ran() -> None:
    runs = {("jit_step", 9): {"fusion.1", "fusion.2", "fusion.3"}}
    assert instructions_of(runs, {1: SMALL, 2: LARGE})["jit_step", 9] == LARGE.instructions


def test_its_number_may_be_anothers() -> None:
    """Number 3 is a step here, and was another program where that one was compiled."""
    runs = {("jit_draw", 3): {"fusion.1"}, ("jit_step", 4): {"fusion.3"}}
    found = instructions_of(runs, {3: LARGE, 4: OTHER})
    assert found == {("jit_draw", 3): OTHER.instructions, ("jit_step", 4): LARGE.instructions}


def test_steps_that_cannot_be_told_apart_have_what_they_agree_on() -> None:
    runs = {("jit_step", 1): {"fusion.1", "fusion.2"}, ("jit_draw", 9): {"fusion.1"}}
    found = instructions_of(runs, {1: SMALL, 2: LARGE, 3: OTHER})
    assert found["jit_step", 1] == {"fusion.1": NORM, "fusion.3": DOWN}


def test_what_no_program_has_is_unknown() -> None:
    runs = {("jit_step", 1): {"fusion.9"}, ("jit_gone", 7): {"fusion.1"}}
    assert instructions_of(runs, {2: SMALL}) == {("jit_step", 1): {}, ("jit_gone", 7): {}}
