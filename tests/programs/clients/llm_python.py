"""llm as a client of the endpoint: its model `bantam` is in the configuration, its key in the environment."""

import concurrent.futures
import os

import llm
import openai

PNG = os.environ["PNG"]
model = llm.get_model("bantam")
key = os.environ["TOKEN"]


def weather(city: str) -> str:
    """Tells the weather."""
    return "rain"


assert model.prompt("hello", key=key, stream=False).text() == "heard hello"
pieces = list(model.prompt("stream", key=key))
assert "".join(pieces) == "heard stream", pieces
for stream in (False, True):
    told = model.chain("weather", key=key, tools=[weather], stream=stream).text()
    assert told.endswith("It is rain."), told
seen = model.prompt("see", key=key, attachments=[llm.Attachment(path=PNG)]).text()
assert seen == "heard see and an image", seen
for piece in model.prompt("hold", key=key):
    if piece:
        break
try:
    raise SystemExit(model.prompt("hello", key="wrong").text())
except (openai.AuthenticationError, llm.ModelError) as e:
    assert "token is wrong" in str(e), e
with concurrent.futures.ThreadPoolExecutor(50) as pool:
    answers = list(pool.map(lambda n: model.prompt(f"number{n}", key=key, stream=False).text(), range(50)))
assert answers == [f"heard number{n}" for n in range(50)], answers
