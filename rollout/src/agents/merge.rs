use serde_json::Value;

/// Puts `over` over `under`: tables key by key, lists of the same name one after the other, all else replaced.
pub(super) fn merge(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                match under.get_mut(&key) {
                    Some(known) => merge(known, value),
                    None => {
                        under.insert(key, value);
                    }
                }
            }
        }
        (Value::Array(under), Value::Array(over)) => under.extend(over),
        (under, over) => *under = over,
    }
}
