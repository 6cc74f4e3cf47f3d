//! Erasing a volume: every generation of its key ring is removed, and with them the last way to its keys that the service
//! knows; then what the service kept of its roots. Both are many, so they go in batches, one a step; from the intent on there is no
//! way back, so nobody ever sees a volume with half of its rings, and no edge commits a root to it any more.

use super::{SagaRecord, SagaStep, Step, Stepped, Work};
use crate::{
    app::App,
    context::TenantContext,
    handlers::{AuditReportRecord, LimitsRecord, NameRecord, RingRecord, VolumeRecord, volume_name_sort},
    metering,
    problem::{Code, Problem},
    store::{Change, TenantStore},
    types::{InUse, VolumeState},
};
use firn_identity::{TenantId, TenantVolume, VolumeId};
use firn_table::Write;

/// Items removed in one transaction, which also holds the saga.
const BATCH: usize = 90;

pub(super) async fn step(step: &Step<'_>, volume: VolumeId) -> Result<Stepped, Problem> {
    match step.saga.record.step {
        SagaStep::Erase => erase(step, volume).await,
        SagaStep::Publish => publish(step, volume).await,
        _ => Err(step.impossible()),
    }
}

async fn erase(step: &Step<'_>, volume: VolumeId) -> Result<Stepped, Problem> {
    let (rings, more) = step
        .store
        .page::<RingRecord>(&RingRecord::prefix(volume), None, BATCH)
        .await?;
    let mut deletes: Vec<_> = rings
        .into_iter()
        .map(|ring| Write::Delete {
            key: ring.key,
            version: ring.version,
        })
        .collect();
    let (reports, more_reports) = step
        .store
        .page::<AuditReportRecord>(
            &AuditReportRecord::prefix(volume),
            None,
            (BATCH - deletes.len()).max(1),
        )
        .await?;
    let room = BATCH - deletes.len();
    let reports = reports.into_iter().take(room);
    deletes.extend(reports.map(|report| Write::Delete {
        key: report.key,
        version: report.version,
    }));
    let room = BATCH - deletes.len();
    let is_more = if more.is_some() || more_reports.is_some() || room == 0 {
        true
    } else {
        let (roots, table) = (step.store.roots(volume), step.store.table());
        // What counts commits goes first, once all of them are charged; how far they are goes after it.
        let mut page = table.query(&roots, "volume/", None, room).await?;
        let counts = !page.items.is_empty();
        if counts {
            let tenant = step.tenant;
            metering::settle_last_commits(step.app, TenantVolume { tenant, volume }).await?;
        } else {
            page = table.query(&roots, "", None, room).await?;
        }
        deletes.extend(page.items.into_iter().map(|item| Write::Delete {
            key: item.key,
            version: item.version,
        }));
        counts || page.next.is_some()
    };
    let next = if is_more {
        SagaStep::Erase
    } else {
        SagaStep::Publish
    };
    step.go_on_with(next, None, deletes).await
}

async fn publish(step: &Step<'_>, volume: VolumeId) -> Result<Stepped, Problem> {
    let loaded = step
        .store
        .require::<VolumeRecord>(&VolumeRecord::sort(volume), volume)
        .await?;
    let mut record = loaded.record.clone();
    record.volume.state = VolumeState::Erased;
    record.volume.key_ring_generation = 0;
    let name = volume_name_sort(&record.volume.name);
    let entry = step
        .store
        .require::<NameRecord>(&name, "the volume's name")
        .await?;
    let limits = LimitsRecord::load(step.store).await?;
    let given = limits.record.give_back(InUse {
        volumes: 1,
        ..InUse::default()
    });
    let change = step
        .ended(SagaStep::Done)
        .await?
        .update(&loaded, &record)
        .delete(&entry)
        .update(&limits, &given);
    step.commit(change).await
}

/// Begins to erase the volumes of a tenant whose time to be undeleted is over; gives how many.
///
/// # Errors
/// If storage did not answer, or holds what this build cannot read; the next sweep goes on.
pub(crate) async fn erase_overdue(app: &App, tenant: TenantId) -> Result<u64, Problem> {
    let store = TenantStore::of(app.table(), &TenantContext::for_service(tenant));
    let (mut begun, mut after) = (0, None);
    loop {
        let (volumes, next) = store
            .page::<VolumeRecord>("volume/", after.as_deref(), 100)
            .await?;
        for loaded in volumes {
            if !loaded.record.is_overdue(app.now()) {
                continue;
            }
            let volume = loaded.record.volume.id;
            let saga = SagaRecord::new(app.env(), None, Work::EraseVolume { volume });
            let change = Change::new(&store, None, "volume.erase", volume)
                .detail("its time to be undeleted is over")
                .update(&loaded, &loaded.record.erasing(&saga));
            match saga.begin(tenant, change).commit(app.env(), None).await {
                Ok(_) => begun += 1,
                // Undeleted or erased at this moment, or another instance sweeps: the next sweep sees.
                Err(problem) if problem.code == Code::ChangedMeanwhile => {}
                Err(problem) => return Err(problem),
            }
        }
        match next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    if begun > 0 {
        app.wake_sagas();
    }
    Ok(begun)
}
