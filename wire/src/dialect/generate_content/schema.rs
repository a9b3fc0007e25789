use serde_json::{Map, Value, json};

/// Members whose numbers Google writes as strings, since they have 64 bits.
const NUMBERS: [&str; 6] = [
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
];

/// A schema in Google's form (a part of OpenAPI 3.0, names of types in capitals) as a JSON schema.
pub(super) fn translate(schema: Value) -> Value {
    let Value::Object(members) = schema else {
        return schema;
    };
    let mut translated = Map::new();
    let mut nullable = false;
    for (name, value) in members {
        let (name, value) = match (camel_case(&name), value) {
            ("type", Value::String(kind)) => ("type".to_owned(), kind.to_ascii_lowercase().into()),
            ("nullable", value) => {
                nullable = value == true;
                continue;
            }
            ("properties" | "defs" | "$defs", Value::Object(properties)) => {
                let each = properties
                    .into_iter()
                    .map(|(name, schema)| (name, translate(schema)));
                (name, Value::Object(each.collect()))
            }
            (known @ ("items" | "additionalProperties"), value) => (known.to_owned(), translate(value)),
            (known @ ("anyOf" | "oneOf" | "allOf" | "prefixItems"), Value::Array(schemas)) => {
                (known.to_owned(), schemas.into_iter().map(translate).collect())
            }
            // Google's own, about the order in which a model writes.
            ("propertyOrdering", _) => continue,
            (known, Value::String(number)) if NUMBERS.contains(&known) => {
                let parsed = number.parse::<u64>().map(Value::from);
                (known.to_owned(), parsed.unwrap_or(Value::String(number)))
            }
            (known, value) => (known.to_owned(), value),
        };
        translated.insert(name, value);
    }
    if nullable && let Some(kind) = translated.get_mut("type") {
        *kind = json!([kind.take(), "null"]);
    }
    Value::Object(translated)
}

/// The name of a member of a schema that may be in snake case.
fn camel_case(name: &str) -> &str {
    match name {
        "any_of" => "anyOf",
        "one_of" => "oneOf",
        "all_of" => "allOf",
        "prefix_items" => "prefixItems",
        "additional_properties" => "additionalProperties",
        "property_ordering" => "propertyOrdering",
        "min_items" => "minItems",
        "max_items" => "maxItems",
        "min_length" => "minLength",
        "max_length" => "maxLength",
        "min_properties" => "minProperties",
        "max_properties" => "maxProperties",
        other => other,
    }
}
