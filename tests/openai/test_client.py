"""What the official OpenAI client sees of the daemon: chat, streams, tools, logprobs, stops, seeds, choices,
completions, errors. The address comes from DAEMON_TEST_URL, a key of scope `chat` from DAEMON_TEST_KEY (run.sh
sets both)."""

import asyncio
import json
import os
import unittest
import urllib.request

import openai

URL = os.environ["DAEMON_TEST_URL"].rstrip("/") + "/v1"
SUM = [{"role": "user", "content": "What is 17 + 25?"}]
STORY = [{"role": "user", "content": "Tell me a short story about a dog."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER_TOOL = {
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
# Short, repeatable replies.
GREEDY = {"temperature": 0, "max_tokens": 200}


def settings(api_key=os.environ["DAEMON_TEST_KEY"]):
    return {"base_url": URL, "api_key": api_key, "max_retries": 0, "timeout": 120}


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = openai.OpenAI(**settings())
        cls.model = cls.client.models.list().data[0].id

    def ask(self, messages=SUM, **parameters):
        return self.client.chat.completions.create(model=self.model, messages=messages, **{**GREEDY, **parameters})


class Chat(Case):
    def test_models(self):
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("no-such-model")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_embeddings_in_both_encodings(self):
        texts = ["How do I stretch?", "A buffer overflow."]
        # The client asks for base64 by itself and reads it.
        packed = self.client.embeddings.create(model="nano-embed", input=texts)
        plain = self.client.embeddings.create(model="nano-embed", input=texts, encoding_format="float")
        self.assertEqual([entry.index for entry in packed.data], [0, 1])
        for a, b in zip(packed.data, plain.data):
            self.assertAlmostEqual(sum(x * x for x in a.embedding), 1, places=4)
            for x, y in zip(a.embedding, b.embedding):
                self.assertAlmostEqual(x, y, places=6)
        self.assertEqual(packed.usage.total_tokens, packed.usage.prompt_tokens)
        long = self.client.embeddings.create(model="nano-embed", input="word " * 300)
        self.assertGreater(len(long.model_extra["x_chimere"]["windows"]), 0)
        few = self.client.embeddings.create(model="nano-embed", input=texts, dimensions=8)
        self.assertEqual([len(entry.embedding) for entry in few.data], [8] * len(texts))

    def test_a_wrong_model_and_a_wrong_route_say_which_parameter_it_was(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.chat.completions.create(model="gpt-9", messages=SUM)
        self.assertEqual((caught.exception.code, caught.exception.param), ("model_not_found", "model"))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(extra_body={"chimere": {"route": "nowhere"}})
        self.assertEqual(caught.exception.param, "chimere.route")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(extra_body={"route": "code"})
        self.assertEqual(caught.exception.code, "unknown_parameter")
        reply = self.ask(extra_body={"chimere": {"route": "code"}})
        self.assertEqual(reply.model_extra["x_chimere"]["route"], "code")

    def test_a_sum_is_answered_and_stops(self):
        reply = self.ask()
        choice = reply.choices[0]
        self.assertIn("42", choice.message.content)
        self.assertEqual(choice.finish_reason, "stop")
        self.assertEqual(choice.message.role, "assistant")
        self.assertEqual(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)
        self.assertTrue(reply.id.startswith("chatcmpl-"))
        self.assertTrue(reply.system_fingerprint)
        self.assertTrue(reply.model_extra["x_chimere"]["route"])

    def test_request_ids_differ(self):
        ids = {self.client.chat.completions.with_raw_response.create(
            model=self.model, messages=SUM, **GREEDY).headers["x-request-id"] for _ in range(2)}
        self.assertEqual(len(ids), 2)

    def test_parts_and_system_messages(self):
        parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "17 + 25?"}]
        reply = self.ask([{"role": "user", "content": parts}])
        self.assertEqual(reply.choices[0].message.content, self.ask().choices[0].message.content)
        self.assertTrue(self.ask([{"role": "developer", "content": "Be brief."}, *SUM]).choices[0].message.content)

    def test_thought_is_switched_and_bounded(self):
        off = self.ask(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
        self.assertFalse(getattr(off.choices[0].message, "reasoning_content", None))
        self.assertEqual(off.usage.completion_tokens_details.reasoning_tokens, 0)
        bounded = self.ask(extra_body={"thinking_budget": 5})
        self.assertLessEqual(bounded.usage.completion_tokens_details.reasoning_tokens, 16)

    def test_max_tokens_cut(self):
        for name in ("max_tokens", "max_completion_tokens"):
            body = {"model": self.model, "messages": STORY, "temperature": 0, name: 4}
            reply = self.client.chat.completions.create(**body)
            self.assertEqual(reply.choices[0].finish_reason, "length")
            self.assertEqual(reply.usage.completion_tokens, 4)

    def test_stop_strings_end_the_answer_before_them(self):
        whole = self.ask(STORY, reasoning_effort="none").choices[0].message.content
        words = whole.split()
        self.assertGreater(len(words), 4, whole)
        stop = words[3]
        reply = self.ask(STORY, reasoning_effort="none", stop=[stop, "never said"])
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(reply.choices[0].message.content.rstrip(), whole[: whole.index(stop)].rstrip())
        self.assertNotIn(stop, reply.choices[0].message.content)

    def test_seeds_repeat_and_differ(self):
        hot = {"temperature": 1.5, "max_tokens": 40, "reasoning_effort": "none"}
        first, again = (self.ask(STORY, seed=11, **hot).choices[0].message.content for _ in range(2))
        self.assertEqual(first, again)
        others = {self.ask(STORY, seed=seed, **hot).choices[0].message.content for seed in range(4)}
        self.assertGreater(len(others), 1, "four seeds gave one text")

    def test_choices(self):
        reply = self.ask(STORY, n=3, temperature=1.5, seed=5, max_tokens=30, reasoning_effort="none")
        self.assertEqual([choice.index for choice in reply.choices], [0, 1, 2])
        self.assertGreater(len({choice.message.content for choice in reply.choices}), 1)
        self.assertLessEqual(reply.usage.completion_tokens, 90)

    def test_logprobs(self):
        reply = self.ask(logprobs=True, top_logprobs=5, reasoning_effort="none")
        content = reply.choices[0].logprobs.content
        self.assertEqual("".join(token.token for token in content).strip(), reply.choices[0].message.content.strip())
        for token in content:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 5)
            likeliest = max(token.top_logprobs, key=lambda other: other.logprob)
            self.assertEqual(likeliest.token, token.token, "greedy takes the likeliest")
            self.assertAlmostEqual(likeliest.logprob, token.logprob, places=5)
        self.assertIsNone(self.ask().choices[0].logprobs)

    def test_logit_bias_forbids_a_token(self):
        def tokens(text):
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.client.api_key}"}
            request = urllib.request.Request(URL[:-3] + "/tokenize", json.dumps({"content": text}).encode(), headers)
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)["tokens"]

        first = self.ask(STORY, logprobs=True, reasoning_effort="none").choices[0].logprobs.content[0].token
        banned = tokens(first)[0]
        biased = self.ask(STORY, logprobs=True, reasoning_effort="none", logit_bias={str(banned): -100})
        self.assertNotEqual(biased.choices[0].logprobs.content[0].token, first)

    def test_a_conversation_goes_on(self):
        first = self.ask()
        message = first.choices[0].message.model_dump(exclude_none=True)
        more = self.ask([*SUM, message, {"role": "user", "content": "Thank you!"}])
        self.assertTrue(more.choices[0].message.content)
        self.assertGreater(more.usage.prompt_tokens, first.usage.prompt_tokens)


