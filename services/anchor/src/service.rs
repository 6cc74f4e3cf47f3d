//! Answering calls for callers that a host has let in.

use crate::{GrantedCaller, caused, drawn};
use firn_anchor::{
    AnchorAnswer, AnchorBackend, AnchorCall, AnchorRole, KnownTuples, MemberCall, PrincipalId, TableBackend,
    VolumeChange,
};
use firn_format::WriterId;
use firn_identity::TenantVolume;
use firn_table::{Table, TableError, Write};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

/// Volumes with counts that were not looked at yet; of those beyond, the next walk over all volumes learns.
const FRESH_VOLUMES: usize = 65_536;

/// A caller, as far as its host vouches for it.
pub struct Admitted {
    /// Whose tuples it reaches: those of this volume's family, clones included.
    pub volume: TenantVolume,
    /// As what.
    pub role: AnchorRole,
    /// Who it is: it speaks for the members that joined as the same, and for no others.
    pub principal: PrincipalId,
    /// What must still hold in the instant of a change: checks of the items that say so.
    pub guards: Vec<Write>,
    /// Of a caller that was let in by a grant, who it is: its commits are counted apart, and the writers that it draws are noted.
    pub granted: Option<GrantedCaller>,
}

/// The anchor of all families in a table.
pub struct AnchorService {
    table: Arc<dyn Table>,
    known: Arc<KnownTuples>,
    fresh: Mutex<BTreeSet<TenantVolume>>,
}

impl AnchorService {
    /// Answers from this table. Makes no request.
    pub fn new(table: Arc<dyn Table>) -> Self {
        Self {
            table,
            known: Arc::default(),
            fresh: Mutex::default(),
        }
    }

    /// Makes a call.
    ///
    /// # Errors
    /// As [`AnchorBackend::call`]; [`TableError::ConditionFailed`] if a guard does not hold: then the host looks at the caller again.
    pub async fn answer(&self, admitted: Admitted, call: AnchorCall) -> Result<AnchorAnswer, TableError> {
        let is_commit = matches!(
            &call,
            AnchorCall::ChangeVolume {
                change: VolumeChange::Commit { .. },
                ..
            } | AnchorCall::Members {
                call: MemberCall::Commit { .. },
                ..
            }
        );
        let is_counted = is_commit || matches!(&call, AnchorCall::NoteCleaning { .. });
        let partition = admitted.volume.roots_partition();
        // In the transaction of the commit, as the tuple's own count is.
        let mut guards = admitted.guards;
        if let Some(caller) = admitted.granted.filter(|_| is_commit) {
            guards.push(caused::one_more(&*self.table, &partition, caller).await?);
        }
        if let (Some(caller), AnchorCall::DrawWriter { writer, .. }) = (admitted.granted, &call) {
            guards.push(drawn::one_more(&*self.table, &partition, caller, *writer).await?);
        }
        let backend = TableBackend::new(self.table.clone(), partition)
            .for_role(admitted.role)
            .for_principal(admitted.principal)
            .guarded(guards)
            .knowing(self.known.clone());
        let answer = backend.call(call).await;
        // Also after an answer that was lost below: then it may have happened.
        let may_have_happened = match &answer {
            Ok(answer) => matches!(answer, AnchorAnswer::Changed { .. }),
            Err(error) => error.is_in_doubt(),
        };
        if is_counted && may_have_happened {
            let mut fresh = self.fresh.lock().expect("no panic under this lock");
            if fresh.len() < FRESH_VOLUMES {
                fresh.insert(admitted.volume);
            }
        }
        answer
    }

    /// The writers that a caller with a grant drew last, in the family of this volume.
    ///
    /// # Errors
    /// If the table does not answer.
    pub async fn drawn_writers(
        &self,
        volume: TenantVolume,
        caller: GrantedCaller,
    ) -> Result<Vec<WriterId>, TableError> {
        drawn::last(&*self.table, &volume.roots_partition(), caller).await
    }

    /// The volumes that were committed since this was last asked.
    pub fn take_committed(&self) -> BTreeSet<TenantVolume> {
        std::mem::take(&mut *self.fresh.lock().expect("no panic under this lock"))
    }

    /// Says that a volume's commits could not be counted yet.
    pub fn put_back(&self, volume: TenantVolume) {
        self.fresh
            .lock()
            .expect("no panic under this lock")
            .insert(volume);
    }
}
