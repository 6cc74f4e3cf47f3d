//! One policy, two engines: regorus, which decides inside firn-api, and Open Policy Agent, which decides at the gateway, are
//! asked the same questions, all of them: every operation × role × tenant × scope × itself or another.

#![allow(clippy::disallowed_methods, reason = "measures real time")]

use firn_api::{POLICY, Policy as _, PolicyQuestion, Question, RegoPolicy, endpoints};
use firn_identity::Role;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

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
                        caller: Some(PolicyQuestion::new(
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
    let policies = PathBuf::from("policy");
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

/// Ends what it started.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// OPA as a server, with the committed policy.
fn opa() -> (Running, SocketAddr) {
    let program = std::env::var("FIRN_TEST_OPA").expect("tests/lab/cloud/with opa names it");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let child = Command::new(program)
        .args([
            "run",
            "--server",
            "--disable-telemetry",
            "--log-level",
            "error",
            "--addr",
        ])
        .arg(address.to_string())
        .arg("policy/authz.rego")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let running = Running(child);
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "OPA does not listen");
        thread::sleep(Duration::from_millis(50));
    }
    (running, address)
}

/// Asks over one connection until the time is over; gives how many decisions came.
fn decide(address: SocketAddr, bodies: &[(String, bool)], first: usize, until: Instant) -> usize {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut decided = 0;
    let mut buffer = [0; 4096];
    for (body, allowed) in bodies.iter().cycle().skip(first) {
        if Instant::now() >= until {
            break;
        }
        let head = format!(
            "POST /v1/data/firn/authz/allow HTTP/1.1\r\nHost: opa\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream
            .write_all(&[head.as_bytes(), body.as_bytes()].concat())
            .unwrap();
        let mut text = String::new();
        // The reply is one short object.
        while !text.ends_with('}') && !text.ends_with("}\n") {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the connection ended: {text}");
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        assert!(text.contains(&format!("\"result\":{allowed}")), "{text}");
        decided += 1;
    }
    decided
}

/// Figures for docs/benchmarks-control-plane.md: the same questions to the engine inside and to OPA's server beside it.
#[test]
#[ignore = "measures; see docs/benchmarks-control-plane.md for the command"]
fn rate_of_decisions_inside_and_by_opa() {
    const SECONDS: u64 = 5;
    let cases = cases();
    let bodies: Vec<(String, bool)> = cases
        .iter()
        .map(|case| (json!({ "input": case.input }).to_string(), case.allowed))
        .collect();
    println!("| who decides | at once | decisions/s |\n|---|---|---|");

    let policy = RegoPolicy::compile(POLICY).unwrap();
    let operations: Vec<String> = endpoints().iter().map(|endpoint| endpoint.operation()).collect();
    let params = BTreeMap::from([("tenant".to_owned(), OURS.to_owned())]);
    let (began, mut decided, mut allowed) = (Instant::now(), 0_usize, 0_usize);
    while began.elapsed() < Duration::from_secs(SECONDS) {
        for operation in &operations {
            for role in Role::ALL {
                let caller = PolicyQuestion::new(OURS.parse().unwrap(), ITSELF.parse().unwrap(), role, &[]);
                let question = Question {
                    operation,
                    params: &params,
                    caller: Some(caller),
                };
                allowed += usize::from(policy.allows(&question));
                decided += 1;
            }
        }
    }
    let rate = decided as f64 / began.elapsed().as_secs_f64();
    assert!(allowed > 0 && allowed < decided);
    println!("| regorus, in this process | 1 | {rate:.0} |");

    let (_opa, address) = opa();
    for connections in [1_usize, 8] {
        let (began, until) = (Instant::now(), Instant::now() + Duration::from_secs(SECONDS));
        let decided: usize = thread::scope(|scope| {
            let asking: Vec<_> = (0..connections)
                .map(|index| {
                    let (bodies, first) = (&bodies, index * bodies.len() / connections);
                    scope.spawn(move || decide(address, bodies, first, until))
                })
                .collect();
            asking.into_iter().map(|asks| asks.join().unwrap()).sum()
        });
        let rate = decided as f64 / began.elapsed().as_secs_f64();
        println!("| Open Policy Agent, over HTTP on this machine | {connections} | {rate:.0} |");
    }
}
