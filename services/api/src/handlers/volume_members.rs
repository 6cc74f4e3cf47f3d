//! The offices that write a volume at the same moment, as the anchor has them: for people, who ask no edge.

use super::volumes;
use crate::{
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    types::{Listing, VolumeMember},
};
use axum::http::{Method, StatusCode};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use firn_anchor::{
    AnchorAnswer, AnchorCall, AnchorRole, MemberCall, MemberEntry, MemberNumber, PrincipalId, VolumeTuple,
};
use firn_anchor_service::Admitted;
use firn_identity::{EdgeId, TenantVolume};

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/volumes/{volume}/members",
            "listVolumeMembers",
            "Lists the offices that write a volume at the same moment, and how each stands",
            list,
        )
        .lists::<VolumeMember>(),
    ]
}

/// What a page's cursor begins with.
const CURSOR: &str = "volume-member/";

async fn list(call: Call) -> Result<Reply, Problem> {
    let (_, volume, _) = volumes::load(&call).await?;
    let (limit, after) = call.page(CURSOR)?;
    let after = after
        .map(|after| {
            let number = after.strip_prefix(CURSOR).and_then(|number| number.parse().ok());
            let unknown = || Problem::new(Code::MalformedParameter, "cursor: it names no member");
            number.map(MemberNumber).ok_or_else(unknown)
        })
        .transpose()?;
    let place = TenantVolume {
        tenant: call.context()?.tenant(),
        volume,
    };
    let asked = async |asked: AnchorCall| {
        let admitted = Admitted {
            volume: place,
            role: AnchorRole::Observer,
            // Who reads is no member.
            principal: PrincipalId([0; 16]),
            guards: Vec::new(),
            granted: None,
        };
        call.app.anchor().answer(admitted, asked).await
    };
    let wrong = || Problem::internal("the anchor answered something else");
    let AnchorAnswer::Tuple { tuple } = asked(AnchorCall::Volume { volume }).await? else {
        return Err(wrong());
    };
    // Not made yet: nobody has joined.
    let tuple = tuple.map(|found| VolumeTuple::from_bytes(&found.content));
    let tuple = tuple.transpose().map_err(Problem::internal)?;
    let members = MemberCall::Members {
        after,
        limit: u16::try_from(limit).map_err(Problem::internal)?,
    };
    let members = AnchorCall::Members {
        volume,
        call: members,
    };
    let AnchorAnswer::Tuples { tuples, more } = asked(members).await? else {
        return Err(wrong());
    };
    let items = tuples
        .iter()
        .map(|stored| {
            let entry = MemberEntry::from_stored(volume, stored).map_err(Problem::internal)?;
            let retained = tuple
                .as_ref()
                .and_then(|tuple| tuple.retained_for_member(entry.member));
            Ok(VolumeMember {
                number: entry.member.0,
                // Who joins here does so by its certificate.
                edge: EdgeId(entry.tuple.principal.ok_or_else(wrong)?.0),
                state: entry.tuple.record.state(),
                last_commit: entry.tuple.record.last_commit.map(|commit| commit.version.0),
                is_retained: retained.is_some(),
                name: entry.tuple.name,
            })
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    let next = items.last().filter(|_| more);
    let next_cursor = next.map(|last| URL_SAFE_NO_PAD.encode(format!("{CURSOR}{}", last.number)));
    Ok(Reply::json(StatusCode::OK, &Listing { items, next_cursor }))
}
