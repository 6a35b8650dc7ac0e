"""Checks requests to the Bot API against the method schema that aiogram carries.

Reads a JSON array of {"method", "params", "typed"} from standard input and prints one line for each request that
does not fit: an unknown method or parameter (also within objects), one that is missing, a value of the wrong type.
Values of forms are text, so there a number may be written as one.
"""

import json
import sys

from aiogram import methods
from aiogram.types import InputFile, TelegramObject
from pydantic import BaseModel, TypeAdapter, ValidationError

METHODS = {
    method.__api_method__: method
    for method in vars(methods).values()
    if isinstance(method, type) and issubclass(method, methods.TelegramMethod) and hasattr(method, "__api_method__")
}


def extras(value, path):
    """The names that are not in the schema: its classes keep them apart, all the way down."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            yield f"{path}{name}: no such field"
        for name in value.model_fields_set & set(type(value).model_fields):
            yield from extras(getattr(value, name), f"{path}{name}.")
    elif isinstance(value, list):
        for item in value:
            yield from extras(item, path)


def complaints(request):
    method = METHODS.get(request["method"])
    if method is None:
        yield "no such method"
        return
    fields = method.model_fields
    wanted = {}
    for name, value in request["params"].items():
        if name not in fields:
            yield f"{name}: no such parameter"
        elif not request["typed"] and isinstance(value, str) and value[:1] in "[{":
            wanted[name] = json.loads(value)  # objects and arrays are JSON in a form
        elif isinstance(value, str) and value.startswith("attach://"):
            if "InputFile" not in str(fields[name].annotation):
                yield f"{name}: a file where none may be"
            wanted[name] = "attach"
        else:
            wanted[name] = value
    for name, field in fields.items():
        if field.is_required() and name not in request["params"]:
            yield f"{name}: required and missing"
    try:
        # The strict rules of JSON: a number is no string, and a string no number.
        built = method.__pydantic_validator__.validate_json(json.dumps(wanted), strict=request["typed"])
        yield from extras(built, "")
    except ValidationError as error:
        for each in error.errors():
            if each["type"] != "missing":
                place = ".".join(str(part) for part in each["loc"])
                yield f"{place}: {each['msg']}"


def main():
    for number, request in enumerate(json.load(sys.stdin)):
        for complaint in complaints(request):
            print(f"{number} {request['method']}: {complaint}")


main()
