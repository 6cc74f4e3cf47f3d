//! The quota from outside: whoever pays for a volume may say that nothing is added any more.
//!
//! | refused (`QuotaExceeded`) | goes on |
//! |---|---|
//! | data: writes, files made longer | reads; commits and checkpoints of what is acknowledged |
//! | names: files, directories, links, nodes | deletes, renames, files made shorter |
//! | values of extended attributes | modes, owners, times, ACLs; attributes removed |
//! | copies out of snapshots | snapshots made and deleted, draining, cleaning |
//!
//! It is a matter of this process and not of the stored volume: nothing of it is journaled, and a replay is never refused.

use crate::volume::Volume;

impl Volume {
    /// Refuses from now on whatever would add data or names, or takes it again. A request that was planned before is carried out.
    pub fn set_quota_reached(&self, is_reached: bool) {
        self.inner.lock().quota_reached = is_reached;
    }
}
