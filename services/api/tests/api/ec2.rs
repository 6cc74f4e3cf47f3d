//! Machines of EC2: what is asked for, what becomes of each answer, and that an emulator starts one and ends one.
//!
//! ```text
//! tests/lab/cloud/with localstack -- cargo test -p firn-api --test api -- --ignored ec2::real_
//! ```
#![cfg(feature = "aws")]
#![allow(clippy::disallowed_methods, reason = "a server outside, in real time")]

use crate::answering::answering;
use firn_api::{AwsAccount, Ec2, InstanceShape, Machine, NodePlan, NodeProvisioner as _, ProvisionError};
use firn_env::Env;
use firn_identity::{NodeId, TenantId};
use std::{collections::BTreeMap, time::Duration};
use zeroize::Zeroizing;

/// Far longer than an emulator takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(600);

fn ec2(env: &Env, endpoint: &str, image: &str, groups: &[&str]) -> Ec2 {
    let account = AwsAccount::with_key(
        env,
        "us-east-1",
        Some(endpoint.to_owned()),
        "firntest",
        "firntest",
    )
    .unwrap();
    let shape = InstanceShape {
        image: image.into(),
        instance_type: "t3.micro".into(),
        instance_profile: None,
        security_groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        subnets: BTreeMap::from([("rack-1".to_owned(), "subnet-1".to_owned())]),
    };
    Ec2::new(account, shape)
}

fn plan(node: u8, failure_domain: &str) -> NodePlan {
    NodePlan {
        tenant: TenantId([1; 16]),
        node: NodeId([node; 16]),
        failure_domain: failure_domain.into(),
        user_data: Zeroizing::new("#!/bin/sh\nexit 0\n".into()),
    }
}

fn instance(id: &str, node: u8) -> String {
    format!(
        "<instancesSet><item><instanceId>{id}</instanceId><tagSet><item><key>Name</key><value>x</value></item>\
         <item><key>firn:node</key><value>{}</value></item></tagSet></item></instancesSet>",
        NodeId([node; 16])
    )
}

/// The same as an emulator writes it: nothing says in which order elements come.
fn instance_backwards(id: &str, node: u8) -> String {
    format!(
        "<instancesSet><item><networkInterfaceSet><item><status>in-use</status></item></networkInterfaceSet>\
         <tagSet><item><key>firn:node</key><value>{}</value></item></tagSet><instanceId>{id}</instanceId></item></instancesSet>",
        NodeId([node; 16])
    )
}

fn ok(answer: impl Into<String>) -> (String, String) {
    ("200 OK".into(), answer.into())
}

fn refusal(status: &str, code: &str) -> (String, String) {
    let answer = format!(
        "<Response><Errors><Error><Code>{code}</Code><Message>m</Message></Error></Errors></Response>"
    );
    (status.into(), answer)
}

const NONE: &str = "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>";

async fn with<T>(answers: Vec<(String, String)>, work: impl AsyncFnOnce(Ec2) -> T) -> (Vec<String>, T) {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let (endpoint, server) = answering(answers).await;
    let outcome = work(ec2(&env, &endpoint, "ami-1", &["sg-1", "sg-2"])).await;
    (server.await.unwrap(), outcome)
}

#[tokio::test]
async fn a_launch_is_of_one_node_by_tag_and_token_and_one_that_runs_is_found() {
    let run = format!(
        "<RunInstancesResponse>{}</RunInstancesResponse>",
        instance("i-1", 7)
    );
    let (asked, machine) = with(vec![ok(NONE), ok(run)], async |ec2: Ec2| {
        ec2.launch(&plan(7, "rack-1")).await
    })
    .await;
    let node = NodeId([7; 16]);
    assert_eq!(
        machine,
        Ok(Machine {
            node,
            name: "i-1".into()
        })
    );
    assert!(asked[0].contains("Action=DescribeInstances"));
    let body = asked[1].split_once("\r\n\r\n").unwrap().1;
    for field in [
        "Action=RunInstances",
        "ImageId=ami-1",
        "InstanceType=t3.micro",
        "MinCount=1&MaxCount=1",
        &format!("ClientToken={node}"),
        "UserData=IyEvYmluL3NoCmV4aXQgMAo%3D",
        "TagSpecification.1.Tag.1.Key=firn%3Anode",
        &format!("TagSpecification.1.Tag.1.Value={node}"),
        "SubnetId=subnet-1",
        "SecurityGroupId.2=sg-2",
        "MetadataOptions.HttpTokens=required",
    ] {
        assert!(body.contains(field), "{field}: {body}");
    }
    assert!(
        asked[1]
            .to_ascii_lowercase()
            .contains("authorization: aws4-hmac-sha256")
    );
    assert!(!body.contains("AvailabilityZone"), "the subnet has one");

    let found = format!("<R>{}</R>", instance("i-1", 7));
    let (asked, machine) = with(vec![ok(found)], async |ec2: Ec2| {
        ec2.launch(&plan(7, "rack-1")).await
    })
    .await;
    assert_eq!(
        (asked.len(), machine.unwrap().name),
        (1, "i-1".to_owned()),
        "no second one"
    );
}

