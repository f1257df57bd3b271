"""The words of `/tokenize` and `/detokenize`, as vLLM has them."""

from pydantic import BaseModel, ConfigDict, Field

from mis_server.schemas.score import TokenId


class TokenizeBody(BaseModel):
    """For the OpenAPI document; the route checks what arrives."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"prompt": " yes"}]})

    prompt: str = Field(description="Text.")
    model: str = Field(default="", description="The served model; another name is refused.")
    add_special_tokens: bool = Field(default=True, description="Add what the tokenizer adds at the ends, as scores do.")
    return_token_strs: bool = Field(default=False, description="Also return the tokens as the vocabulary spells them.")


class TokenizeReply(BaseModel):
    """Ids of a text."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(BaseModel):
    """For the OpenAPI document; the route checks what arrives."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"tokens": [9834]}]})

    tokens: list[TokenId] = Field(description="Token ids.")
    model: str = Field(default="", description="The served model; another name is refused.")


class DetokenizeReply(BaseModel):
    """The text of ids."""

    prompt: str
