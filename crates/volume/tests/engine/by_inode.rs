//! A volume that several members write at the same moment: one alone against the model, two with directories of their own, one that is broken and comes back, one volume that
//! an owner wrote before, a cleaner beside members, what an edge serves of them, and histories of many.

mod alone;
mod broken;
mod change_attributes;
mod cleaned;
mod contention;
mod former;
mod given_up;
mod histories;
mod locks;
mod offices;
mod served;
mod two;
