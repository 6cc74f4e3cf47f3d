//! Short-lived credentials of the cloud for edges, bound to one volume's prefix.
//!
//! An edge that was stolen must not destroy history (only the cleaner's own credentials may delete), nor overwrite it, nor see
//! another volume's objects. So what it is given is a role narrowed by a **session policy**: what the policy does not allow is
//! denied, whatever the role could do.
//!
//! ```text
//! allowed   read objects under the prefix; list names under it; put an object where there is none (If-None-Match)
//! denied    everything else by default, and by name: deleting, overwriting, changing access or retention, and key rings
//! ```
//!
//! An edge that a volume was granted to adds nothing, or, for writing, to the logs of writers that it drew (on Azure a signature names one place).
//!
//! Key rings are what a recovery and other edges look for, so the service puts them itself, before it gives a session
//! ([`CloudSessions::keep`]): junk among them could keep others from the newest one.
//!
//! On Azure the same is a shared access signature with the permissions read, create and list ([`crate::AzureSessions`]); it cannot
//! leave key rings out, since a signature names a whole container.
//!
//! Sessions live [`SESSION_SECONDS`]; a removed edge is refused its next ones at once, so its last ones end within that time.

mod both;

pub use both::BothClouds;

use async_trait::async_trait;
use firn_identity::{EdgeId, TenantId, UnixTime, VolumeId};

/// The shortest session that STS gives, and the time within which a removed edge loses the bucket.
pub const SESSION_SECONDS: u64 = 900;
/// How much later than it was noted a session may start: the cloud is given 20 s to answer.
pub(crate) const START_SECONDS: u64 = 30;
/// What STS takes for a session policy in plain text.
const POLICY_MAX_CHARACTERS: usize = 2048;

/// The files that sessions' policies are made of; `tests/policies` holds them against a matrix of who may do what.
const EDGE_POLICY: &str = include_str!("../iam/edge-session.json");
const READER_POLICY: &str = include_str!("../iam/reader-session.json");
const WRITER_POLICY: &str = include_str!("../iam/writer-session.json");
#[cfg(any(feature = "aws", test))]
const RING_POLICY: &str = include_str!("../iam/ring-session.json");
#[cfg(any(feature = "aws", test))]
const PROOF_POLICY: &str = include_str!("../iam/proof-session.json");

/// One volume's place in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The storage account, if the bucket is a container of Azure's; otherwise it is one of S3.
    pub account: Option<String>,
    /// The bucket's name.
    pub bucket: String,
    /// What the names of the volume's objects begin with, without a slash at its end; may be empty.
    pub prefix: String,
}

/// A place that cannot be written into a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// It is not of the form.
    #[error(
        "{0:?} is no place: write s3://bucket/prefix or azure://account/container/prefix, with letters, digits and . _ - / only"
    )]
    Form(String),
    /// The policy would be longer than STS takes.
    #[error(
        "the prefix is too long: its policy has {characters} characters, {POLICY_MAX_CHARACTERS} are taken"
    )]
    TooLong {
        /// How many it has.
        characters: usize,
    },
}

