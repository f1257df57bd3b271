"""Traces made by hand, in the form of `*.xplane.pb`."""

from collections.abc import Sequence

from mis_bench.profile.trace import REQUEST


def encoded(*fields: tuple[int, int | str | bytes]) -> bytes:
    """Encode a protobuf message from numbers and values of its fields."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(varint(number << 3) + varint(value))
        else:
            content = value.encode() if isinstance(value, str) else value
            parts.append(varint(number << 3 | 2) + varint(len(content)) + content)
    return b"".join(parts)


def varint(value: int) -> bytes:
    found = []
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def instruction(name: str, kind: str, scope: str = "", number: int = 0, reads: Sequence[int] = ()) -> tuple[int, bytes]:
    where = [(7, encoded((2, scope)))] if scope else []
    return 2, encoded((1, name), (2, kind), *where, (35, number), *((36, each) for each in reads))


BODY = "jit(step)/layers/while/body/closed_call"
MODULE = encoded(
    (1, "jit_step"),
    (3, encoded((1, "main"), instruction("while.1", "while", "jit(step)/layers/while"))),
    (3, encoded((1, "body"), instruction("down.1", "fusion", f"{BODY}/mlp/down/dot_general"),
                instruction("norm.1", "fusion", f"{BODY}/mlp/norm/mul"), instruction("slice.1", "slice", BODY))),
    (3, encoded((1, "entry"), instruction("last.1", "fusion", "jit(step)/last_layer/mlp/down/dot_general"),
                instruction("copy.1", "copy"))),
)  # fmt: skip

SPANS = [
    ("while.1", 0, 60), ("down.1", 0, 10), ("norm.1", 10, 10), ("slice.1", 20, 10), ("down.1", 30, 10),
    ("norm.1", 40, 10), ("slice.1", 50, 10), ("last.1", 60, 30), ("copy.1", 95, 5),
]  # fmt: skip
"""Operations, when they begin, and how long they take, in nanoseconds."""


def tpu_trace(module: bytes = MODULE) -> bytes:
    """A trace of one step of three layers, two of them in a loop, in the form of a TPU's, with the program that ran."""
    names = ["while.1", "down.1", "norm.1", "slice.1", "last.1", "copy.1"]
    ids = {name: number for number, name in enumerate(names, 1)}
    events = [encoded((1, ids[name]), (2, begin * 1000), (3, length * 1000)) for name, begin, length in SPANS]
    metadata = [
        (4, encoded((1, number), (2, encoded((1, number), (2, f"%{name} = f32[8]{{0}} fusion()")))))
        for name, number in ids.items()
    ]
    program = 4, encoded((1, 99), (2, encoded((1, 99), (2, "jit_step(7)"))))
    run = encoded((1, 99), (2, 0), (3, 100_000))
    device = encoded(
        (2, "/device:TPU:0"),
        (3, encoded((2, "XLA Modules"), (4, run))),
        (3, encoded((2, "XLA Ops"), *((4, event) for event in events))),
        *metadata,
        program,
    )
    described = encoded((1, 7), (2, "jit_step(7)"), (5, encoded((1, 1), (6, encoded((1, module))))))
    host = encoded((2, "/host:metadata"), (4, encoded((1, 7), (2, described))))
    return encoded((1, device), (1, host))


def request_marks(*spans: tuple[int, int]) -> bytes:
    """Marks around profiled requests, from and to nanoseconds; to be put behind another trace."""
    events = [(4, encoded((1, 1), (2, begin * 1000), (3, (end - begin) * 1000))) for begin, end in spans]
    name = 4, encoded((1, 1), (2, encoded((1, 1), (2, REQUEST))))
    return encoded((1, encoded((2, "/host:CPU"), (3, encoded((2, "python"), *events)), name)))
