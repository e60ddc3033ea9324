"""pydantic-ai: an agent's text, instructions, stream, tools and structured output."""

import unittest

from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from shared import KEY, MODEL, SUM, URL, WEATHER, City, get_weather


def agent(**parameters):
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key=KEY))
    return Agent(model, model_settings={"temperature": 0, "timeout": 120}, **parameters)


class PydanticAi(unittest.IsolatedAsyncioTestCase):
    async def test_text_with_instructions(self):
        self.assertIn("42", (await agent(instructions="Answer briefly.").run(SUM)).output)

    async def test_instructions_alone(self):
        self.assertTrue((await agent(instructions="Say hello.").run()).output)

    async def test_stream(self):
        async with agent().run_stream(SUM) as result:
            pieces = [piece async for piece in result.stream_text(delta=True)]
        self.assertIn("42", "".join(pieces))

    async def test_tool_loop(self):
        result = await agent(tools=[get_weather]).run(WEATHER)
        kinds = [part.part_kind for message in result.all_messages() for part in message.parts]
        self.assertIn("tool-return", kinds)
        self.assertTrue(result.output)

    async def test_structured_output(self):
        for output in (NativeOutput(City), NativeOutput(City, strict=False), ToolOutput(City)):
            self.assertIsInstance((await agent(output_type=output).run("Tell me of Paris.")).output, City)


if __name__ == "__main__":
    unittest.main()
