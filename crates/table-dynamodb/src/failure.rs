//! Classification of failed requests: not done and worth another try, in doubt, or final.

use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use firn_table::{RequestFailure as Failure, TableError};
use std::error::Error;

/// What people call it.
pub(crate) const SERVICE: &str = "DynamoDB";

/// Errors after which DynamoDB has certainly done nothing and asks to be asked again.
const BUSY: [&str; 7] = [
    "ThrottlingException",
    "ThrottlingError",
    "ProvisionedThroughputExceededException",
    "ProvisionedThroughputExceeded",
    "RequestLimitExceeded",
    "TransactionConflictException",
    "TransactionConflict",
];

/// Errors of the service's own, or an earlier try with the same token that still runs.
const DOUBT: [&str; 5] = [
    "InternalServerError",
    "InternalFailure",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "TransactionInProgressException",
];

/// Whether a code of an error or of a cancellation reason means "not now".
pub(crate) fn is_busy(code: &str) -> bool {
    BUSY.contains(&code)
}

/// Judges an error that is none of the conditional ones.
pub(crate) fn judge<E>(table: &str, error: &SdkError<E>) -> Failure
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let words = DisplayErrorContext(error).to_string();
    match error {
        SdkError::ServiceError(context) => {
            let code = context.err().code().unwrap_or_default();
            let status = context.raw().status().as_u16();
            let message = context.err().message().unwrap_or(&words);
            match code {
                code if is_busy(code) => Failure::Busy(format!("{code}: {message}")),
                code if DOUBT.contains(&code) || status >= 500 => {
                    Failure::Doubt(format!("{code} (status {status}): {message}"))
                }
                "ResourceNotFoundException" => Failure::Final(TableError::Refused(format!(
                    "DynamoDB has no table {table:?} in this region and account; create it, or let it be created by create=true"
                ))),
                code => Failure::Final(TableError::Refused(format!(
                    "DynamoDB table {table:?}: {code}: {message}"
                ))),
            }
        }
        // The credentials chain fails in the shape of a request that was not sent.
        SdkError::DispatchFailure(_) | SdkError::ConstructionFailure(_) if lacks_credentials(&words) => {
            Failure::Final(TableError::Refused(format!(
                "no AWS credentials were found for DynamoDB table {table:?} (environment, profile, container and instance \
                 role were tried)"
            )))
        }
        SdkError::ConstructionFailure(_) => Failure::Final(TableError::Refused(words)),
        // Timeouts, broken connections, answers that cannot be read, and kinds the SDK may add.
        _ => Failure::Doubt(words),
    }
}

fn lacks_credentials(words: &str) -> bool {
    words.contains("CredentialsNotLoaded")
}
