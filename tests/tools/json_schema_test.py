#!/usr/bin/env python3
"""json_schema.py notices what a schema forbids."""
import unittest

from json_schema import Schema


class Validator(unittest.TestCase):
    def check(self, schema, right, *wrong):
        self.assertEqual(Schema(schema).problems(right), [])
        for value in wrong:
            self.assertNotEqual(Schema(schema).problems(value), [], f"{value!r} fits {schema}")

    def test_types(self):
        self.check({"type": "integer"}, 1, True, 1.5, "1", None)
        self.check({"type": ["number", "null"]}, None, "1", False)
        self.check({"type": "number"}, 2, True)

    def test_values(self):
        self.check({"enum": ["a", 1]}, 1, "b", True)
        self.check({"const": 1}, 1, 2, True)
        self.check({"minimum": 0, "maximum": 2}, 2, -1, 3)
        self.check({"pattern": "^[ab]+$"}, "ab", "abc", "")

    def test_objects(self):
        schema = {"required": ["a"], "additionalProperties": False,
                  "properties": {"a": {"type": "string"}, "b": {}}}
        self.check(schema, {"a": ""}, {}, {"a": 1}, {"a": "", "c": 0})
        self.check({"additionalProperties": {"type": "string"}}, {"a": ""}, {"a": 1})
        self.check({"dependentRequired": {"a": ["b"]}}, {"b": 1}, {"a": 1})
        self.check({"properties": {"a": False}}, {}, {"a": 1})

    def test_arrays(self):
        schema = {"items": {"type": "integer"}, "minItems": 1, "maxItems": 2}
        self.check(schema, [1], [], [1, 2, 3], [1, "2"])

    def test_forms(self):
        text, short = {"type": "string"}, {"pattern": "^.$"}
        self.check({"oneOf": [text, {"type": "null"}]}, "a", 1)
        self.check({"oneOf": [text, short]}, "ab", "a")
        self.check({"anyOf": [text, {"type": "null"}]}, "a", 1)

    def test_references(self):
        self.check({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, None, 1)
        with self.assertRaises(ValueError):
            Schema({"$ref": "other.json"}).problems(1)

    def test_unknown_keywords(self):
        with self.assertRaises(ValueError):
            Schema({"uniqueItems": True}).problems([])

    def test_places(self):
        schema = {"properties": {"a": {"items": {"type": "null"}}}}
        self.assertIn("$.a[1]: found 3", Schema(schema).problems({"a": [None, 3]})[0])


if __name__ == "__main__":
    unittest.main()