impl Place {
    /// Reads `s3://bucket/prefix` or `azure://account/container/prefix`. Only characters that mean nothing in a policy pass: `*`, `?` and `$` would widen it.
    ///
    /// # Errors
    /// [`PlaceError::Form`].
    pub fn parse(url: &str) -> Result<Self, PlaceError> {
        let wrong = || PlaceError::Form(url.to_owned());
        let (account, rest) = match url.strip_prefix("azure://") {
            None => (None, url.strip_prefix("s3://").ok_or_else(wrong)?),
            Some(rest) => {
                let (account, rest) = rest.split_once('/').ok_or_else(wrong)?;
                let is_account = (3..=24).contains(&account.len())
                    && account
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
                if !is_account {
                    return Err(wrong());
                }
                (Some(account.to_owned()), rest)
            }
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_bucket = (3..=63).contains(&bucket.len())
            && bucket.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-')
            });
        let is_prefix = prefix.is_empty()
            || prefix.split('/').all(|part| {
                // Below `keyring/` edges may put nothing.
                !matches!(part, "" | "." | ".." | "keyring")
                    && part
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
            });
        if !is_bucket || !is_prefix {
            return Err(wrong());
        }
        Ok(Self {
            account,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        })
    }

    /// The name of the object that a proof of control puts.
    #[cfg(any(feature = "aws", test))]
    pub(crate) fn proof_key(&self, nonce: &str) -> String {
        if self.prefix.is_empty() {
            format!("firn-proof/{nonce}")
        } else {
            format!("{}/firn-proof/{nonce}", self.prefix)
        }
    }

    /// The session policy of a proof: one object, nothing else.
    #[cfg(any(feature = "aws", test))]
    pub(crate) fn proof_policy(&self, nonce: &str) -> String {
        filled(
            PROOF_POLICY,
            &[("BUCKET", &self.bucket), ("OBJECT", &self.proof_key(nonce))],
        )
    }

    /// The session policy of an edge for this place, which is one of S3.
    ///
    /// # Errors
    /// [`PlaceError::TooLong`].
    pub fn edge_policy(&self) -> Result<String, PlaceError> {
        self.session_policy(EDGE_POLICY, &[])
    }

    /// The session policy of an edge that was granted to write this place, which is one of S3, and may add below these names, which end in a
    /// slash; to none of them: it only reads.
    ///
    /// # Errors
    /// [`PlaceError::TooLong`].
    pub fn writer_policy(&self, logs: &[String]) -> Result<String, PlaceError> {
        match logs.is_empty() {
            true => self.reader_policy(),
            false => self.session_policy(WRITER_POLICY, logs),
        }
    }

    /// The session policy of an edge that was granted to read this place, which is one of S3.
    ///
    /// # Errors
    /// [`PlaceError::TooLong`].
    pub fn reader_policy(&self) -> Result<String, PlaceError> {
        self.session_policy(READER_POLICY, &[])
    }

    fn session_policy(&self, file: &str, logs: &[String]) -> Result<String, PlaceError> {
        let under = if self.prefix.is_empty() {
            "*".to_owned()
        } else {
            format!("{}/*", self.prefix)
        };
        // One resource for each log: the file has it once.
        let resource = "\"arn:aws:s3:::${BUCKET}/${LOG}*\"";
        let named = logs.iter().map(|log| match &*self.prefix {
            "" => log.clone(),
            prefix => format!("{prefix}/{log}"),
        });
        let all: Vec<String> = named.map(|log| resource.replace("${LOG}", &log)).collect();
        let file = file.replace(resource, &format!("[{}]", all.join(",")));
        let policy = filled(&file, &[("BUCKET", &self.bucket), ("UNDER", &under)]);
        let characters = policy.chars().count();
        if characters > POLICY_MAX_CHARACTERS {
            return Err(PlaceError::TooLong { characters });
        }
        Ok(policy)
    }
}

/// A policy file with its placeholders filled, without the spaces that are for people: STS counts them.
///
/// The values are a [`Place`]'s, so none ends a text of JSON or means something in a policy.
fn filled(file: &str, values: &[(&str, &str)]) -> String {
    let mut text = file.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("${{{name}}}"), value);
    }
    let policy: serde_json::Value =
        serde_json::from_str(&text).expect("the policy file is JSON, and stays it");
    let policy = policy.to_string();
    assert!(!policy.contains("${"), "every placeholder has a value");
    policy
}

/// What a session is asked for with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRequest {
    /// Whose.
    pub tenant: TenantId,
    /// For which edge: the session's name, by which the bucket's own log tells edges apart.
    pub edge: EdgeId,
    /// For which volume.
    pub volume: VolumeId,
    /// The tenant's role for its own bucket; none: the service's for a managed one.
    pub role: Option<String>,
    /// What the tenant's role demands, so that nobody else can make the service use it.
    pub external_id: String,
    /// What it opens, and nothing else.
    pub place: Place,
    /// For how long.
    pub seconds: u64,
    /// Whether it may add nothing.
    pub is_read_only: bool,
    /// Of an edge that the volume was granted to, below which names in the place it may add.
    pub held_to: Option<Vec<String>>,
}

impl SessionRequest {
    /// The session policy, for a place of S3.
    ///
    /// # Errors
    /// [`PlaceError::TooLong`].
    pub fn policy(&self) -> Result<String, PlaceError> {
        match (self.is_read_only, &self.held_to) {
            (true, _) => self.place.reader_policy(),
            (false, Some(logs)) => self.place.writer_policy(logs),
            (false, None) => self.place.edge_policy(),
        }
    }
}

