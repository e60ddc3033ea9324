"""LiteLLM, as `openai/` and as `hosted_vllm/`: chat, stream, tools with their loop, structured output, embeddings, errors."""

import asyncio
import json
import unittest

import litellm

from shared import EMBEDDER, KEY, MODEL, SUM, URL, WEATHER, City

litellm.telemetry = False
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city"}},
            "required": ["city"],
        },
    },
}


def arguments(messages, provider="openai", **parameters):
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    own = {"model": f"{provider}/{MODEL}", "api_base": URL, "api_key": KEY, "temperature": 0, "num_retries": 0}
    return {**own, "messages": messages, **parameters}


class LiteLlm(unittest.TestCase):
    def test_chat(self):
        for provider in ("openai", "hosted_vllm"):
            reply = litellm.completion(**arguments(SUM, provider))
            self.assertIn("42", reply.choices[0].message.content)
            self.assertGreater(reply.usage.completion_tokens, 0)

    def test_stream(self):
        pieces = litellm.completion(**arguments(SUM, stream=True, stream_options={"include_usage": True}))
        self.assertIn("42", "".join(p.choices[0].delta.content or "" for p in pieces if p.choices))

    def test_asynchronous(self):
        reply = asyncio.run(litellm.acompletion(**arguments(SUM)))
        self.assertIn("42", reply.choices[0].message.content)

    def test_tool_loop(self):
        messages = [{"role": "user", "content": WEATHER}]
        asked = litellm.completion(**arguments(messages, tools=[TOOL])).choices[0].message
        call = asked.tool_calls[0]
        self.assertEqual(json.loads(call.function.arguments), {"city": "Paris"})
        # The reply goes back with all that the library keeps in it.
        result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "It is sunny."}
        again = litellm.completion(**arguments([*messages, asked.model_dump(), result], tools=[TOOL]))
        self.assertTrue(again.choices[0].message.content)

    def test_structured_output(self):
        reply = litellm.completion(**arguments("Tell me of Paris.", response_format=City))
        City.model_validate_json(reply.choices[0].message.content)

    def test_embeddings(self):
        own = {"model": f"openai/{EMBEDDER}", "api_base": URL, "api_key": KEY}
        reply = litellm.embedding(input=["a", "b"], **own)
        self.assertEqual(len(reply.data), 2)

    def test_errors_are_recognised(self):
        with self.assertRaises(litellm.ContextWindowExceededError):
            litellm.completion(**arguments("word " * 200_000))
        with self.assertRaises(litellm.NotFoundError):
            litellm.completion(**arguments(SUM, model="openai/no-such-model"))


if __name__ == "__main__":
    unittest.main()
