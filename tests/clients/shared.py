"""What the clients' tests share: where the daemon is, what it is asked, and how many tests of whom passed."""

import os

from pydantic import BaseModel, Field

URL = os.environ["DAEMON_TEST_URL"].rstrip("/") + "/v1"
KEY = os.environ["DAEMON_TEST_KEY"]
MODEL = os.environ.get("DAEMON_TEST_NAME", "nano")
EMBEDDER = "nano-embed"
SUM = "What is 17 + 25?"
WEATHER = "What is the weather in Paris?"


class City(BaseModel):
    """A city. A small model ends no text and no number by itself: both have bounds."""

    name: str = Field(max_length=40)
    people: int = Field(ge=0, le=100_000_000)
    capital: bool


def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: Name of the city
    """
    return f"It is sunny in {city}."