/// Credentials of AWS that end by themselves.
#[derive(Clone)]
pub struct AwsSession {
    /// Public part.
    pub access_key_id: String,
    /// Secret part.
    pub secret_access_key: String,
    /// What marks it as a session.
    pub session_token: String,
}

/// What opens a place.
#[derive(Clone)]
pub enum CloudCredential {
    /// A session of AWS's token service.
    Aws(AwsSession),
    /// A shared access signature of Azure's, as a query.
    AzureSas(String),
}

/// Credentials that end by themselves.
#[derive(Clone)]
pub struct CloudSession {
    /// What to show to the cloud.
    pub credential: CloudCredential,
    /// When it ends.
    pub expires: UnixTime,
}

/// Why there are no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloudError {
    /// The cloud, or this installation, does not give them; asking again changes nothing.
    #[error("no credentials are given: {0}")]
    Refused(String),
    /// It did not answer; asking again is safe.
    #[error("the cloud did not answer: {0}")]
    Unavailable(String),
}

/// A bucket that a tenant brings, of which it is to be shown that it is the tenant's to bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofRequest {
    /// Whose volume it is for.
    pub volume: VolumeId,
    /// Where in the bucket.
    pub place: Place,
    /// The role that the tenant grants.
    pub role: String,
    /// What the role must demand.
    pub external_id: String,
}

/// A key ring to be put into a volume's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingObject {
    /// Whose volume it is for.
    pub volume: VolumeId,
    /// Where the volume lies.
    pub place: Place,
    /// The tenant's role for its own bucket; none: the service's for a managed one.
    pub role: Option<String>,
    /// What the tenant's role demands.
    pub external_id: String,
    /// Its name below the place.
    pub key: String,
    /// The ring.
    pub bytes: Vec<u8>,
}

impl RingObject {
    /// Its whole name in the bucket.
    #[cfg(any(feature = "aws", feature = "azure", test))]
    pub(crate) fn object_key(&self) -> String {
        match &*self.place.prefix {
            "" => self.key.clone(),
            prefix => format!("{prefix}/{}", self.key),
        }
    }

    /// The session policy for putting it: one object, nothing else.
    #[cfg(any(feature = "aws", test))]
    pub(crate) fn policy(&self) -> String {
        filled(
            RING_POLICY,
            &[("BUCKET", &self.place.bucket), ("OBJECT", &self.object_key())],
        )
    }
}

/// Gives sessions.
#[async_trait]
pub trait CloudSessions: Send + Sync {
    /// Where the service keeps a managed volume of this region.
    fn managed(&self, region: &str, tenant: TenantId, volume: VolumeId) -> Option<Place>;
    /// Such a place as the configuration of an edge names it, if the service gives sessions for it.
    fn store_url(&self, _place: &Place, _region: &str) -> Option<String> {
        None
    }
    /// Regions in which the service keeps managed volumes. `None`: any, since it has no cloud and a region is only a name to it.
    fn regions(&self) -> Option<Vec<String>>;
    /// Starts a session; every call is a new one.
    async fn start(&self, request: &SessionRequest) -> Result<CloudSession, CloudError>;
    /// Shows that whoever set the role up meant this tenant, and that the role reaches the place: the role refuses another external id
    /// and takes the tenant's, and an object is put there, read back and removed.
    async fn prove(&self, request: &ProofRequest) -> Result<(), CloudError>;
    /// Puts a key ring where the volume's edges and a recovery look for it, unless it is there. Another object of its name is never
    /// replaced: that is refused.
    async fn keep(&self, ring: &RingObject) -> Result<(), CloudError>;
}

/// For a service that has no cloud: every session is refused, nothing is pretended.
pub struct NoCloud;

#[async_trait]
impl CloudSessions for NoCloud {
    fn managed(&self, _region: &str, _tenant: TenantId, _volume: VolumeId) -> Option<Place> {
        None
    }

    fn regions(&self) -> Option<Vec<String>> {
        None
    }

    async fn start(&self, _request: &SessionRequest) -> Result<CloudSession, CloudError> {
        Err(CloudError::Refused(
            "this service runs without a cloud account".into(),
        ))
    }

    async fn prove(&self, _request: &ProofRequest) -> Result<(), CloudError> {
        Err(CloudError::Refused(
            "this service runs without a cloud account".into(),
        ))
    }

