"""The document of `GET /openapi.json` is valid, and what the daemon answers is what it says. The schemas of replies are
closed here (no field beyond those named), so that a field nobody wrote down is found."""

import copy
import json
import os
import unittest
import urllib.error
import urllib.request

from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

ROOT = os.environ["DAEMON_TEST_URL"].rstrip("/")
KEY = os.environ["DAEMON_TEST_KEY"]
SUM = [{"role": "user", "content": "What is 17 + 25?"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def fetch(method, path, body=None, key=KEY):
    """Status, type and text of an answer."""
    request = urllib.request.Request(ROOT + path, method=method, data=json.dumps(body).encode() if body is not None else None)
    request.add_header("Authorization", f"Bearer {key}")
    if body is not None:
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers.get_content_type(), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get_content_type(), error.read().decode()


def closed(schema):
    """The schema with every object that says nothing of other fields forbidding them."""
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for part in schema.values():
            closed(part)
    elif isinstance(schema, list):
        for part in schema:
            closed(part)
    return schema


class Document(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        status, kind, text = fetch("GET", "/openapi.json", key="")
        assert (status, kind) == (200, "application/json"), text
        cls.document = json.loads(text)
        cls.strict = copy.deepcopy(cls.document)
        closed(cls.strict["components"]["schemas"])

    def validator(self, schema):
        return Draft202012Validator({**schema, "components": self.strict["components"]})

    def check(self, method, path, body=None, template=None):
        """Asks, and holds question and answer to the document. Returns the answer."""
        operation = self.document["paths"][template or path.split("?")[0]][method.lower()]
        if body is not None:
            self.validator(operation["requestBody"]["content"]["application/json"]["schema"]).validate(body)
        status, kind, text = fetch(method, path, body)
        self.assertIn(str(status), operation["responses"], text)
        schema = operation["responses"][str(status)]["content"][kind]["schema"]
        if kind == "application/json":
            self.validator(schema).validate(json.loads(text))
            return json.loads(text)
        if kind == "text/event-stream":
            lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
            self.assertEqual(lines.pop(), "[DONE]")
            self.assertGreater(len(lines), 2)
            for line in lines:
                self.validator(schema).validate(json.loads(line))
        return text

    def test_it_is_valid_and_a_wrong_one_is_not(self):
        validate(self.document)
        wrong = copy.deepcopy(self.document)
        wrong["paths"]["/health"]["get"]["parameters"] = [{"name": "nowhere"}]
        with self.assertRaises(OpenAPIValidationError):
            validate(wrong)

    def test_a_field_that_nobody_wrote_down_is_found(self):
        reply = self.check("POST", "/v1/chat/completions", {"messages": SUM, "temperature": 0, "max_tokens": 8})
        schema = self.validator({"$ref": "#/components/schemas/ChatReply"})
        schema.validate(reply)
        reply["choices"][0]["message"]["mood"] = "good"
        self.assertFalse(schema.is_valid(reply))

    def test_chats_in_every_form(self):
        path = "/v1/chat/completions"
        short = {"messages": SUM, "temperature": 0.7, "seed": 3, "max_tokens": 40}
        for more in [{}, {"n": 2, "logprobs": True, "top_logprobs": 2}, {"reasoning_effort": "low", "max_tokens": 80},
                     {"enable_thinking": False, "stop": [" "]}, {"chimere": {"route": "code", "engram": False}},
                     {"tools": [TOOL], "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
                      "temperature": 0, "max_tokens": 200}]:
            with self.subTest(more):
                self.check("POST", path, {**short, **more})
                self.check("POST", path, {**short, **more, "stream": True})
                self.check("POST", path, {**short, **more, "stream": True, "stream_options": {"include_usage": True}})

    def test_sessions(self):
        said = {"messages": SUM, "temperature": 0, "max_tokens": 8, "chimere": {"session": "trip"}}
        for stream in [False, True]:
            self.check("POST", "/v1/chat/completions", {**said, "stream": stream})
        self.check("POST", "/v1/sessions", {"name": "fork", "from": "trip"})
        self.assertEqual([s["name"] for s in self.check("GET", "/v1/sessions")["data"]], ["fork", "trip"])
        told = self.check("GET", "/v1/sessions/trip", template="/v1/sessions/{id}")
        self.assertEqual(len(told["messages"]), 4)
        for name in ["fork", "trip"]:
            self.check("DELETE", f"/v1/sessions/{name}", template="/v1/sessions/{id}")

    def test_completions_in_every_form(self):
        for more in [{}, {"logprobs": 2, "n": 2}, {"echo": True}, {"prompt": [5, 6, 7]}]:
            with self.subTest(more):
                body = {"prompt": "Once upon a time", "max_tokens": 8, **more}
                self.check("POST", "/v1/completions", body)
                self.check("POST", "/v1/completions", {**body, "stream": True})

    def test_the_other_routes(self):
        self.check("GET", "/health")
        self.assertIn("<html", self.check("GET", "/"))
        model = self.check("GET", "/v1/models")["data"][0]["id"]
        self.check("GET", f"/v1/models/{model}", template="/v1/models/{id}")
        self.check("GET", "/v1/models/nano-embed", template="/v1/models/{id}")
        self.assertEqual(self.check("GET", "/v1/tools")["data"][0]["id"], "calculate")
        self.check("POST", "/v1/embeddings", {"input": ["a", "b"]})
        self.check("POST", "/v1/embeddings", {"input": "a", "encoding_format": "base64", "dimensions": 96})
        self.check("POST", "/v1/rerank", {"query": "a", "documents": ["b", {"text": "a"}], "return_documents": True})
        ids = self.check("POST", "/tokenize", {"content": "a word"})["tokens"]
        self.check("POST", "/tokenize", {"content": "a word", "with_pieces": True})
        self.assertEqual(self.check("POST", "/detokenize", {"tokens": ids})["content"], "a word")
        self.check("POST", "/apply-template", {"messages": SUM})
        reply = self.check("POST", "/v1/chat/completions", {"messages": SUM, "temperature": 0, "max_tokens": 8})
        self.check("POST", "/v1/feedback", {"turn": reply["x_chimere"]["turn"], "vote": "up"})
        turns = self.check("GET", "/v1/memory/turns?limit=5")["data"]
        self.assertTrue(turns)
        self.check("DELETE", f"/v1/memory/turns?turn={turns[0]['id']}")

    def test_refusals_are_the_envelope(self):
        envelope = self.validator({"$ref": "#/components/schemas/Error"})
        chat = self.validator({"$ref": "#/components/schemas/ChatRequest"})
        for body in [{"messages": SUM, "temperature": 3}, {"messages": []}, {}, {"messages": SUM, "colour": "red"},
                     {"messages": SUM, "n": 9}, {"messages": SUM, "tool_choice": "sometimes"},
                     {"messages": SUM, "reasoning_effort": "huge"}, {"messages": SUM, "chimere": {"tier": "best"}}]:
            with self.subTest(body):
                self.assertFalse(chat.is_valid(body))
                status, kind, text = fetch("POST", "/v1/chat/completions", body)
                self.assertEqual((status, kind), (400, "application/json"), text)
                envelope.validate(json.loads(text))
        for status, method, path, key in [(401, "GET", "/v1/models", "wrong"), (403, "GET", "/v1/status", KEY),
                                          (404, "GET", "/v1/nothing", KEY), (405, "GET", "/tokenize", KEY)]:
            got, _, text = fetch(method, path, key=key)
            self.assertEqual(got, status, text)
            envelope.validate(json.loads(text))


if __name__ == "__main__":
    unittest.main()
