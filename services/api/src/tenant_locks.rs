//! The fair read-write lock of a tenant: retries after a write conflict are serialised in this instance.
//!
//! Changes are made under the versions they read, and every change of a tenant replaces the head of its audit log
//! ([`Change`](crate::store::Change)): two at once collide, and the later one starts over. A crowd that only starts over mostly
//! collides again, and somebody runs out of tries. So the first try of a request goes beside others, and a try after a
//! collision goes alone in this instance: it waits for those under way, and those that come later wait for it, in the order in
//! which they came. Other instances know nothing of it; with them a request collides as before.

use firn_identity::TenantId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Tenants remembered before those that nobody waits for are forgotten.
const REMEMBERED: usize = 1024;

/// The locks of all tenants.
#[derive(Default)]
pub(crate) struct TenantLocks(Mutex<HashMap<TenantId, Weak<RwLock<()>>>>);

/// The lock of one tenant.
#[derive(Clone)]
pub(crate) struct TenantLock(Arc<RwLock<()>>);

/// The lock, held until this is dropped.
pub(crate) enum TenantGuard {
    Beside { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

impl TenantLocks {
    pub(crate) fn of(&self, tenant: TenantId) -> TenantLock {
        let mut all = self.0.lock().expect("no panic under this lock");
        if let Some(lock) = all.get(&tenant).and_then(Weak::upgrade) {
            return TenantLock(lock);
        }
        // What is left are tenants with requests under way, of which the server bounds the number.
        if all.len() >= REMEMBERED {
            all.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::new(RwLock::new(()));
        all.insert(tenant, Arc::downgrade(&lock));
        TenantLock(lock)
    }
}

impl TenantLock {
    /// With others' first tries.
    pub(crate) async fn beside(&self) -> TenantGuard {
        TenantGuard::Beside {
            _guard: self.0.clone().read_owned().await,
        }
    }

    /// With nobody else.
    pub(crate) async fn alone(&self) -> TenantGuard {
        TenantGuard::Alone {
            _guard: self.0.clone().write_owned().await,
        }
    }
}
