//! Requests as a function URL hands them on (payload format 2.0), read as far as they are needed.
//!
//! ```json
//! {"rawPath": "/v1/anchor/ten_…/vol_…", "body": "{\"volume\": …}", "isBase64Encoded": false,
//!  "requestContext": {"http": {"method": "POST"}, "authorizer": {"iam": {"userArn": "arn:aws:iam::…:user/office"}}}}
//! ```
//!
//! Who the caller is stands in `requestContext`, which AWS writes after it has checked the signature: nothing that a caller sends gets
//! there. A URL without authorisation writes no `iam`, and then nobody is let in. Whoever may invoke the function by another way than its URL
//! could write any name there, so callers' policies allow only this one (`iam-caller.json`).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use firn_anchor_service::{AwsPrincipal, Refusal};
use serde::Deserialize;
use serde_json::Value;

/// A request, as far as it could be read.
#[derive(Debug)]
pub struct Request {
    /// Who it is from.
    pub caller: AwsPrincipal,
    /// The tenant that the path names.
    pub tenant: String,
    /// The volume that the path names.
    pub volume: String,
    /// What was sent.
    pub body: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    raw_path: String,
    request_context: Context,
    #[serde(default)]
    body: String,
    #[serde(default)]
    is_base64_encoded: bool,
}

#[derive(Deserialize)]
struct Context {
    http: Http,
    #[serde(default)]
    authorizer: Option<Authorizer>,
}

#[derive(Deserialize)]
struct Http {
    method: String,
}

#[derive(Deserialize)]
struct Authorizer {
    #[serde(default)]
    iam: Option<Iam>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Iam {
    user_arn: String,
}

impl Request {
    /// Reads an event. Lambda itself bounds its length (6 MB).
    ///
    /// # Errors
    /// What the caller is answered instead.
    pub fn read(event: Value) -> Result<Self, Refusal> {
        let event: Event = serde_json::from_value(event).map_err(|error| {
            let why = format!("the event is none of a function URL: {error}");
            Refusal::new(400, "malformed_body", why)
        })?;
        let iam = event
            .request_context
            .authorizer
            .and_then(|authorizer| authorizer.iam);
        let caller = iam.and_then(|iam| AwsPrincipal::of_caller(&iam.user_arn));
        let caller = caller.ok_or_else(|| {
            let why =
                "AWS vouches for no user and no role: the function's URL must have the authorisation AWS_IAM";
            Refusal::new(401, "certificate_refused", why)
        })?;
        let unknown = || {
            Refusal::new(
                404,
                "not_found",
                "calls are made by POST to /v1/anchor/TENANT/VOLUME",
            )
        };
        let place = event.raw_path.strip_prefix("/v1/anchor/").ok_or_else(unknown)?;
        let (tenant, volume) = place.split_once('/').ok_or_else(unknown)?;
        if event.request_context.http.method != "POST" {
            return Err(unknown());
        }
        let body = match event.is_base64_encoded {
            false => event.body.into_bytes(),
            true => STANDARD
                .decode(event.body)
                .map_err(|error| Refusal::new(400, "malformed_body", error))?,
        };
        Ok(Self {
            caller,
            tenant: tenant.to_owned(),
            volume: volume.to_owned(),
            body,
        })
    }
}
