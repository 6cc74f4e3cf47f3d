//! Machines of EC2: three calls, signed like all others, instead of its SDK.
//!
//! | what | call | why it is safe to repeat |
//! |---|---|---|
//! | launch | `DescribeInstances` by tag, then `RunInstances` | what runs is found by its tag; two who ask at once say the same client token |
//! | machines | `DescribeInstances` by tag | |
//! | terminate | `DescribeInstances` by tag, `TerminateInstances` | what is gone is not found |
//!
//! The client token is the node's id, which is never used twice, so that not even a lost reply makes a second instance.

use super::{AwsAccount, AwsError, xml::Element};
use crate::provision::{Machine, NodePlan, NodeProvisioner, ProvisionError};
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use firn_identity::{NodeId, TenantId};
use std::collections::BTreeMap;

const VERSION: &str = "2016-11-15";
/// The tags that nodes are found by.
const NODE_TAG: &str = "firn:node";
const TENANT_TAG: &str = "firn:tenant";
/// What EC2 takes, before base64.
const USER_DATA_BYTES_MAX: usize = 16 << 10;
/// Pages of a list: a pool has a thousand nodes at most.
const PAGES_MAX: usize = 100;

/// What every instance of a pool is like.
#[derive(Clone, Debug)]
pub struct InstanceShape {
    /// The image, which has `firn-blockd`.
    pub image: String,
    /// The type, such as `i4i.xlarge`.
    pub instance_type: String,
    /// The instance profile whose role opens the cluster's table and no other; none: the image brings what it needs.
    pub instance_profile: Option<String>,
    /// Security groups.
    pub security_groups: Vec<String>,
    /// The subnet of each failure domain; a domain that is not here is taken for an availability zone.
    pub subnets: BTreeMap<String, String>,
}

/// See the module.
pub struct Ec2 {
    account: AwsAccount,
    shape: InstanceShape,
}

impl From<AwsError> for ProvisionError {
    fn from(error: AwsError) -> Self {
        match error {
            AwsError::Refused { .. } => Self::Refused(error.to_string()),
            AwsError::Unavailable { .. } => Self::Unavailable(error.to_string()),
        }
    }
}

fn fields<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// The instances of a reply that have a node's tag: id and node.
fn instances(reply: &Element) -> Vec<(String, NodeId)> {
    reply
        .items("instancesSet")
        .into_iter()
        .filter_map(|instance| {
            let id = instance.first("instanceId")?;
            let node = instance.tag(NODE_TAG)?.parse().ok()?;
            Some((id, node))
        })
        .collect()
}

impl Ec2 {
    /// Instances of this shape in the account's region.
    pub fn new(account: AwsAccount, shape: InstanceShape) -> Self {
        Self { account, shape }
    }

    async fn call(&self, action: &str, fields: &[(String, String)]) -> Result<Element, ProvisionError> {
        Ok(self.account.call("ec2", VERSION, action, fields).await?)
    }

    /// Instances that run or are about to, by a tag.
    async fn find(&self, tag: &str, value: &str) -> Result<Vec<(String, NodeId)>, ProvisionError> {
        let filter = fields([
            ("Filter.1.Name", &*format!("tag:{tag}")),
            ("Filter.1.Value.1", value),
            ("Filter.2.Name", "instance-state-name"),
            ("Filter.2.Value.1", "pending"),
            ("Filter.2.Value.2", "running"),
            ("Filter.2.Value.3", "stopping"),
            ("Filter.2.Value.4", "stopped"),
            ("MaxResults", "100"),
        ]);
        let mut found = Vec::new();
        let mut page = filter.clone();
        for _ in 0..PAGES_MAX {
            let reply = self.call("DescribeInstances", &page).await?;
            found.extend(instances(&reply));
            match reply.first("nextToken").filter(|token| !token.is_empty()) {
                None => return Ok(found),
                Some(token) => {
                    page = filter.clone();
                    page.push(("NextToken".into(), token));
                }
            }
        }
        Err(ProvisionError::Unavailable(
            "the list of instances does not end".into(),
        ))
    }

    /// What `RunInstances` is asked.
    fn request(&self, plan: &NodePlan) -> Result<Vec<(String, String)>, ProvisionError> {
        if plan.user_data.len() > USER_DATA_BYTES_MAX {
            let bytes = plan.user_data.len();
            return Err(ProvisionError::Refused(format!(
                "{bytes} bytes of user data, {USER_DATA_BYTES_MAX} are taken"
            )));
        }
        let (node, tenant) = (plan.node.to_string(), plan.tenant.to_string());
        let mut fields = fields([
            ("ImageId", &*self.shape.image),
            ("InstanceType", &self.shape.instance_type),
            ("MinCount", "1"),
            ("MaxCount", "1"),
            ("ClientToken", &node),
            ("UserData", &STANDARD.encode(plan.user_data.as_bytes())),
            // The user data can be read from the instance: only with a token, and not from a container on it.
            ("MetadataOptions.HttpTokens", "required"),
            ("MetadataOptions.HttpPutResponseHopLimit", "1"),
            ("InstanceInitiatedShutdownBehavior", "terminate"),
            ("TagSpecification.1.ResourceType", "instance"),
            ("TagSpecification.1.Tag.1.Key", NODE_TAG),
            ("TagSpecification.1.Tag.1.Value", &node),
            ("TagSpecification.1.Tag.2.Key", TENANT_TAG),
            ("TagSpecification.1.Tag.2.Value", &tenant),
            ("TagSpecification.1.Tag.3.Key", "Name"),
            ("TagSpecification.1.Tag.3.Value", &format!("firn {node}")),
        ]);
        match self.shape.subnets.get(&plan.failure_domain) {
            Some(subnet) => fields.push(("SubnetId".into(), subnet.clone())),
            None => fields.push(("Placement.AvailabilityZone".into(), plan.failure_domain.clone())),
        }
        for (index, group) in self.shape.security_groups.iter().enumerate() {
            fields.push((format!("SecurityGroupId.{}", index + 1), group.clone()));
        }
        if let Some(profile) = &self.shape.instance_profile {
            fields.push(("IamInstanceProfile.Name".into(), profile.clone()));
        }
        Ok(fields)
    }
}

#[async_trait]
impl NodeProvisioner for Ec2 {
    async fn launch(&self, plan: &NodePlan) -> Result<Machine, ProvisionError> {
        let request = self.request(plan)?;
        let machine = |name: String| Machine {
            node: plan.node,
            name,
        };
        if let Some((id, _)) = self
            .find(NODE_TAG, &plan.node.to_string())
            .await?
            .into_iter()
            .next()
        {
            return Ok(machine(id));
        }
        let reply = self.call("RunInstances", &request).await?;
        let id = reply
            .first("instanceId")
            .ok_or_else(|| ProvisionError::Unavailable("the reply names no instance".into()))?;
        Ok(machine(id))
    }

    async fn machines(&self, tenant: TenantId) -> Result<Vec<Machine>, ProvisionError> {
        let found = self.find(TENANT_TAG, &tenant.to_string()).await?;
        Ok(found
            .into_iter()
            .map(|(name, node)| Machine { node, name })
            .collect())
    }

    async fn terminate(&self, _tenant: TenantId, node: NodeId) -> Result<(), ProvisionError> {
        let found = self.find(NODE_TAG, &node.to_string()).await?;
        if found.is_empty() {
            return Ok(());
        }
        let ids: Vec<(String, String)> = found
            .into_iter()
            .enumerate()
            .map(|(index, (id, _))| (format!("InstanceId.{}", index + 1), id))
            .collect();
        self.call("TerminateInstances", &ids).await.map(drop)
    }
}
