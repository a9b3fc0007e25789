//! JSON in which no key stands twice.
//!
//! A parser that takes the last of two would run another task than the one its reader sees; TOML refuses it as well.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// What editors on some systems put before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads one value, and nothing after it.
///
/// # Errors
/// Where the text is not JSON, or has a table in which a key stands twice; with line and column.
pub(super) fn from_slice(text: &[u8]) -> Result<Value, serde_json::Error> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Unique.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// A value, with what is inside it.
struct Unique;

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, word: bool) -> Result<Value, E> {
        Ok(Value::Bool(word))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = parts.next_element_seed(Self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<Value, A::Error> {
        let mut table = Map::new();
        while let Some(key) = parts.next_key::<String>()? {
            if table.contains_key(&key) {
                return Err(A::Error::custom(format_args!("key `{key}` stands twice")));
            }
            let value = parts.next_value_seed(Self)?;
            table.insert(key, value);
        }
        Ok(Value::Object(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_stands_twice_is_named_with_its_place() {
        for text in [
            r#"{"instruction": "x", "instruction": "y"}"#,
            r#"{"agent": {"config": [{"instruction": 1, "instruction": 1}]}}"#,
        ] {
            let message = from_slice(text.as_bytes()).unwrap_err().to_string();
            assert!(
                message.starts_with("key `instruction` stands twice at line 1 column "),
                "{message}"
            );
        }
    }

    #[test]
    fn a_byte_order_mark_before_json_is_no_part_of_it() {
        let text = b"\xef\xbb\xbf{\"a\": 1}";
        assert_eq!(from_slice(text).unwrap(), serde_json::json!({"a": 1}));
    }

    #[test]
    fn other_json_is_read_as_serde_json_reads_it() {
        for text in [
            r#"{"a": [null, true, -1, 18446744073709551615, 1.5, 1e23, "\u00e9\n", {}, []], "b": {"a": ""}}"#,
            "3",
            " [ ] ",
            "",
            "{",
            "[] []",
            "1e999",
            r#""\ud800""#,
        ] {
            let expected = serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
            let read = from_slice(text.as_bytes()).map_err(|error| error.to_string());
            assert_eq!(read, expected, "{text}");
        }
        let deep = "[".repeat(100_000);
        let message = from_slice(deep.as_bytes()).unwrap_err().to_string();
        assert!(message.starts_with("recursion limit exceeded"), "{message}");
    }
}