class Stream(Case):
    def stream(self, messages=SUM, **parameters):
        return list(self.ask(messages, stream=True, **parameters))

    def test_a_stream_says_what_the_whole_reply_says(self):
        whole = self.ask()
        chunks = self.stream()
        deltas = [chunk.choices[0].delta for chunk in chunks]
        self.assertEqual(deltas[0].role, "assistant")
        self.assertEqual("".join(delta.content or "" for delta in deltas), whole.choices[0].message.content)
        thought = "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas)
        self.assertEqual(thought, (whole.choices[0].message.model_extra or {}).get("reasoning_content") or "")
        reasons = [chunk.choices[0].finish_reason for chunk in chunks]
        self.assertEqual(reasons[-1], "stop")
        self.assertTrue(all(reason is None for reason in reasons[:-1]))
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)
        self.assertTrue(chunks[-1].model_extra["x_chimere"]["turn"])

    def test_usage_is_the_last_chunk_when_asked_for(self):
        chunks = self.stream(stream_options={"include_usage": True})
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, self.ask().usage.completion_tokens)
        self.assertTrue(all(chunk.usage is None for chunk in chunks[:-1]))

    def test_choices_and_logprobs_in_a_stream(self):
        chunks = self.stream(STORY, n=2, logprobs=True, max_tokens=20, temperature=1, seed=1, reasoning_effort="none")
        for index in (0, 1):
            own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
            text = "".join(choice.delta.content or "" for choice in own)
            tokens = [token.token for choice in own if choice.logprobs for token in choice.logprobs.content or []]
            self.assertEqual("".join(tokens), text)
            self.assertIn(own[-1].finish_reason, ("stop", "length"))

    def test_the_stream_helper(self):
        with self.client.chat.completions.stream(model=self.model, messages=SUM, **GREEDY) as events:
            for _ in events:
                pass
            final = events.get_final_completion()
        self.assertIn("42", final.choices[0].message.content)

    def test_leaving_early_frees_the_daemon(self):
        for _ in range(20):
            stream = self.ask(STORY, stream=True, max_tokens=2000, temperature=1)
            next(iter(stream))
            stream.close()
        self.assertEqual(self.ask().choices[0].finish_reason, "stop")

    def test_many_at_once(self):
        async def all_at_once():
            asking = openai.AsyncOpenAI(**settings())

            async def one():
                reply = await asking.chat.completions.create(model=self.model, messages=SUM, **GREEDY)
                return reply.choices[0].message.content

            return await asyncio.gather(*(one() for _ in range(12)))

        self.assertEqual(set(asyncio.run(all_at_once())), {self.ask().choices[0].message.content})


