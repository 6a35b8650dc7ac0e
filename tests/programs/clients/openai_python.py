"""The openai package as a client of the endpoint: BASE and TOKEN are in the environment."""

import asyncio
import os

import openai

BASE, TOKEN = os.environ["BASE"], os.environ["TOKEN"]
PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
client = openai.OpenAI(base_url=BASE, api_key=TOKEN, max_retries=0)


def ask(text, **more):
    messages = more.pop("messages", [{"role": "user", "content": text}])
    return client.chat.completions.create(model="bantam", messages=messages, **more)


whole = ask("hello")
assert whole.choices[0].message.content == "heard hello", whole
assert whole.choices[0].finish_reason == "stop" and whole.usage.total_tokens > 0, whole

pieces, usage = [], None
for piece in ask("stream", stream=True, stream_options={"include_usage": True}):
    usage = piece.usage or usage
    pieces += [choice.delta.content or "" for choice in piece.choices]
assert "".join(pieces) == "heard stream" and usage.total_tokens > 0, pieces

messages = [{"role": "user", "content": "weather"}]
called = ask("", messages=messages, tools=[TOOL]).choices[0]
assert called.finish_reason == "tool_calls", called
call = called.message.tool_calls[0]
assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Ulm"}'), call
messages += [called.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
assert ask("", messages=messages, tools=[TOOL]).choices[0].message.content == "It is rain."
with client.chat.completions.stream(model="bantam", messages=messages[:1], tools=[TOOL]) as stream:
    called = stream.get_final_completion().choices[0]
assert called.message.tool_calls[0].function.name == "weather", called

parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PNG}}]
assert ask("", messages=[{"role": "user", "content": parts}]).choices[0].message.content == "heard see and an image"

key = {"X-Session": "python"}
stored = [ask("one", extra_headers=key), ask("two", extra_headers=key), ask("three", user="python")]
answers = [answer.choices[0].message.content for answer in stored]
assert answers == ["heard one", "heard two after one", "heard three"], answers

cancelled = ask("hold", stream=True)
for piece in cancelled:
    if piece.choices[0].delta.content:
        break
cancelled.close()

for wrong, error in [
    (lambda: client.with_options(api_key="wrong").models.list(), openai.AuthenticationError),
    (lambda: client.chat.completions.create(model="nosuch", messages=messages[:1]), openai.NotFoundError),
    (lambda: ask("", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}]), openai.BadRequestError),
    (lambda: ask("fail"), openai.InternalServerError),
]:
    try:
        raise SystemExit(f"no {error.__name__}: {wrong()}")
    except error as e:
        assert e.body["message"], e
assert "bantam" in [model.id for model in client.models.list()]


async def many():
    client = openai.AsyncOpenAI(base_url=BASE, api_key=TOKEN, max_retries=0)
    asked = [
        client.chat.completions.create(model="bantam", messages=[{"role": "user", "content": f"number{n}"}])
        for n in range(50)
    ]
    answers = [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]
    assert answers == [f"heard number{n}" for n in range(50)], answers


asyncio.run(many())