#[tokio::test]
async fn lists_go_on_over_pages_and_instances_of_others_are_none_of_ours() {
    let first = format!(
        "<R>{}<instancesSet><item><instanceId>i-9</instanceId><tagSet/></item></instancesSet><nextToken>more</nextToken></R>",
        instance("i-1", 1)
    );
    let second = format!(
        "<R>{}{}</R>",
        instance_backwards("i-2", 2),
        instance_backwards("i-3", 3)
    );
    let (asked, machines) = with(vec![ok(first), ok(second)], async |ec2: Ec2| {
        ec2.machines(TenantId([1; 16])).await
    })
    .await;
    let names: Vec<String> = machines
        .unwrap()
        .into_iter()
        .map(|machine| machine.name)
        .collect();
    assert_eq!(names, ["i-1", "i-2", "i-3"]);
    assert!(!asked[0].contains("NextToken") && asked[1].contains("NextToken=more"));
}

#[tokio::test]
async fn what_is_gone_is_terminated_and_what_runs_is_by_its_id() {
    let (asked, ended) = with(vec![ok(NONE)], async |ec2: Ec2| {
        ec2.terminate(TenantId([1; 16]), NodeId([7; 16])).await
    })
    .await;
    assert_eq!((asked.len(), ended), (1, Ok(())));
    let found = format!("<R>{}</R>", instance("i-1", 7));
    let (asked, ended) = with(vec![ok(found), ok("<R/>")], async |ec2: Ec2| {
        ec2.terminate(TenantId([1; 16]), NodeId([7; 16])).await
    })
    .await;
    assert_eq!(ended, Ok(()));
    assert!(asked[1].contains("Action=TerminateInstances") && asked[1].contains("InstanceId.1=i-1"));
}

#[tokio::test]
async fn a_refusal_is_final_and_no_room_for_now_is_not() {
    let (_, launched) = with(
        vec![ok(NONE), refusal("400 Bad Request", "InvalidAMIID.NotFound")],
        async |ec2: Ec2| ec2.launch(&plan(7, "zone-a")).await,
    )
    .await;
    assert!(matches!(launched, Err(ProvisionError::Refused(why)) if why.contains("InvalidAMIID")));
    for answer in [
        refusal("500 Internal Server Error", "InsufficientInstanceCapacity"),
        refusal("503 Service Unavailable", "RequestLimitExceeded"),
        ok("<RunInstancesResponse/>"),
    ] {
        let (asked, launched) = with(vec![ok(NONE), answer], async |ec2: Ec2| {
            ec2.launch(&plan(7, "zone-a")).await
        })
        .await;
        assert!(
            matches!(launched, Err(ProvisionError::Unavailable(_))),
            "{launched:?}"
        );
        assert!(asked[1].contains("Placement.AvailabilityZone=zone-a"));
    }
    let mut long = plan(7, "zone-a");
    long.user_data = Zeroizing::new("x".repeat(16 << 10 | 1));
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let refused = ec2(&env, "http://127.0.0.1:9", "ami-1", &[]).launch(&long).await;
    assert!(
        matches!(refused, Err(ProvisionError::Refused(_))),
        "before anybody is asked"
    );
}

#[tokio::test]
#[ignore = "needs LocalStack"]
async fn real_ec2_starts_one_instance_for_a_node_finds_it_again_and_ends_it() {
    let endpoint = std::env::var("FIRN_TEST_LOCALSTACK").expect("tests/lab/cloud/with localstack names it");
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    // One of the images that the emulator knows.
    let ec2 = ec2(&env, &endpoint, "ami-03cf127a", &[]);
    let node = env.random_bytes::<1>()[0];
    let plan = plan(node, "us-east-1a");
    let began = env.now();
    // The emulator loads a service when it is first asked for, which may take longer than a call waits. It knows no client tokens,
    // so it must not be asked for an instance before it answers.
    loop {
        match ec2.machines(plan.tenant).await {
            Ok(machines) => break assert_eq!(machines, []),
            Err(ProvisionError::Refused(why)) => panic!("{why}"),
            Err(ProvisionError::Unavailable(why)) => assert!(env.now().since(began) < TIMEOUT, "{why}"),
        }
    }
    let first = ec2.launch(&plan).await.unwrap();
    assert!(first.name.starts_with("i-"), "{first:?}");
    // A call that was answered too late was made again, and then there are two: on EC2 the token would have made them one.
    let launched = ec2.machines(plan.tenant).await.unwrap();
    assert!(launched.contains(&first), "{launched:?}");
    assert!(launched.iter().all(|machine| machine.node == plan.node));
    let again = ec2.launch(&plan).await.unwrap();
    assert!(launched.contains(&again), "no other is made: {again:?}");
    assert_eq!(ec2.machines(plan.tenant).await.unwrap(), launched);
    assert_eq!(ec2.machines(TenantId([9; 16])).await.unwrap(), []);
    for _ in 0..=launched.len() {
        ec2.terminate(plan.tenant, plan.node).await.unwrap();
    }
    assert_eq!(ec2.machines(plan.tenant).await.unwrap(), []);
}
