use crate::scan::write_string;
use crate::translate::Raw;

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
pub(super) fn translated(schema: Raw<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    write(schema, &mut out);
    out
}

/// No deeper than the request is, which has its limit.
fn write(schema: Raw<'_>, out: &mut Vec<u8>) {
    let Some(members) = schema.members() else {
        out.extend_from_slice(schema.as_ref());
        return;
    };
    let nullable = schema
        .members()
        .into_iter()
        .flatten()
        .any(|(name, value)| name == "nullable" && value.as_ref() == b"true");
    out.push(b'{');
    let mut comma = false;
    for (name, value) in members {
        let name = camel_case(&name);
        // The order in which a model writes is Google's own.
        if matches!(name, "nullable" | "propertyOrdering") {
            continue;
        }
        if std::mem::replace(&mut comma, true) {
            out.push(b',');
        }
        write_string(name, out);
        out.push(b':');
        write_member(name, value, nullable, out);
    }
    out.push(b'}');
}

fn write_member(name: &str, value: Raw<'_>, nullable: bool, out: &mut Vec<u8>) {
    let text = value.text();
    match (name, text) {
        ("type", Some(kind)) => {
            let kind = kind.to_ascii_lowercase();
            if nullable {
                out.push(b'[');
                write_string(&kind, out);
                out.extend_from_slice(b",\"null\"]");
            } else {
                write_string(&kind, out);
            }
        }
        ("properties" | "defs" | "$defs", None) if value.is_object() => {
            out.push(b'{');
            for (position, (name, schema)) in value.members().into_iter().flatten().enumerate() {
                if position > 0 {
                    out.push(b',');
                }
                write_string(&name, out);
                out.push(b':');
                write(schema, out);
            }
            out.push(b'}');
        }
        ("items" | "additionalProperties", None) => write(value, out),
        ("anyOf" | "oneOf" | "allOf" | "prefixItems", None) if value.items().is_some() => {
            out.push(b'[');
            for (position, schema) in value.items().into_iter().flatten().enumerate() {
                if position > 0 {
                    out.push(b',');
                }
                write(schema, out);
            }
            out.push(b']');
        }
        (known, Some(number)) if NUMBERS.contains(&known) => match number.parse::<u64>() {
            Ok(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Err(_) => out.extend_from_slice(value.as_ref()),
        },
        _ => out.extend_from_slice(value.as_ref()),
    }
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
