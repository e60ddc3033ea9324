"""Replies of every pipeline through the official client, streamed and whole: the shipped ones, one with a hidden step,
and one with built-in tools (pipelines/, which run.sh puts into the daemon's state)."""

import json
import os
import unittest

import openai

from test_client import SUM, WEATHER, WEATHER_TOOL, Case

SHIPPED = ("default", "code", "cyber", "kine", "research")
CALCULATE = {"type": "function", "function": {"name": "calculate"}}


def joined(chunks):
    """Text, thought and calls of a stream."""
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    thought = ((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas)
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    return "".join(delta.content or "" for delta in deltas), "".join(thought), calls


@unittest.skipIf("DAEMON_TEST_PIPELINES" not in os.environ, "the daemon under test lacks the pipelines beside this file")
class Pipelines(Case):
    def on(self, route, messages=SUM, chimere=(), **parameters):
        return self.ask(messages, extra_body={"chimere": {"route": route, **dict(chimere)}}, **parameters)

    def streamed_as_whole(self, route, **parameters):
        whole = self.on(route, **parameters)
        chunks = list(self.on(route, stream=True, stream_options={"include_usage": True}, **parameters))
        message, (text, thought, _) = whole.choices[0].message, joined(chunks)
        self.assertEqual(whole.model_extra["x_chimere"]["route"], route)
        self.assertEqual(text, message.content)
        self.assertEqual(thought, (message.model_extra or {}).get("reasoning_content") or "")
        self.assertEqual(chunks[-1].usage.model_dump(), whole.usage.model_dump())
        ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        self.assertEqual(ends, [whole.choices[0].finish_reason])
        return whole

    def test_a_stream_of_every_shipped_route_says_what_the_whole_reply_says(self):
        for route in SHIPPED:
            with self.subTest(route):
                self.assertTrue(self.streamed_as_whole(route).choices[0].message.content)

    def test_several_answers_of_every_shipped_route(self):
        for route in SHIPPED:
            with self.subTest(route):
                reply = self.on(route, n=2, seed=1, temperature=1, max_tokens=30)
                self.assertEqual([choice.index for choice in reply.choices], [0, 1])

    def test_a_hidden_step_is_counted_apart_and_told_by_the_trace_alone(self):
        whole = self.streamed_as_whole("drafted")
        extra = whole.model_extra["x_chimere"]
        self.assertEqual([step["kind"] for step in extra["trace"]], ["generate", "generate"])
        self.assertEqual([step["visible"] for step in extra["trace"]], [False, True])
        self.assertEqual(whole.usage.completion_tokens, extra["trace"][1]["completion_tokens"])
        self.assertEqual(extra["usage"]["completion_tokens"], extra["trace"][0]["completion_tokens"])
        alone = self.on("drafted", chimere={"steps": "none"})
        self.assertEqual(len(alone.model_extra["x_chimere"].get("trace") or [0]), 1)

    def test_steps_are_told_as_events_that_the_client_passes_over(self):
        chunks = list(self.on("drafted", chimere={"steps": "events"}, stream=True))
        told = [chunk.model_extra["x_chimere"]["step"] for chunk in chunks
                if "step" in ((chunk.model_extra or {}).get("x_chimere") or {})]
        self.assertTrue(told)
        self.assertTrue(all(chunk.choices for chunk in chunks))
        self.assertEqual(joined(chunks)[0], self.on("drafted").choices[0].message.content)

    def test_a_built_in_call_is_in_the_trace_and_not_in_the_reply(self):
        for streamed in (False, True):
            reply = self.on("reckoned", chimere={"tools": ["calculate"]}, tool_choice=CALCULATE, stream=streamed)
            if streamed:
                chunks = list(reply)
                (text, _, calls), extra = joined(chunks), chunks[-1].model_extra["x_chimere"]
            else:
                message, extra = reply.choices[0].message, reply.model_extra["x_chimere"]
                text, calls = message.content, message.tool_calls or []
            self.assertEqual(calls, [])
            self.assertTrue(text)
            self.assertNotIn("tool_call", text)
            (step,) = extra["trace"]
            self.assertEqual([call["name"] for call in step["calls"]], ["calculate"])
            self.assertTrue(json.loads(json.dumps(step["calls"][0]["arguments"]))["expression"])

    def test_the_ordinary_loop_of_a_client_beside_built_in_tools(self):
        """Stateless: each request carries the whole history, as the client's own message objects."""
        messages, reply = list(WEATHER), None
        for _ in range(3):
            reply = self.on("reckoned", messages, tools=[WEATHER_TOOL], reasoning_effort="none")
            message = reply.choices[0].message
            messages.append(message)
            if reply.choices[0].finish_reason != "tool_calls":
                break
            for call in message.tool_calls:
                self.assertEqual(call.function.name, "get_weather")
                result = '{"sky": "sunny", "temperature": 21}'
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        self.assertEqual(len(messages), 4, messages)
        self.assertTrue(reply.choices[0].message.content)

    def test_what_built_in_tools_do_not_allow_is_refused_with_the_reason(self):
        own = {"type": "function", "function": {"name": "calculate", "parameters": {"type": "object"}}}
        with self.assertRaises(openai.BadRequestError) as caught:
            self.on("reckoned", tools=[own])
        self.assertIn("calculate", caught.exception.message)
        with self.assertRaises(openai.BadRequestError):
            self.on("reckoned", n=2)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.on("reckoned", tool_choice=CALCULATE)
        self.assertIn("chimere.tools", caught.exception.message)
