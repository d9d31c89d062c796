"""Validates values against the part of JSON Schema 2020-12 that docs/schemas uses.

A keyword that is not known here is an error, so that no schema asks for what nobody checks.
"""
import re

TYPES = {"null": lambda v: v is None,
         "boolean": lambda v: isinstance(v, bool),
         "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
         "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
         "string": lambda v: isinstance(v, str),
         "array": lambda v: isinstance(v, list),
         "object": lambda v: isinstance(v, dict)}
ANNOTATIONS = {"$schema", "$defs", "title", "description"}


def same(a, b):
    """JSON's equality: 1 is not true."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


class Schema:
    def __init__(self, root):
        self.root = root
        self.used = set()  # (id of a schema, property) that a value had

    def problems(self, value):
        """What is wrong with the value, as "place: problem"."""
        return list(self._check(self.root, value, "$"))

    def resolve(self, reference):
        if not reference.startswith("#/$defs/"):
            raise ValueError(f"the reference {reference} leads out of the schema's $defs")
        return self.root["$defs"][reference.removeprefix("#/$defs/")]

    def _check(self, schema, value, place):
        if schema is False:
            yield f"{place}: must not be there"
        if isinstance(schema, bool):
            return
        for keyword, expected in schema.items():
            if keyword in ANNOTATIONS or keyword == "properties":
                continue
            check = getattr(self, "_" + keyword.removeprefix("$"), None)
            if check is None:
                raise ValueError(f"{place}: the keyword {keyword} is not known")
            for problem in check(expected, value, place, schema):
                yield problem if problem.startswith("$") else f"{place}: {problem}"
        if isinstance(value, dict):
            for name in schema.get("properties", {}).keys() & value.keys():
                self.used.add((id(schema), name))
                yield from self._check(schema["properties"][name], value[name], f"{place}.{name}")

    def _ref(self, reference, value, place, _):
        return self._check(self.resolve(reference), value, place)

    def _type(self, names, value, place, _):
        names = [names] if isinstance(names, str) else names
        if not any(TYPES[name](value) for name in names):
            yield f"found {value!r:.60}, expected {' or '.join(names)}"

    def _enum(self, values, value, place, _):
        if not any(same(value, one) for one in values):
            yield f"found {value!r:.60}, expected one of {values}"

    def _const(self, expected, value, place, _):
        return self._enum([expected], value, place, _)

    def _minimum(self, least, value, place, _):
        if TYPES["number"](value) and value < least:
            yield f"found {value}, expected at least {least}"

    def _maximum(self, most, value, place, _):
        if TYPES["number"](value) and value > most:
            yield f"found {value}, expected at most {most}"

    def _pattern(self, pattern, value, place, _):
        if isinstance(value, str) and not re.search(pattern, value):
            yield f"found {value!r:.60}, expected {pattern}"

    def _required(self, names, value, place, _):
        if isinstance(value, dict):
            yield from (f"{name} is missing" for name in names if name not in value)

    def _dependentRequired(self, needs, value, place, _):
        for name in needs.keys() & value.keys() if isinstance(value, dict) else ():
            yield from self._required(needs[name], value, place, _)

    def _additionalProperties(self, schema, value, place, parent):
        if isinstance(value, dict):
            for name in value.keys() - parent.get("properties", {}).keys():
                yield from self._check(schema, value[name], f"{place}.{name}")

    def _propertyNames(self, schema, value, place, _):
        if isinstance(value, dict):
            for name in value:
                yield from self._check(schema, name, f"{place}.{name}")

    def _items(self, schema, value, place, _):
        if isinstance(value, list):
            for i, item in enumerate(value):
                yield from self._check(schema, item, f"{place}[{i}]")

    def _minItems(self, least, value, place, _):
        if isinstance(value, list) and len(value) < least:
            yield f"found {len(value)} items, expected at least {least}"

    def _maxItems(self, most, value, place, _):
        if isinstance(value, list) and len(value) > most:
            yield f"found {len(value)} items, expected at most {most}"

    def _oneOf(self, schemas, value, place, _, most=1):
        tried = []
        for schema in schemas:
            before = set(self.used)
            tried.append(list(self._check(schema, value, place)))
            if tried[-1]:
                self.used = before  # of a form that the value does not have
        fitting = tried.count([])
        if fitting == 0:
            yield from min(tried, key=len)  # those of the form that it is closest to
        elif fitting > most:
            yield f"has {fitting} of the forms, expected one"

    def _anyOf(self, schemas, value, place, _):
        return self._oneOf(schemas, value, place, _, most=len(schemas))