class Tools(Case):
    def test_a_tool_is_called_and_its_result_read(self):
        reply = self.ask(WEATHER, tools=[WEATHER_TOOL], tool_choice="auto")
        choice = reply.choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls", choice)
        call = choice.message.tool_calls[0]
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(json.loads(call.function.arguments), {"city": "Paris"})
        result = {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "sunny", "temperature": 21}'}
        message = choice.message.model_dump(exclude_none=True)
        answer = self.ask([*WEATHER, message, result], tools=[WEATHER_TOOL])
        self.assertTrue(answer.choices[0].message.content)

    def test_calls_stream_as_deltas(self):
        chunks = list(self.ask(WEATHER, tools=[WEATHER_TOOL], stream=True))
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        self.assertEqual(calls[0].function.name, "get_weather")
        self.assertTrue(calls[0].id)
        self.assertEqual(json.loads("".join(call.function.arguments or "" for call in calls)), {"city": "Paris"})
        self.assertEqual(chunks[-1].choices[0].finish_reason, "tool_calls")

    def test_none_forbids_and_forcing_forces(self):
        none = self.ask(WEATHER, tools=[WEATHER_TOOL], tool_choice="none")
        self.assertIsNone(none.choices[0].message.tool_calls)
        for forced in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            reply = self.ask(SUM, tools=[WEATHER_TOOL], tool_choice=forced)
            self.assertEqual(reply.choices[0].finish_reason, "tool_calls")
            self.assertEqual(reply.choices[0].message.tool_calls[0].function.name, "get_weather")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(WEATHER, tools=[WEATHER_TOOL], tool_choice={"type": "function", "function": {"name": "other"}})
        self.assertEqual(caught.exception.param, "tool_choice")

    def test_answers_by_a_schema(self):
        schema = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 999}},
                  "required": ["sum"], "additionalProperties": False}
        named = {"type": "json_schema", "json_schema": {"name": "sum", "strict": True, "schema": schema}}
        reply = self.ask(SUM, response_format=named)
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(list(json.loads(reply.choices[0].message.content)), ["sum"])
        chunks = list(self.ask(SUM, response_format=named, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, reply.choices[0].message.content)


class Completions(Case):
    def test_text_and_ids(self):
        reply = self.client.completions.create(model=self.model, prompt="One, two, three,", max_tokens=8, temperature=0)
        self.assertEqual(reply.object, "text_completion")
        self.assertTrue(reply.choices[0].text)
        echo = self.client.completions.create(
            model=self.model, prompt="One, two, three,", max_tokens=8, temperature=0, echo=True)
        self.assertEqual(echo.choices[0].text, "One, two, three," + reply.choices[0].text)
        ids = self.client.completions.create(model=self.model, prompt=[65, 66, 67], max_tokens=2, temperature=0)
        self.assertEqual(ids.usage.prompt_tokens, 3)

    def test_stream_and_logprobs(self):
        parameters = {"model": self.model, "prompt": "The dog", "max_tokens": 8, "temperature": 0}
        whole = self.client.completions.create(logprobs=2, **parameters)
        self.assertEqual("".join(whole.choices[0].logprobs.tokens), whole.choices[0].text)
        self.assertEqual(len(whole.choices[0].logprobs.top_logprobs[0]), 2)
        chunks = list(self.client.completions.create(stream=True, **parameters))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), whole.choices[0].text)


