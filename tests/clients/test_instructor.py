"""instructor: structured answers in each of its modes, whole and in parts, and lists of them."""

import unittest

import instructor
import openai
from pydantic import BaseModel, Field

from shared import KEY, MODEL, URL, City

ASK = [{"role": "user", "content": "Tell me of Paris, the capital of France, where two million people live."}]


class Cities(BaseModel):
    """Cities. A small model ends no list by itself."""

    cities: list[City] = Field(min_length=1, max_length=2)


def client(mode):
    return instructor.from_openai(openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=120), mode=mode)


class Instructor(unittest.TestCase):
    def ask(self, mode, **parameters):
        found = client(mode).chat.completions.create(
            model=MODEL, messages=ASK, temperature=0, max_retries=0, **{"response_model": City, **parameters}
        )
        return found

    def test_tools(self):
        self.assertIsInstance(self.ask(instructor.Mode.TOOLS), City)

    def test_strict_tools(self):
        self.assertIsInstance(self.ask(instructor.Mode.TOOLS_STRICT), City)

    def test_json_schema(self):
        self.assertIsInstance(self.ask(instructor.Mode.JSON_SCHEMA), City)

    def test_parts(self):
        parts = client(instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
            model=MODEL, messages=ASK, temperature=0, max_retries=0, response_model=City
        )
        *_, last = list(parts)
        self.assertIsNotNone(last.name)

    def test_list(self):
        found = self.ask(instructor.Mode.TOOLS, response_model=Cities, max_tokens=600)
        self.assertTrue(found.cities and all(isinstance(city, City) for city in found.cities))


if __name__ == "__main__":
    unittest.main()
