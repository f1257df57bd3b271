"""Fields of bodies that are answered with text: how tokens are drawn, where an answer ends, and how it is sent."""

from typing import Annotated

from pydantic import BaseModel, Field

from mis_server.schemas.score import TokenId


class StreamOptions(BaseModel):
    """What is streamed beside the answer."""

    include_usage: bool = Field(default=False, description="Send the usage in an event of its own, before the last.")


class SamplingBody(BaseModel):
    """Describes these fields in the OpenAPI document; `mis_core.tasks.text.sampling` checks what arrives."""

    temperature: float | None = Field(default=1.0, ge=0, le=2, description="0: the most probable token.")
    top_p: float | None = Field(default=1.0, ge=0, le=1, description="Draw from the most probable of this mass.")
    top_k: int | None = Field(default=0, ge=-1, lt=2**31 - 1, description="Draw from so many most probable; 0: all.")
    min_p: float | None = Field(
        default=0.0, ge=0, le=1, description="Draw from those with this share of the most probable one's probability."
    )
    presence_penalty: float | None = Field(
        default=0.0, ge=-2, le=2, description="Is taken from the logits of tokens that the answer has."
    )
    frequency_penalty: float | None = Field(
        default=0.0, ge=-2, le=2, description="Likewise, for each time that the answer has them."
    )
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63, description="Draw the same tokens again.")
    logit_bias: dict[Annotated[str, Field(pattern="^[0-9]+$")], Annotated[float, Field(ge=-100, le=100)]] | None = (
        Field(default=None, description="Numbers that are added to the logits of tokens before one is drawn.")
    )
    stop: str | list[str] | None = Field(default=None, description="Texts before which an answer ends.")
    stop_token_ids: list[TokenId] | None = Field(default=None, description="Tokens with which an answer ends.")
    ignore_eos: bool | None = Field(default=False, description="Go on behind the token with which answers end.")
    stream: bool | None = Field(default=False, description="Send answers as server-sent events.")
    stream_options: StreamOptions | None = Field(default=None, description="Needs `stream`.")
    cache_salt: str | None = Field(
        default=None, description="Requests share cached prefixes only with requests that have the same salt."
    )
