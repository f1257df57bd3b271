"""How long steps, fronts and callers took in a measured run, for a simulation of it."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import httpx
import numpy as np

from load import Answer

_STAGE = re.compile(r"(\w+);dur=([\d.]+)")
_LOGGED = re.compile(r"^POST .* \d+/\d+/\d+/\d+/(\d+) ms ", re.MULTILINE)  # `%Ta`: from the choice to the reply's end


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of a run, in seconds.

    Steps and fronts: by the utilisation law (Denning and Buzen, 1978), the time in which a replica had something for
    its engine, by its steps; likewise its front process, by its requests. How the engine's is divided among steps and
    tokens is from a least-squares fit of the requests' time in it by the tokens that they missed. Callers think as long
    as Little's law leaves them.

    Attributes:
        step_s: Mean of a step without tokens; likewise `token_s` of each of its tokens, `front_s` of a request.
        think_s: Of a caller, between an answer at the gateway and its next request there.
        step_factors: Of each step of each request, its time in the engine by what the fit expects; in order of time,
            one replica behind the other. Likewise `front_factors` of each request.
    """

    step_s: float
    token_s: float
    front_s: float
    think_s: float
    step_factors: tuple[float, ...]
    front_factors: tuple[float, ...]

    def __str__(self) -> str:
        """Return a line."""
        return (
            f"a step {1e3 * self.step_s:.1f} ms and {1e6 * self.token_s:.0f} us a token (standard deviation "
            f"{np.std(self.step_factors):.0%}), front {1e3 * self.front_s:.1f} ms ({np.std(self.front_factors):.0%}), "
            f"callers {1e3 * self.think_s:.1f} ms"
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """Of an engine: steps, and tokens computed in them."""

    steps: float
    tokens: float

    def __sub__(self, before: Self) -> Self:
        """Return what was done since."""
        return type(self)(self.steps - before.steps, self.tokens - before.tokens)


def counts(url: str) -> Counts:
    """Read a replica's counts so far."""
    text = httpx.get(f"{url}/metrics", trust_env=False, verify=False).text
    names = ("mis_engine_steps_total", "mis_engine_new_tokens_total")
    return Counts(*(float(re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)[0]) for name in names))


def gateway_seconds(log: str) -> float:
    """Return the mean time of requests in HAProxy and behind it."""
    return statistics.fmean(int(each) for each in _LOGGED.findall(log)) / 1e3


def timing(
    answers: Sequence[Answer],
    done: Mapping[str, Counts],
    *,
    query_tokens: int,
    step_tokens: int,
    in_gateway_s: float,
    callers: int,
) -> Timing:
    """Return the times of a run.

    Args:
        answers: Of all requests.
        done: What the engines of replicas that were never lost did in this run, by name.
        query_tokens: Of each query.
        step_tokens: Most of a step.
        in_gateway_s: Mean time in HAProxy and behind it.
        callers: How many asked.
    """
    good = [each for each in answers if each.status == 200]
    stages = [dict(_STAGE.findall(each.headers["server-timing"])) for each in good]
    device, queue = (np.array([float(each[name]) / 1e3 for each in stages]) for name in ("device", "queue"))
    began, total = np.array([each.began_s for each in good]), np.array([each.seconds for each in good])
    missing = np.array([query_tokens - each.cached_tokens for each in good])
    around = total - device - queue  # client, gateway and front
    front = around * max(in_gateway_s - float((device + queue).mean()), 1e-4) / around.mean()

    token, step = np.polyfit(missing, device, 1)
    whole = {name: np.array([each.replica == name for each in good]) for name in done}
    enters = began + around / 2 + queue
    engine_s = sum(_busy(enters[own], device[own]) for own in whole.values())
    front_s = sum(_busy(began[own], front[own]) for own in whole.values())
    expected = step + token * missing
    fitted = sum(step * each.steps + token * each.tokens for each in done.values())
    order = np.lexsort((began + total, [each.replica for each in good]))
    elapsed = float((began + total).max() - began.min())
    return Timing(
        step_s=float(step * engine_s / fitted),
        token_s=float(token * engine_s / fitted),
        front_s=front_s / sum(int(own.sum()) for own in whole.values()),
        think_s=max(callers * elapsed / len(answers) - in_gateway_s, 0.0),
        step_factors=_factors(np.repeat((device / expected)[order], np.maximum(-(-missing // step_tokens), 1)[order])),
        front_factors=_factors(front[order]),
    )


def _busy(begins: np.ndarray, lengths: np.ndarray) -> float:
    """Return how much of the time some interval covers."""
    covered, end = 0.0, -np.inf
    for begin, length in sorted(zip(begins.tolist(), lengths.tolist(), strict=True)):
        covered += max(begin + length - max(begin, end), 0.0)
        end = max(end, begin + length)
    return covered


def _factors(values: np.ndarray) -> tuple[float, ...]:
    return tuple((values / values.mean()).tolist())
