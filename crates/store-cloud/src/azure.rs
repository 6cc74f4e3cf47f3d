//! Deleting one blob by one request.
//!
//! `object_store` deletes on Azure through the batch interface only: two operations on the bill, statuses hidden in a
//! multipart body, and not open to every kind of credential. This sends the plain `DELETE`, signed by `object_store`.

use crate::{refusal::RefusalConnector, request::generic};
use http::{Method, Uri};
use object_store::{
    ClientOptions,
    azure::{AzureAuthorizer, MicrosoftAzure},
    client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody},
};

/// A container, with what its plain requests need.
pub(crate) struct AzureContainer {
    pub(crate) store: MicrosoftAzure,
    client: HttpClient,
    account: String,
    /// `https://account.blob.core.windows.net/container`.
    container_url: String,
}

impl AzureContainer {
    pub(crate) fn new(
        store: MicrosoftAzure,
        options: &ClientOptions,
        account: &str,
        container_url: String,
    ) -> object_store::Result<Self> {
        Ok(Self {
            store,
            client: RefusalConnector.connect(options)?,
            account: account.to_owned(),
            container_url,
        })
    }

    /// Removes a blob, whose name needs no escaping since it is made from a prefix and a key.
    pub(crate) async fn delete(&self, name: &str) -> object_store::Result<()> {
        let credential = self.store.credentials().get_credential().await?;
        let uri: Uri = format!("{}/{name}", self.container_url).parse().map_err(failed)?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = Method::DELETE;
        *request.uri_mut() = uri;
        AzureAuthorizer::new(&credential, &self.account).try_authorize(&mut request)?;
        self.client.execute(request).await.map_err(failed)?;
        Ok(())
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    generic("MicrosoftAzure", error)
}
