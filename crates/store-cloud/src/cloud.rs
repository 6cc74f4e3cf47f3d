//! A bucket of any provider as a [`Store`].

use crate::{
    azure::AzureContainer,
    classify::{Request, is_behind_the_end, is_not_implemented, is_unintelligible},
    s3::S3Bucket,
};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use firn_store::{
    LIST_PAGE_OBJECTS, ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage,
};
use futures::StreamExt;
use object_store::{
    GetOptions, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutOptions, PutPayload,
    gcp::GoogleCloudStorage,
    list::{PaginatedListOptions, PaginatedListStore},
    path::Path,
};

/// The largest object that is read as a whole: far above a segment, far below what would endanger a machine.
const WHOLE_OBJECT_BYTES_MAX: u64 = 1 << 30;

/// No object is larger than Azure's 190 TiB. Offsets beyond are answered without asking, since not every server can read
/// a number near 2⁶⁴ in a range.
const OFFSET_MAX: u64 = 1 << 48;

pub(crate) enum Api {
    S3(S3Bucket),
    Azure(AzureContainer),
    Gcs(GoogleCloudStorage),
}

/// A bucket, or a prefix of it.
pub(crate) struct CloudStore {
    api: Api,
    /// Empty, or with a slash at its end.
    prefix: String,
}

