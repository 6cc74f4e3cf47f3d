//! Reaching the table: credentials and endpoint, creation on request, and a look at its schema.

use crate::{
    attributes::{PARTITION, SORT},
    failure::{SERVICE, judge},
};
use aws_config::{BehaviorVersion, Region, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_dynamodb::{
    Client,
    config::Credentials,
    operation::{create_table::CreateTableError, describe_table::DescribeTableError},
    types::{
        AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableDescription,
        TableStatus,
    },
};
use firn_env::Env;
use firn_table::{DynamoDbUrl, RequestFailure as Failure, TableError, persist};
use std::time::Duration;

/// Time to connect; the nearest region answers within some tens of milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for one try, a transaction of 4 MiB included.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks at a table that is being created.
const CREATION_POLL: Duration = Duration::from_millis(500);
/// Looks until creation counts as failed: three minutes, where AWS takes some ten seconds.
const CREATION_POLLS: u32 = 360;
/// Emulators take any region; AWS itself must be told.
const EMULATOR_REGION: &str = "us-east-1";

/// Temporary or lasting credentials that somebody handed out, instead of those that the machine has.
#[derive(Clone)]
pub struct AwsCredentials {
    /// The public half.
    pub access_key_id: String,
    /// The secret half.
    pub secret_access_key: String,
    /// Present with temporary credentials.
    pub session_token: Option<String>,
}

/// A client whose table exists, is active and has our schema.
pub(crate) async fn open(
    env: &Env,
    url: &DynamoDbUrl,
    credentials: Option<AwsCredentials>,
) -> Result<Client, TableError> {
    let client = connect(url, credentials).await?;
    let mut asked = false;
    for _ in 0..CREATION_POLLS {
        match describe(env, &client, &url.table).await? {
            None if asked => {}
            None if url.create => {
                create(env, &client, &url.table).await?;
                asked = true;
            }
            None => {
                return Err(TableError::Refused(format!(
                    "DynamoDB has no table {:?} in this region and account; create it, or let it be created by create=true",
                    url.table
                )));
            }
            Some(description) => {
                if is_ready(&url.table, &description)? {
                    check_schema(&url.table, &description)?;
                    return Ok(client);
                }
            }
        }
        env.sleep(CREATION_POLL).await;
    }
    Err(TableError::Unavailable(format!(
        "DynamoDB table {:?} did not become active within {} s",
        url.table,
        (CREATION_POLL * CREATION_POLLS).as_secs()
    )))
}

/// Whether DynamoDB has the table; it is not made.
///
/// # Errors
/// [`TableError`] if DynamoDB is away or refuses to say.
pub async fn exists(env: &Env, url: &DynamoDbUrl) -> Result<bool, TableError> {
    let client = connect(url, None).await?;
    Ok(describe(env, &client, &url.table).await?.is_some())
}

async fn connect(url: &DynamoDbUrl, credentials: Option<AwsCredentials>) -> Result<Client, TableError> {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(TRY_TIMEOUT)
        .build();
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
        // Retries are ours: only we know which failed condition is our own lost reply.
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts);
    if let Some(region) = &url.region {
        loader = loader.region(Region::new(region.clone()));
    } else if url.endpoint.is_some() {
        loader = loader.region(Region::from_static(EMULATOR_REGION));
    }
    if let Some(endpoint) = &url.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    if let Some(given) = credentials {
        loader = loader.credentials_provider(Credentials::new(
            given.access_key_id,
            given.secret_access_key,
            given.session_token,
            None,
            "firn",
        ));
    }
    let config = loader.load().await;
    if config.region().is_none() {
        return Err(TableError::Refused(format!(
            "no AWS region is known for DynamoDB table {:?}: write dynamodb://{}?region=REGION or set AWS_REGION",
            url.table, url.table
        )));
    }
    Ok(Client::new(&config))
}

async fn describe(env: &Env, client: &Client, table: &str) -> Result<Option<TableDescription>, TableError> {
    persist(env, SERVICE, |_| async {
        match client.describe_table().table_name(table).send().await {
            Ok(output) => Ok(output.table),
            Err(error) => match error.as_service_error() {
                Some(DescribeTableError::ResourceNotFoundException(_)) => Ok(None),
                _ => Err(judge(table, &error)),
            },
        }
    })
    .await
}

async fn create(env: &Env, client: &Client, table: &str) -> Result<(), TableError> {
    let invalid = |error| Failure::Final(TableError::Refused(format!("{error}")));
    persist(env, SERVICE, |_| async {
        let attribute = |name| {
            AttributeDefinition::builder()
                .attribute_name(name)
                .attribute_type(ScalarAttributeType::S)
                .build()
                .map_err(invalid)
        };
        let key = |name, kind| {
            KeySchemaElement::builder()
                .attribute_name(name)
                .key_type(kind)
                .build()
                .map_err(invalid)
        };
        let result = client
            .create_table()
            .table_name(table)
            .attribute_definitions(attribute(PARTITION)?)
            .attribute_definitions(attribute(SORT)?)
            .key_schema(key(PARTITION, KeyType::Hash)?)
            .key_schema(key(SORT, KeyType::Range)?)
            .billing_mode(BillingMode::PayPerRequest)
            .send()
            .await;
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.as_service_error() {
                // Somebody else, or an earlier try of ours, creates it.
                Some(CreateTableError::ResourceInUseException(_)) => Ok(()),
                _ => Err(judge(table, &error)),
            },
        }
    })
    .await?;
    tracing::info!(table, "DynamoDB table is being created, billed per request");
    Ok(())
}

fn is_ready(table: &str, description: &TableDescription) -> Result<bool, TableError> {
    match description.table_status() {
        Some(TableStatus::Active | TableStatus::Updating) => Ok(true),
        Some(TableStatus::Creating) | None => Ok(false),
        Some(status) => Err(TableError::Refused(format!(
            "DynamoDB table {table:?} is {}",
            status.as_str()
        ))),
    }
}

fn check_schema(table: &str, description: &TableDescription) -> Result<(), TableError> {
    let keys: Vec<_> = description
        .key_schema()
        .iter()
        .map(|key| {
            let kind = description
                .attribute_definitions()
                .iter()
                .find(|attribute| attribute.attribute_name() == key.attribute_name())
                .map(|attribute| attribute.attribute_type().as_str());
            (key.attribute_name(), key.key_type().as_str(), kind.unwrap_or("?"))
        })
        .collect();
    if keys == [(PARTITION, "HASH", "S"), (SORT, "RANGE", "S")] {
        Ok(())
    } else {
        Err(TableError::Refused(format!(
            "DynamoDB table {table:?} has the key {keys:?}, not ours (hash key {PARTITION:?}, range key {SORT:?}, both \
             strings): it belongs to something else"
        )))
    }
}
