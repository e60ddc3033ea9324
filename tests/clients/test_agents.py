"""OpenAI's agents SDK over chat completions: an agent's text, stream, tools, hand-over and structured output."""

import unittest

from agents import Agent, AsyncOpenAI, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

from shared import KEY, MODEL, SUM, URL, WEATHER, City
from shared import get_weather as weather

set_tracing_disabled(True)


def agent(name="Helper", **parameters):
    model = OpenAIChatCompletionsModel(MODEL, AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=120))
    settings = ModelSettings(temperature=0, include_usage=True)
    return Agent(**{"name": name, "model": model, "model_settings": settings, "instructions": "Answer briefly.", **parameters})


class Agents(unittest.IsolatedAsyncioTestCase):
    async def test_text(self):
        result = await Runner.run(agent(), SUM)
        self.assertIn("42", result.final_output)
        self.assertGreater(result.context_wrapper.usage.output_tokens, 0)

    async def test_stream(self):
        result = Runner.run_streamed(agent(), SUM)
        deltas = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        self.assertIn("42", "".join(deltas))

    async def test_tool_loop(self):
        result = await Runner.run(agent(tools=[function_tool(weather)]), WEATHER, max_turns=6)
        self.assertIn("tool_call_output_item", [item.type for item in result.new_items])

    async def test_structured_output(self):
        result = await Runner.run(agent(output_type=City), "Tell me of Paris.")
        self.assertIsInstance(result.final_output, City)


if __name__ == "__main__":
    unittest.main()
