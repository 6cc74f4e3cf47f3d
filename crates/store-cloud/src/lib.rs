//! S3, Azure Blob and Google Cloud Storage adapters: a leaf crate, so that nothing waits for the cloud SDKs.
