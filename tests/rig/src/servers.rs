//! Real servers that `tests/lab/cloud/with` has started, as an edge is configured for them.

use crate::{
    Settings,
    buckets::{AZURITE_ACCOUNT, AZURITE_KEY, create_azure, create_s3},
};
use anyhow::{Context, Result};
use futures::TryStreamExt as _;
use object_store::{ObjectStore, aws::AmazonS3Builder, azure::MicrosoftAzureBuilder};
use std::{path::Path, sync::Arc};

/// The address of a server, as `tests/lab/cloud/start` names it.
pub fn variable(name: &str) -> Result<String> {
    std::env::var(name)
        .with_context(|| format!("{name} is not set: run `make test`, or this below tests/lab/cloud/with"))
}

/// A store on a real server, with DynamoDB Local or Azurite as the table, for one volume of its own.
#[derive(Clone, Debug)]
pub struct Server {
    /// The store server's address.
    pub store_endpoint: String,
    /// The table server's address.
    pub table_endpoint: String,
    kind: Kind,
    table: TableKind,
    name: String,
    table_name: String,
    environment: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    S3,
    Azure,
}

#[derive(Clone, Copy, Debug)]
enum TableKind {
    DynamoDb,
    Azure,
}

impl Server {
    /// LocalStack's S3.
    pub async fn localstack() -> Result<Self> {
        Self::s3("FIRN_TEST_LOCALSTACK", "firntest", "firntest").await
    }

    /// versitygw, which checks signatures.
    pub async fn versitygw() -> Result<Self> {
        let (key, secret) = (
            variable("FIRN_TEST_VERSITYGW_KEY")?,
            variable("FIRN_TEST_VERSITYGW_SECRET")?,
        );
        Self::s3("FIRN_TEST_VERSITYGW", &key, &secret).await
    }

    /// Azurite.
    pub async fn azurite() -> Result<Self> {
        let table = variable("FIRN_TEST_DYNAMODB")?;
        let mut server = Self::azure(table, TableKind::DynamoDb).await?;
        server.environment.extend(of_aws("firntest", "firntest"));
        Ok(server)
    }

    /// Azurite for store and table, with no credentials of AWS.
    pub async fn azure_alone() -> Result<Self> {
        Self::azure(variable("FIRN_TEST_AZURITE_TABLES")?, TableKind::Azure).await
    }

    async fn azure(table_endpoint: String, table: TableKind) -> Result<Self> {
        let mut server = Self::new(Kind::Azure, variable("FIRN_TEST_AZURITE")?, table, table_endpoint)?;
        create_azure(&server.store_endpoint, &server.name).await?;
        let mut add = |name: &str, value: &str| server.environment.push((name.into(), value.into()));
        add("AZURE_STORAGE_ACCOUNT_NAME", AZURITE_ACCOUNT);
        add("AZURE_STORAGE_ACCOUNT_KEY", AZURITE_KEY);
        Ok(server)
    }

    /// The same store with a table that nobody has made yet.
    #[must_use]
    pub fn with_another_table(&self) -> Self {
        Self {
            table_name: format!("{}a", self.table_name),
            ..self.clone()
        }
    }

    async fn s3(endpoint: &str, key: &str, secret: &str) -> Result<Self> {
        let table = variable("FIRN_TEST_DYNAMODB")?;
        let mut server = Self::new(Kind::S3, variable(endpoint)?, TableKind::DynamoDb, table)?;
        server.environment.extend(of_aws(key, secret));
        create_s3(&server.store_endpoint, &server.name, key, secret).await?;
        Ok(server)
    }

    fn new(kind: Kind, store_endpoint: String, table: TableKind, table_endpoint: String) -> Result<Self> {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        // Nobody else's on servers that live as long as a test.
        let name = format!("firn-{}-{}", std::process::id(), since.as_nanos());
        Ok(Self {
            store_endpoint,
            table_endpoint,
            kind,
            table,
            // Azure's tables have letters and digits only.
            table_name: match table {
                TableKind::DynamoDb => name.clone(),
                TableKind::Azure => name.replace('-', ""),
            },
            name,
            environment: Vec::new(),
        })
    }

    /// The same servers by way of other addresses.
    #[must_use]
    pub fn by_way_of(&self, store_endpoint: String, table_endpoint: String) -> Self {
        Self {
            store_endpoint,
            table_endpoint,
            ..self.clone()
        }
    }

    /// Credentials of store and table, as variables of the environment.
    pub fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// How many bytes all logs in the store have: what a provider's console would show.
    pub async fn log_bytes(&self) -> Result<u64> {
        let objects = self.objects("/log/").await?;
        Ok(objects.iter().map(|object| object.size).sum())
    }

    /// The objects in the store whose names hold `part`.
    pub async fn objects(&self, part: &str) -> Result<Vec<object_store::ObjectMeta>> {
        let value = |wanted: &str| {
            let found = self.environment.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let options = object_store::ClientOptions::new().with_allow_http(true);
        let store: Arc<dyn ObjectStore> = match self.kind {
            Kind::S3 => Arc::new(
                AmazonS3Builder::new()
                    .with_bucket_name(&self.name)
                    .with_endpoint(&self.store_endpoint)
                    .with_region("us-east-1")
                    .with_access_key_id(value("AWS_ACCESS_KEY_ID"))
                    .with_secret_access_key(value("AWS_SECRET_ACCESS_KEY"))
                    .with_client_options(options)
                    .build()?,
            ),
            Kind::Azure => Arc::new(
                MicrosoftAzureBuilder::new()
                    .with_account(AZURITE_ACCOUNT)
                    .with_access_key(AZURITE_KEY)
                    .with_container_name(&self.name)
                    .with_endpoint(self.store_endpoint.clone())
                    .with_client_options(options)
                    .build()?,
            ),
        };
        let mut objects: Vec<_> = store.list(None).try_collect().await?;
        objects.retain(|object| object.location.as_ref().contains(part));
        Ok(objects)
    }

    /// An edge with its state below `directory` and everything else here.
    pub fn settings(&self, directory: &Path) -> Settings {
        let (name, endpoint, table) = (&self.name, &self.store_endpoint, &self.table_endpoint);
        let table_name = &self.table_name;
        Settings {
            store: match self.kind {
                Kind::S3 => format!("s3://{name}/some/prefix?region=us-east-1&endpoint={endpoint}"),
                Kind::Azure => {
                    format!("azure://{name}/some/prefix?account={AZURITE_ACCOUNT}&endpoint={endpoint}")
                }
            },
            table: match self.table {
                TableKind::DynamoDb => {
                    format!("dynamodb://{table_name}?region=us-east-1&endpoint={table}&create=true")
                }
                TableKind::Azure => {
                    format!(
                        "azure-table://{table_name}?account={AZURITE_ACCOUNT}&endpoint={table}&create=true"
                    )
                }
            },
            environment: self.environment.clone(),
            ..Settings::local(directory)
        }
    }
}

/// `key` and `secret` are those of S3; DynamoDB Local takes any.
fn of_aws(key: &str, secret: &str) -> [(String, String); 3] {
    [
        ("AWS_ACCESS_KEY_ID".into(), key.into()),
        ("AWS_SECRET_ACCESS_KEY".into(), secret.into()),
        ("AWS_REGION".into(), "us-east-1".into()),
    ]
}
