"""Writes tests/corpus/botapi.json: the methods of the Bot API that a bot like this one may call, as aiogram's classes have them.

    PYTHONPATH=target/aiogram tests/botschema.py [--check]

Each method and object has its fields: whether one is required, and the types that it may have: "string", "integer",
"number", "boolean", "file", the name of an object, or a list with one of these in it.
"""

import json
import pathlib
import sys
import types
import typing

from aiogram import methods
from aiogram.types import InputFile, TelegramObject

METHODS = """answerCallbackQuery deleteMessage editMessageReplyMarkup editMessageText getFile getMe getUpdates getWebhookInfo
sendAudio sendChatAction sendDocument sendMessage sendMessageDraft sendPhoto sendVideo sendVoice setMessageReaction
setMyCommands""".split()
FILE = pathlib.Path(__file__).parent / "corpus/botapi.json"
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): None}

objects = {}


def kinds(annotation):
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in kinds(part)]
    if origin is typing.Annotated:
        return kinds(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return sorted({"string" if isinstance(value, str) else PLAIN[type(value)] for value in typing.get_args(annotation)})
    if origin is list:
        return [[kind] for kind in kinds(typing.get_args(annotation)[0])]
    if annotation in PLAIN:
        return [PLAIN[annotation]] if PLAIN[annotation] else []
    if isinstance(annotation, type):
        if issubclass(annotation, InputFile):
            return ["file"]
        if issubclass(annotation, TelegramObject):
            if annotation.__name__ not in objects:
                objects[annotation.__name__] = {}
                objects[annotation.__name__] = fields(annotation)
            return [annotation.__name__]
        if issubclass(annotation, str):
            return ["string"]
        if annotation.__module__ == "datetime":
            return ["integer"]
    # A default that stands for one of the client.
    return []


def fields(of):
    found = {}
    for name, field in of.model_fields.items():
        found[field.alias or name] = {"required": field.is_required(), "types": kinds(field.annotation)}
    return found


def main():
    known = {
        method.__api_method__: method
        for method in vars(methods).values()
        if isinstance(method, type) and issubclass(method, methods.TelegramMethod) and hasattr(method, "__api_method__")
    }
    table = {name: fields(known[name]) for name in METHODS}
    whole = {"methods": table, "objects": dict(sorted(objects.items()))}
    text = json.dumps(whole, indent=0, sort_keys=True) + "\n"
    if sys.argv[1:] == ["--check"]:
        sys.exit(FILE.read_text() != text)
    FILE.write_text(text)


main()