impl CloudStore {
    pub(crate) fn new(api: Api, prefix: &str) -> Self {
        let prefix = match prefix {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Self { api, prefix }
    }

    fn objects(&self) -> &dyn ObjectStore {
        match &self.api {
            Api::S3(bucket) => &bucket.store,
            Api::Azure(container) => &container.store,
            Api::Gcs(store) => store,
        }
    }

    fn listing(&self) -> &dyn PaginatedListStore {
        match &self.api {
            Api::S3(bucket) => &bucket.store,
            Api::Azure(container) => &container.store,
            Api::Gcs(store) => store,
        }
    }

    fn name(&self, key: &ObjectKey) -> String {
        format!("{}{key}", self.prefix)
    }

    fn path(&self, key: &ObjectKey) -> Path {
        Path::from(self.name(key))
    }

    /// The object whose whole key is the prefix of a listing, where `object_store` leaves it out: on Azure it takes such
    /// a blob for the marker of a directory. Prefixes that end with a slash have none and cost no request.
    async fn unlisted_namesake(&self, prefix: &str) -> Result<Option<ObjectInfo>, StoreError> {
        match &self.api {
            Api::Azure(_) if ObjectKey::is_valid(prefix) => match self.head(&ObjectKey::new(prefix)).await {
                Ok(info) => Ok(Some(info)),
                Err(StoreError::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            },
            Api::Azure(_) | Api::S3(_) | Api::Gcs(_) => Ok(None),
        }
    }

    fn info(&self, object: &ObjectMeta) -> Option<ObjectInfo> {
        // What others put beside Firn's objects need not have a name that Firn could have given.
        let name = object.location.as_ref().strip_prefix(&self.prefix)?;
        ObjectKey::is_valid(name).then(|| ObjectInfo {
            key: ObjectKey::new(name),
            size_bytes: object.size,
            modified_ms: object.last_modified.timestamp_millis(),
        })
    }
}

/// The body, but not more of it than was asked for: what is sent is up to the server, what is kept is up to us.
async fn collect(request: Request<'_>, result: GetResult, limit: u64) -> Result<Bytes, StoreError> {
    let expected = result.range.end - result.range.start;
    if expected > limit {
        return Err(request.invalid(format!(
            "the object has {expected} bytes, more than the {limit} that are taken at once"
        )));
    }
    let mut stream = result.into_stream();
    let mut parts = Vec::new();
    let mut received = 0;
    while let Some(part) = stream.next().await {
        let part = part.map_err(|error| request.failed(&error))?;
        received += part.len() as u64;
        if received > expected {
            break;
        }
        parts.push(part);
    }
    if received != expected {
        return Err(request.unavailable(format!(
            "the answer has {received} bytes or more where {expected} were announced"
        )));
    }
    if parts.len() == 1 {
        return Ok(parts.remove(0));
    }
    let mut whole = BytesMut::with_capacity(usize::try_from(expected).unwrap_or_default());
    for part in parts {
        whole.extend_from_slice(&part);
    }
    Ok(whole.freeze())
}

#[async_trait]
impl Store for CloudStore {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        let request = Request {
            operation: "put",
            key,
            is_create: mode == PutMode::Create,
        };
        let mode = match mode {
            PutMode::Create => object_store::PutMode::Create,
            PutMode::Overwrite => object_store::PutMode::Overwrite,
        };
        let payload: PutPayload = parts.into_iter().collect();
        let path = self.path(key);
        let put = self.objects().put_opts(&path, payload, PutOptions::from(mode));
        let failed = match put.await {
            Ok(_) => return Ok(()),
            Err(error) => request.failed(&error),
        };
        // Who may create and not write is denied what is there already. Azure has a code for that; Azurite has only that of a missing
        // right, so a look decides.
        let is_denied = request.is_create && matches!(failed, StoreError::Denied { .. });
        if is_denied && matches!(self.api, Api::Azure(_)) && self.head(key).await.is_ok() {
            return Err(StoreError::already_exists(key));
        }
        Err(failed)
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        let request = plain("get", key);
        match self.objects().get(&self.path(key)).await {
            Ok(result) => collect(request, result, WHOLE_OBJECT_BYTES_MAX).await,
            Err(error) => Err(request.failed(&error)),
        }
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        if length == 0 || offset >= OFFSET_MAX {
            // HTTP has no empty range; whether the object exists is still to be told.
            return self.head(key).await.map(|_| Bytes::new());
        }
        let end = offset.saturating_add(length).min(OFFSET_MAX);
        let limit = WHOLE_OBJECT_BYTES_MAX.min(length);
        let request = plain("get", key);
        let options = GetOptions::new().with_range(Some(offset..end));
        match self.objects().get_opts(&self.path(key), options).await {
            Ok(result) => collect(request, result, limit).await,
            Err(error) if is_behind_the_end(&error) => Ok(Bytes::new()),
            // Azurite answers a range behind the end with success and no bytes, which `object_store` does not accept.
            Err(error) if is_unintelligible(&error) && self.head(key).await?.size_bytes <= offset => {
                Ok(Bytes::new())
            }
            Err(error) => Err(request.failed(&error)),
        }
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        let request = plain("head", key);
        match self.objects().head(&self.path(key)).await {
            Ok(object) => self
                .info(&object)
                .ok_or_else(|| request.invalid(format!("the store answers for {}", object.location))),
            Err(error) => Err(request.failed(&error)),
        }
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let deleted = match &self.api {
            Api::Azure(container) => container.delete(&self.name(key)).await,
            Api::S3(bucket) => bucket.store.delete(&self.path(key)).await,
            Api::Gcs(store) => store.delete(&self.path(key)).await,
        };
        match deleted.map_err(|error| plain("delete", key).failed(&error)) {
            Err(StoreError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        let named = ObjectKey::of_prefix(prefix);
        let request = plain("list", &named);
        if !ObjectKey::may_start_with(prefix) {
            return Ok(ListPage::default());
        }
        let after = match after.map(ObjectKey::as_str) {
            Some(after) if after.starts_with(prefix) => Some(after),
            Some(after) if after > prefix => return Ok(ListPage::default()),
            // It lies before all of them.
            Some(_) | None => None,
        };
        let namesake = match after {
            None => self.unlisted_namesake(prefix).await?,
            Some(_) => None,
        };
        let mut options = PaginatedListOptions {
            offset: after.map(|after| format!("{}{after}", self.prefix)),
            max_keys: Some(LIST_PAGE_OBJECTS - usize::from(namesake.is_some())),
            ..PaginatedListOptions::default()
        };
        let full_prefix = format!("{}{prefix}", self.prefix);
        // One request, unless a server sends pages in which nothing is ours, or does not know where to start.
        loop {
            let page = self
                .listing()
                .list_paginated(Some(&full_prefix), options.clone())
                .await
                .map_err(|error| request.failed(&error))?;
            let listed = page.result.objects.iter();
            let mut objects: Vec<ObjectInfo> = listed
                .filter_map(|object| self.info(object))
                .filter(|object| after.is_none_or(|after| object.key.as_str() > after))
                .chain(namesake.clone())
                .collect();
            let more = page.page_token.is_some();
            if !objects.is_empty() || !more {
                objects.sort_by(|left, right| left.key.cmp(&right.key));
                return Ok(ListPage { objects, more });
            }
            if page.page_token == options.page_token {
                return Err(request.unavailable("the listing does not advance".into()));
            }
            options.page_token = page.page_token;
        }
    }

    async fn keeps_versions(&self) -> Result<bool, StoreError> {
        let bucket = ObjectKey::of_prefix("");
        match &self.api {
            Api::S3(store) => match store.keeps_versions().await {
                Ok(keeps) => Ok(keeps),
                // Servers without versions need not know the question.
                Err(error) if is_not_implemented(&error) => Ok(false),
                Err(error) => Err(plain("see versioning", &bucket).failed(&error)),
            },
            Api::Azure(_) | Api::Gcs(_) => Ok(false),
        }
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        match &self.api {
            Api::S3(bucket) => bucket
                .versions(&self.name(key))
                .await
                .map_err(|error| plain("list versions", key).failed(&error)),
            Api::Azure(_) | Api::Gcs(_) => Ok(VersionPage::default()),
        }
    }

    async fn delete_version(&self, key: &ObjectKey, version: &str) -> Result<(), StoreError> {
        let request = plain("delete version", key);
        let deleted = match &self.api {
            Api::S3(bucket) => bucket.delete_version(&self.name(key), version).await,
            Api::Azure(_) | Api::Gcs(_) => {
                return Err(request.invalid("versions are deleted one by one on S3 only".into()));
            }
        };
        match deleted.map_err(|error| request.failed(&error)) {
            Err(StoreError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }
}

fn plain<'a>(operation: &'static str, key: &'a ObjectKey) -> Request<'a> {
    Request {
        operation,
        key,
        is_create: false,
    }
}
