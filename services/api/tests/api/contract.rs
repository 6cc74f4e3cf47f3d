//! Contract of the API: what is committed beside the code agrees with it. OpenAPI document, error codes, policy rows, decision table.

use crate::harness;
use firn_api::{Code, POLICY, Policy as _, Question, RegoPolicy, endpoints, openapi};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn project(path: &str) -> PathBuf {
    Path::new("../..").join(path)
}

#[test]
fn the_committed_openapi_document_is_current() {
    let path = project("services/api/openapi.json");
    if std::env::var_os("FIRN_WRITE_DOCS").is_some() {
        fs::write(&path, openapi::text()).unwrap();
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == openapi::text(),
        "stale: FIRN_WRITE_DOCS=1 cargo test -p firn-api --test api -- contract::"
    );
}

#[test]
fn every_reference_in_the_openapi_document_leads_somewhere_and_every_operation_has_a_name_of_its_own() {
    let document = openapi::document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut references = BTreeSet::new();
    collect(&document, &mut references);
    for reference in &references {
        let name = reference
            .strip_prefix("#/components/schemas/")
            .expect("only schemas are referred to");
        assert!(schemas.contains_key(name), "{reference}");
    }
    let mut names = BTreeSet::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            assert!(names.insert(operation["operationId"].as_str().unwrap().to_owned()));
        }
    }
    assert_eq!(names.len(), endpoints().len());
}

fn collect(value: &Value, references: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref") {
                references.insert(reference.clone());
            }
            members.values().for_each(|value| collect(value, references));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, references)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_error_code_is_explained_and_nothing_else_is() {
    let text = fs::read_to_string(project("docs/errors.md")).unwrap_or_default();
    let explained: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'))
        .collect();
    let codes: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(explained, codes);
    for code in Code::ALL {
        let status = format!("Status {}.", code.status().as_u16());
        let section = text.split(&format!("### `{}`", code.as_str())).nth(1).unwrap();
        let section = section.split("### `").next().unwrap();
        assert!(section.contains(&status), "{} says {status}", code.as_str());
    }
}

#[test]
fn every_operation_has_a_policy_row_and_every_row_an_operation() {
    let operations: BTreeSet<String> = endpoints().iter().map(|endpoint| endpoint.operation()).collect();
    let rows: BTreeSet<String> = RegoPolicy::rows(POLICY).unwrap().into_iter().collect();
    assert_eq!(operations, rows);
}

#[test]
fn a_policy_without_a_row_for_an_operation_denies_it() {
    let policy = RegoPolicy::compile(POLICY).unwrap();
    let params = std::collections::BTreeMap::new();
    let question = Question {
        operation: "GET /v1/new",
        params: &params,
        caller: None,
    };
    assert!(!policy.allows(&question));
    let broken = RegoPolicy::compile("package firn.authz\nimport rego.v1\nallow := 1").unwrap();
    assert!(!broken.allows(&question));
}

/// What clients may rely on: each operation, each field of each schema, and whether a body needs it.
fn promised(document: &Value) -> BTreeSet<String> {
    let mut promises = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            promises.insert(format!(
                "operation {method} {path} {}",
                operation["operationId"].as_str().unwrap()
            ));
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for (field, shape) in schema["properties"].as_object().into_iter().flatten() {
            let kind = shape["type"].as_str().unwrap_or("other");
            promises.insert(format!("field {name}.{field} {kind}"));
        }
        for value in schema["enum"].as_array().into_iter().flatten() {
            promises.insert(format!("value {name} {value}"));
        }
    }
    promises
}

#[test]
fn nothing_that_was_released_disappears() {
    let path = project("services/api/released.txt");
    let now = promised(&openapi::document());
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let released: BTreeSet<String> = committed.lines().map(str::to_owned).collect();
    let gone: Vec<_> = released.difference(&now).collect();
    assert_eq!(gone, [""; 0], "clients rely on these");
    if std::env::var_os("FIRN_WRITE_DOCS").is_some() {
        let text: String = now.iter().map(|promise| format!("{promise}\n")).collect();
        fs::write(&path, text).unwrap();
        return;
    }
    assert_eq!(
        released, now,
        "additions are noted by: FIRN_WRITE_DOCS=1 cargo test -p firn-api --test api -- contract::"
    );
}

/// The table is for people to read and reviewers to see change; the matrix test checks that the router does what it says.
#[test]
fn the_committed_decision_table_is_current() {
    let table = harness_table();
    let path = project("docs/authorization.md");
    let committed = fs::read_to_string(&path).unwrap_or_default();
    // What follows is made of the cloud's policies, by tests/policies/check.
    let (own, rest) = committed.split_at(committed.find("<!-- Below: ").unwrap_or(committed.len()));
    if std::env::var_os("FIRN_WRITE_DOCS").is_some() {
        fs::write(&path, table + rest).unwrap();
        return;
    }
    assert!(
        own == table,
        "stale: FIRN_WRITE_DOCS=1 cargo test -p firn-api --test api -- contract::decision_table"
    );
}

fn harness_table() -> String {
    use firn_identity::Role;
    let policy = RegoPolicy::compile(POLICY).unwrap();
    let mut table = String::from(
        "# Who may do what\n\nFirst the service's operations, then [what each role may do in the cloud](#in-the-cloud).\n\nMade from `services/api/policy/authz.rego` by a test; change the policy, not this page. `door`: no token is\n\
         needed, the operation checks a secret of its own. `self`: only on itself. Everything else is denied, and everything is\n\
         denied to other tenants.\n\n| operation | owner | admin | operator | billing | reader | edge | node |\n|---|---|---|---|---|---|---|---|\n",
    );
    for endpoint in endpoints() {
        let operation = endpoint.operation();
        let cells: Vec<&str> = Role::ALL
            .iter()
            .map(|role| {
                let ask = |own: bool| harness::decision(&policy, &operation, endpoint.path(), *role, own);
                match (harness::is_public(&policy, &operation), ask(true), ask(false)) {
                    (true, _, _) => "door",
                    (false, true, true) => "yes",
                    (false, true, false) => "self",
                    (false, false, _) => "",
                }
            })
            .collect();
        table.push_str(&format!("| `{operation}` | {} |\n", cells.join(" | ")));
    }
    table.push('\n');
    table
}

/// What support is told finds the lines of the log: an identifier that came with the request, or one of the service's own.
#[tokio::test]
async fn every_reply_has_the_requests_identifier() {
    let (service, customer, token) = harness::customer::customer().await;
    let id_of = async |path: String, given: Option<&str>| {
        let mut call = harness::Call::new(axum::http::Method::GET, &path).token(&token);
        if let Some(given) = given {
            call = call.header("x-request-id", given);
        }
        let answer = service.send(call).await;
        answer.headers["x-request-id"].to_str().unwrap().to_owned()
    };
    let found = format!("{}/volumes", customer.base);
    let missing = format!("{}/volumes/nothing", customer.base);
    for path in [found.clone(), missing, "/v1/nowhere".into()] {
        assert_eq!(
            id_of(path.clone(), Some("gateway-7")).await,
            "gateway-7",
            "{path}"
        );
        let (first, second) = (id_of(path.clone(), None).await, id_of(path.clone(), None).await);
        assert_eq!((first.len(), second.len()), (16, 16), "{path}");
        assert_ne!(first, second, "{path}");
        // What could forge a line of the log is replaced.
        assert_eq!(
            id_of(path.clone(), Some("a\" level=error")).await.len(),
            16,
            "{path}"
        );
    }
}
