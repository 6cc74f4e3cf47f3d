//! One policy, two engines: regorus, which decides inside firn-api, and Open Policy Agent, which decides at the gateway, are
//! asked the same questions, all of them: every operation × role × tenant × scope × itself or another.

use firn_api::{Asking, POLICY, Policy as _, Question, RegoPolicy, endpoints};
use firn_identity::Role;
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::PathBuf, process::Command, time::Instant};

/// A question as OPA is asked it, and what regorus answered.
struct Case {
    input: Value,
    allowed: bool,
}

const OURS: &str = "ten_11111111111111111111111111111111";
const THEIRS: &str = "ten_22222222222222222222222222222222";
const ITSELF: &str = "edg_33333333333333333333333333333333";
const ANOTHER: &str = "edg_44444444444444444444444444444444";

fn cases() -> Vec<Case> {
    let policy = RegoPolicy::compile(POLICY).unwrap();
    let operations: Vec<String> = endpoints()
        .iter()
        .map(|endpoint| endpoint.operation())
        .chain(["GET /v1/new".into(), String::new()])
        .collect();
    let mut cases = Vec::new();
    for operation in &operations {
        for (tenant, object) in [(OURS, ITSELF), (OURS, ANOTHER), (THEIRS, ITSELF)] {
            let params = BTreeMap::from([
                ("tenant".to_owned(), tenant.to_owned()),
                ("edge".to_owned(), object.to_owned()),
                ("node".to_owned(), object.to_owned()),
            ]);
            let nobody = Question {
                operation,
                params: &params,
                caller: None,
            };
            cases.push(Case {
                input: serde_json::to_value(&nobody).unwrap(),
                allowed: policy.allows(&nobody),
            });
            for role in Role::ALL {
                for scopes in [
                    vec![],
                    vec!["volume:read".to_owned()],
                    vec!["edge:self".to_owned(), "node:self".to_owned()],
                ] {
                    let caller =
                        json!({ "tenant": OURS, "principal": ITSELF, "role": role, "scopes": scopes });
                    let allowed = policy.allows(&Question {
                        operation,
                        params: &params,
                        caller: Some(Asking::new(
                            OURS.parse().unwrap(),
                            ITSELF.parse().unwrap(),
                            role,
                            &scopes,
                        )),
                    });
                    let input = json!({ "operation": operation, "params": params, "caller": caller });
                    cases.push(Case { input, allowed });
                }
            }
        }
    }
    cases
}

#[test]
#[ignore = "needs Open Policy Agent: make test"]
fn real_opa_and_the_engine_inside_decide_alike_in_every_case() {
    let opa = std::env::var("FIRN_TEST_OPA").expect("make test names Open Policy Agent's program");
    let began = Instant::now();
    let cases = cases();
    let inside = cases.len() as f64 / began.elapsed().as_secs_f64();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cases.json");
    let inputs: Vec<&Value> = cases.iter().map(|case| &case.input).collect();
    std::fs::write(&file, json!({ "cases": inputs }).to_string()).unwrap();
    let policies = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("policy");
    let output = Command::new(opa)
        .args(["eval", "--format", "json", "--data"])
        .arg(policies.join("authz.rego"))
        .arg("--input")
        .arg(&file)
        .arg("[decision | some i; question := input.cases[i]; decision := data.firn.authz.allow with input as question]")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let decisions = answer["result"][0]["expressions"][0]["value"]
        .as_array()
        .expect("a list of decisions");
    assert_eq!(decisions.len(), cases.len(), "each case has exactly one decision");
    let mut allowed = 0;
    for (case, decision) in cases.iter().zip(decisions) {
        assert_eq!(decision, &Value::Bool(case.allowed), "{}", case.input);
        allowed += u32::from(case.allowed);
    }
    assert!(
        allowed > 100 && (allowed as usize) < cases.len() / 2,
        "{allowed} of {}",
        cases.len()
    );
    println!(
        "{} cases alike, {allowed} of them allowed; inside {inside:.0} decisions/s",
        cases.len()
    );
}