class Errors(Case):
    def refused(self, kind, **parameters):
        with self.assertRaises(kind) as caught:
            self.client.chat.completions.create(**{"model": self.model, "messages": SUM, **parameters})
        error = caught.exception
        self.assertTrue(error.message)
        self.assertTrue(error.request_id)
        return error

    def test_wrong_parameters_are_named(self):
        for parameter, value in (("temperature", 3), ("top_p", -1), ("n", 0), ("max_tokens", 0), ("top_logprobs", 2)):
            error = self.refused(openai.BadRequestError, **{parameter: value})
            self.assertEqual((error.status_code, error.param, error.type), (400, parameter, "invalid_request_error"))
        error = self.refused(openai.BadRequestError, extra_body={"temprature": 1})
        self.assertEqual(error.code, "unknown_parameter")
        self.assertIn("temperature", error.message)

    def test_a_schema_that_cannot_be_enforced_says_why(self):
        def form(**more):
            return {"type": "json_schema", "json_schema": {"name": "set", "schema": {"uniqueItems": True}, **more}}

        error = self.refused(openai.BadRequestError, response_format=form(strict=True))
        self.assertEqual(error.param, "response_format.json_schema.schema")
        self.assertIn("uniqueItems", error.message)
        # Without `strict` the model is trusted with the rest, and the reply says with what.
        reply = self.client.chat.completions.create(
            model=self.model, messages=SUM, max_tokens=8, response_format=form()
        )
        left = reply.model_extra["x_chimere"]["not_enforced"]
        self.assertEqual(len(left), 1)
        self.assertIn("uniqueItems", left[0]["path"] + left[0]["reason"])

    def test_an_image_is_refused(self):
        part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        error = self.refused(openai.BadRequestError, messages=[{"role": "user", "content": [part]}])
        self.assertEqual(error.code, "unsupported_content")

    def test_an_unknown_model_is_404(self):
        self.refused(openai.NotFoundError, model="gpt-no-such")

    def test_a_prompt_over_the_context_is_400(self):
        for stream in (False, True):
            long = [{"role": "user", "content": "word " * 60_000}]
            error = self.refused(openai.BadRequestError, messages=long, stream=stream)
            self.assertEqual(error.code, "context_length_exceeded")
            self.assertRegex(error.message, r"\d+.*\d+")

    def test_a_wrong_key_is_401(self):
        with self.assertRaises(openai.AuthenticationError) as caught:
            openai.OpenAI(**settings("sk-no-such-key")).models.list()
        self.assertEqual(caught.exception.code, "invalid_api_key")

    def test_a_chat_key_may_not_administer(self):
        with self.assertRaises(openai.PermissionDeniedError):
            openai.OpenAI(**settings()).post("/admin/pause", cast_to=object)

    def test_an_unknown_route_is_404(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.get("/nothing", cast_to=object)


if __name__ == "__main__":
    unittest.main()