    async fn keep(&self, _ring: &RingObject) -> Result<(), CloudError> {
        Err(CloudError::Refused(
            "this service runs without a cloud account".into(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// IAM's evaluation, as its documentation describes it: denied unless allowed, and a deny wins.
    fn allows(policy: &str, action: &str, resource: &str, context: &[(&str, &str)]) -> bool {
        let policy: Value = serde_json::from_str(policy).unwrap();
        let mut allowed = false;
        for statement in policy["Statement"].as_array().unwrap() {
            let actions = match &statement["Action"] {
                Value::Array(actions) => actions.clone(),
                action => vec![action.clone()],
            };
            let applies = actions
                .iter()
                .any(|pattern| like(pattern.as_str().unwrap(), action))
                && like(statement["Resource"].as_str().unwrap(), resource)
                && meets(&statement["Condition"], context);
            match (applies, statement["Effect"].as_str()) {
                (true, Some("Deny")) => return false,
                (true, Some("Allow")) => allowed = true,
                (true, other) => panic!("{other:?}"),
                (false, _) => {}
            }
        }
        allowed
    }

    fn meets(condition: &Value, context: &[(&str, &str)]) -> bool {
        condition
            .as_object()
            .into_iter()
            .flatten()
            .all(|(operator, keys)| {
                keys.as_object().unwrap().iter().all(|(key, wanted)| {
                    let found = context
                        .iter()
                        .find(|(name, _)| name == key)
                        .map(|(_, value)| *value);
                    match operator.as_str() {
                        "StringLike" => found.is_some_and(|found| like(wanted.as_str().unwrap(), found)),
                        "Null" => found.is_none() == (wanted == "true"),
                        other => panic!("{other}"),
                    }
                })
            })
    }

    fn like(pattern: &str, text: &str) -> bool {
        match pattern.split_once('*') {
            None => pattern == text,
            Some((head, rest)) => text.strip_prefix(head).is_some_and(|text| {
                (0..=text.len()).any(|from| text.is_char_boundary(from) && like(rest, &text[from..]))
            }),
        }
    }

    const CREATE: [(&str, &str); 1] = [("s3:if-none-match", "*")];

    #[test]
    fn an_edge_reads_lists_and_adds_under_its_prefix_and_nothing_else() {
        let policy = Place::parse("s3://nord-data/firn/vol_1")
            .unwrap()
            .edge_policy()
            .unwrap();
        let own = "arn:aws:s3:::nord-data/firn/vol_1/ab/log/1/2";
        assert!(allows(&policy, "s3:GetObject", own, &[]));
        assert!(allows(&policy, "s3:PutObject", own, &CREATE));
        assert!(allows(
            &policy,
            "s3:ListBucket",
            "arn:aws:s3:::nord-data",
            &[("s3:prefix", "firn/vol_1/ab/log/")]
        ));
        assert!(
            !allows(&policy, "s3:PutObject", own, &[]),
            "a put that could overwrite"
        );
        for action in [
            "s3:DeleteObject",
            "s3:DeleteObjectVersion",
            "s3:PutObjectAcl",
            "s3:PutObjectRetention",
            "s3:BypassGovernanceRetention",
            "s3:GetObjectAcl",
            "s3:GetObjectVersion",
            "s3:RestoreObject",
        ] {
            assert!(!allows(&policy, action, own, &CREATE), "{action}");
        }
        for other in [
            "arn:aws:s3:::nord-data/firn/vol_10/x",
            "arn:aws:s3:::nord-data/firn/vol_2/x",
            "arn:aws:s3:::nord-data/firn/vol_1",
            "arn:aws:s3:::nord-data2/firn/vol_1/x",
            "arn:aws:s3:::other/firn/vol_1/x",
        ] {
            assert!(!allows(&policy, "s3:GetObject", other, &[]), "{other}");
            assert!(!allows(&policy, "s3:PutObject", other, &CREATE), "{other}");
        }
        for context in [
            vec![],
            vec![("s3:prefix", "")],
            vec![("s3:prefix", "firn/")],
            vec![("s3:prefix", "firn/vol_2/")],
        ] {
            assert!(
                !allows(&policy, "s3:ListBucket", "arn:aws:s3:::nord-data", &context),
                "{context:?}"
            );
        }
        for action in [
            "s3:PutBucketPolicy",
            "s3:DeleteBucket",
            "s3:PutLifecycleConfiguration",
            "s3:ListAllMyBuckets",
            "sts:AssumeRole",
        ] {
            assert!(
                !allows(&policy, action, "arn:aws:s3:::nord-data", &[]),
                "{action}"
            );
        }
    }

    #[test]
    fn an_edge_reads_key_rings_and_puts_none() {
        for url in ["s3://nord-data/firn/vol_1", "s3://nord-data"] {
            let place = Place::parse(url).unwrap();
            let policy = place.edge_policy().unwrap();
            let ring = RingObject {
                volume: VolumeId([1; 16]),
                place: place.clone(),
                role: None,
                external_id: String::new(),
                key: "fa/keyring/ffffffffffffffff".into(),
                bytes: Vec::new(),
            };
            let object = format!("arn:aws:s3:::nord-data/{}", ring.object_key());
            assert!(allows(&policy, "s3:GetObject", &object, &[]));
            assert!(!allows(&policy, "s3:PutObject", &object, &CREATE), "{object}");
            assert!(!allows(&policy, "s3:PutObject", &format!("{object}/x"), &CREATE));
            let segment = object.replace("keyring/", "log/1/");
            assert!(allows(&policy, "s3:PutObject", &segment, &CREATE), "{segment}");

            let own = ring.policy();
            assert!(allows(&own, "s3:PutObject", &object, &CREATE));
            assert!(!allows(&own, "s3:PutObject", &segment, &CREATE));
        }
        assert!(Place::parse("s3://nord-data/keyring/x").is_err());
    }

    #[test]
    fn a_proof_reaches_its_own_object_and_nothing_else() {
        for (url, key) in [
            ("s3://nord-data/firn", "firn/firn-proof/n1"),
            ("s3://nord-data", "firn-proof/n1"),
        ] {
            let place = Place::parse(url).unwrap();
            assert_eq!(place.proof_key("n1"), key);
            let policy = place.proof_policy("n1");
            let object = format!("arn:aws:s3:::nord-data/{key}");
            for action in ["s3:PutObject", "s3:GetObject", "s3:DeleteObject"] {
                assert!(allows(&policy, action, &object, &[]));
                assert!(!allows(&policy, action, &format!("{object}0"), &[]));
                assert!(!allows(&policy, action, "arn:aws:s3:::nord-data/firn/log/1", &[]));
            }
            assert!(!allows(&policy, "s3:ListBucket", "arn:aws:s3:::nord-data", &[]));
        }
    }

    #[test]
    fn what_means_something_in_a_policy_is_no_place() {
        for url in [
            "s3://b/x",
            "s3://Bucket/x",
            "s3://bucket/*",
            "s3://bucket/a?b",
            "s3://bucket/${aws:username}",
            "s3://bucket/a/../b",
            "s3://bucket//a",
            "s3://bucket/a\"b",
            "s3://bucket/ä",
            "azure://account",
            "azure://ac/container",
            "azure://Account/container",
            "azure://account/container/*",
            "azure://account/container/a/../b",
            "",
        ] {
            assert!(Place::parse(url).is_err(), "{url}");
        }
        let azure = Place::parse("azure://account1/container/a/b").unwrap();
        assert_eq!(
            (azure.account.as_deref(), &*azure.bucket, &*azure.prefix),
            (Some("account1"), "container", "a/b")
        );
        let whole = Place::parse("s3://bucket").unwrap().edge_policy().unwrap();
        assert!(allows(&whole, "s3:GetObject", "arn:aws:s3:::bucket/x", &[]));
        assert!(!allows(&whole, "s3:GetObject", "arn:aws:s3:::bucket2/x", &[]));
    }

    #[test]
    fn a_policy_that_sts_would_not_take_is_refused_before_it_is_sent() {
        let place = |length: usize| Place::parse(&format!("s3://bucket/{}", "x".repeat(length))).unwrap();
        let longest = (1..2048)
            .rfind(|length| place(*length).edge_policy().is_ok())
            .unwrap();
        assert!(place(longest).edge_policy().unwrap().chars().count() <= POLICY_MAX_CHARACTERS);
        assert!(longest > 500, "prefixes that people have fit: {longest}");
        assert!(matches!(
            place(longest + 1).edge_policy(),
            Err(PlaceError::TooLong { .. })
        ));
    }
}
