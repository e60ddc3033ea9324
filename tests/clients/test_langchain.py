"""langchain-openai: chat, stream, tools with their loop, structured output, embeddings."""

import asyncio
import unittest

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from shared import EMBEDDER, KEY, MODEL, SUM, URL, WEATHER, City
from shared import get_weather as weather


def chat(**parameters):
    return ChatOpenAI(model=MODEL, base_url=URL, api_key=KEY, temperature=0, max_retries=0, timeout=120, **parameters)


class LangChain(unittest.TestCase):
    def test_chat(self):
        reply = chat().invoke([SystemMessage("Answer briefly."), HumanMessage(SUM)])
        self.assertIn("42", reply.content)
        self.assertGreater(reply.usage_metadata["output_tokens"], 0)

    def test_a_system_message_alone(self):
        self.assertIsInstance(chat(max_tokens=20).invoke([SystemMessage("Say hello.")]), AIMessage)

    def test_stream(self):
        pieces = list(chat(stream_usage=True).stream(SUM))
        self.assertIn("42", "".join(piece.content for piece in pieces))
        self.assertGreater(sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces), 0)

    def test_asynchronous_stream(self):
        async def read():
            return "".join([piece.content async for piece in chat().astream(SUM)])

        self.assertIn("42", asyncio.run(read()))

    def test_tool_loop(self):
        model = chat().bind_tools([tool(weather)])
        messages = [HumanMessage(WEATHER)]
        asked = model.invoke(messages)
        (call,) = asked.tool_calls
        self.assertEqual((call["name"], call["args"]), ("get_weather", {"city": "Paris"}))
        result = ToolMessage(weather(**call["args"]), tool_call_id=call["id"])
        self.assertTrue(model.invoke([*messages, asked, result]).content)

    def test_forced_tool_in_a_stream(self):
        model = chat().bind_tools([tool(weather)], tool_choice="get_weather", strict=True)
        whole = None
        for piece in model.stream(WEATHER):
            whole = piece if whole is None else whole + piece
        self.assertEqual(whole.tool_calls[0]["args"].keys(), {"city"})

    def test_structured_output_by_every_method(self):
        for method in ("json_schema", "function_calling"):
            found = chat().with_structured_output(City, method=method).invoke("Tell me of Paris as JSON.")
            self.assertIsInstance(found, City, method)
        found = chat().with_structured_output(City.model_json_schema(), method="json_schema", strict=False)
        self.assertEqual(found.invoke("Tell me of Rome.").keys(), {"name", "people", "capital"})

    def test_embeddings(self):
        # Token ids of another vocabulary mean nothing here: texts are sent.
        embedder = OpenAIEmbeddings(model=EMBEDDER, base_url=URL, api_key=KEY, check_embedding_ctx_length=False)
        vectors = embedder.embed_documents(["How do I stretch?", "A buffer overflow."])
        self.assertEqual([len(v) for v in vectors], [len(embedder.embed_query("stretching"))] * 2)


if __name__ == "__main__":
    unittest.main()
