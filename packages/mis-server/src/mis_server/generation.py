"""Answers that are generated token by token: a task of their own reads them from the engine while the client reads."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from mis_core.tasks.path.service import Answered
from mis_core.tasks.text.choices import GenerateChunk, GeneratedChoice, GeneratedChoices
from mis_core.tasks.text.parsed import ParsedText, TextResult
from mis_server.streams import ReplyStream

ParsedType = TypeVar("ParsedType", bound=ParsedText)
Result = TypeVar("Result", bound=TextResult)


class GenerationStream(ReplyStream[GenerateChunk], Generic[ParsedType, Result]):
    """A request whose answers are being generated.

    Iterating raises EngineUnavailable, EngineFault, RequestError or ClientDisconnect: why no more comes.

    Attributes:
        answered: What scores said of it.
        choices: Its answers so far.
    """

    answered: Answered[ParsedType, Result]
    choices: GeneratedChoices

    def begin(self, answered: Answered[ParsedType, Result], choices: GeneratedChoices) -> None:
        """Say that the answers begin: from now on, errors come in the middle of them."""
        self.answered, self.choices = answered, choices
        self.open()

    async def hand_over_each(self, receive: Callable[[GeneratedChoice], Awaitable[None]]) -> None:
        """Hand over each answer as soon as it has ended, so that nothing of it is kept here; enters and iterates."""
        async with self:
            async for chunk in self:
                if chunk.finish_reason is not None:
                    await receive(self.choices.pop(chunk.index))
