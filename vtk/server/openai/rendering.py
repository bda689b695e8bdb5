"""How a conversation becomes a prompt: what chat and `/tokenize` share, so that they agree on every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from vtk.server.openai.errors import ParamError
from vtk.server.openai.messages import TemplateMessage
from vtk.server.openai.strict import Body
from vtk.server.openai.tools import takes_tools, with_tools

if TYPE_CHECKING:
    from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

_END = "the-final-message-ends-here"


class RenderingFields(Body):
    """vLLM's fields about the chat template.

    continue_final_message: the prompt ends inside the last message, which the model goes on writing.
    chat_template_kwargs: variables of the model's own template, such as `enable_thinking`.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_end(self) -> RenderingFields:
        if self.continue_final_message and self.add_generation_prompt:
            raise ParamError("continue_final_message", "It needs 'add_generation_prompt' set to false.")
        return self

    @property
    def is_plain(self) -> bool:
        """Nothing but the messages and tools decides the prompt."""
        return self.add_generation_prompt and not self.chat_template_kwargs

    def render(
        self, tokenizer: Tokenizer, messages: Sequence[TemplateMessage], tools: Sequence[dict[str, Any]] | None
    ) -> str:
        """The text of the prompt. RequestError where the template does not take it."""
        content = messages[-1]["content"].strip()
        if self.continue_final_message:
            messages = [*messages[:-1], {**messages[-1], "content": content + _END}]
        text = tokenizer.render_chat(
            messages,
            tools=tools,
            add_generation_prompt=self.add_generation_prompt,
            variables=self.chat_template_kwargs,
        )
        return _until_content(text, content) if self.continue_final_message else text


def told(
    messages: list[TemplateMessage], tools: Sequence[dict[str, Any]], template: str | None
) -> tuple[list[TemplateMessage], list[dict[str, Any]] | None]:
    """Messages and tools as a template takes them: one that knows no tools reads of them in the messages."""
    if tools and not takes_tools(template):
        return with_tools(messages, tools), None
    return messages, list(tools) or None


def _until_content(text: str, content: str) -> str:
    """Cut what the template writes after the last message. Its content may stand there too: `<` in `<|im_end|>`."""
    end = text.rfind(_END)
    if end < 0 or not text[:end].endswith(content):
        raise ParamError("continue_final_message", "The chat template changes the last message, which cannot go on.")
    return text[:end]
