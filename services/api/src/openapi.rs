//! The OpenAPI 3.1 document, made from the list of operations and the types themselves. `services/api/openapi.json` is its
//! committed copy; a test says when it is stale, `firn-api openapi` prints the current one.

use crate::{
    endpoint::{Endpoint, TypeSchema},
    problem::{Code, ProblemDocument},
    router::{endpoints, is_door},
};
use serde_json::{Map, Value, json};
use utoipa::PartialSchema as _;

/// The document, with its members in a fixed order.
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    let mut schemas: Map<String, Value> = Map::new();
    insert(&mut schemas, "Problem", &ProblemDocument::schema());
    for endpoint in endpoints() {
        for schema in [&endpoint.body, &endpoint.reply].into_iter().flatten() {
            for (name, schema) in &schema.all {
                insert(&mut schemas, name, schema);
            }
        }
        let item = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        item[endpoint.method.as_str().to_lowercase()] = operation(&endpoint);
    }
    sorted(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Firn control plane",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Tenants, members, keys, volumes, edges, disks and nodes. Replies may gain fields; bodies may not.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "bearerFormat": "JWT" },
                "certificate": { "type": "mutualTLS" },
            },
        },
    }))
}

/// The document as it is committed.
pub fn text() -> String {
    let mut text = serde_json::to_string_pretty(&document()).expect("a JSON value has a text");
    text.push('\n');
    text
}

fn insert(schemas: &mut Map<String, Value>, name: &str, schema: &impl serde::Serialize) {
    let schema = serde_json::to_value(schema).expect("a schema has a JSON form");
    schemas.insert(name.to_owned(), schema);
}

fn operation(endpoint: &Endpoint) -> Value {
    let mut parameters: Vec<Value> = endpoint
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    if endpoint.is_list {
        parameters.push(json!({
            "name": "limit", "in": "query", "schema": { "type": "integer", "minimum": 1, "maximum": 100 },
        }));
        parameters.push(
            json!({ "name": "cursor", "in": "query", "schema": { "type": "string", "maxLength": 512 } }),
        );
    }
    let header = |name: &str, what: &str, limit: usize| {
        json!({
            "name": name, "in": "header", "description": what,
            "schema": { "type": "string", "minLength": 1, "maxLength": limit, "pattern": "^[!-~]+$" },
        })
    };
    if endpoint.is_mutation() && endpoint.path.contains("{tenant}") {
        parameters.push(header(
            "Idempotency-Key",
            "A repetition under the same key gets the first reply; another request under it is refused.",
            crate::idempotency::MAX_IDEMPOTENCY_KEY_BYTES,
        ));
    }
    if endpoint.takes_if_match {
        parameters.push(header(
            "If-Match",
            "The entity tag of the version the change was decided on.",
            64,
        ));
    }
    let mut responses = Map::new();
    let mut success = json!({ "description": "Done." });
    if let Some(reply) = &endpoint.reply {
        success["content"] = json!({ "application/json": { "schema": reply_schema(endpoint, reply) } });
    }
    if endpoint.is_csv {
        success["content"] = json!({ "text/csv": { "schema": { "type": "string" } } });
    }
    if endpoint.has_etag {
        success["headers"] = json!({ "ETag": { "schema": { "type": "string" } } });
    }
    responses.insert(endpoint.status.as_str().to_owned(), success);
    let mut statuses: Vec<_> = Code::ALL.iter().map(|code| code.status()).collect();
    statuses.sort_unstable();
    statuses.dedup();
    for status in statuses {
        let codes: Vec<&str> = Code::ALL
            .iter()
            .filter(|code| code.status() == status)
            .map(|code| code.as_str())
            .collect();
        responses.insert(
            status.as_str().to_owned(),
            json!({
                "description": codes.join(", "),
                "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
            }),
        );
    }
    let mut operation = json!({
        "operationId": endpoint.id,
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": responses,
    });
    if let Some(body) = &endpoint.body {
        operation["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": reference(body) } },
        });
    }
    if is_door(endpoint) || !endpoint.path.contains("{tenant}") {
        operation["security"] = json!([]);
    }
    operation
}

fn reference(schema: &TypeSchema) -> Value {
    json!({ "$ref": format!("#/components/schemas/{}", schema.name) })
}

fn reply_schema(endpoint: &Endpoint, reply: &TypeSchema) -> Value {
    if !endpoint.is_list {
        return reference(reply);
    }
    json!({
        "type": "object",
        "required": ["items"],
        "properties": {
            "items": { "type": "array", "items": reference(reply) },
            "next_cursor": { "type": "string", "description": "Give it as `cursor`; absent on the last page." },
        },
    })
}

/// The same value with every object's members in alphabetical order, whatever the map type of the JSON library is.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.into_iter().collect();
            members.sort_by(|left, right| left.0.cmp(&right.0));
            Value::Object(
                members
                    .into_iter()
                    .map(|(name, value)| (name, sorted(value)))
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}
