//! A volume that several members write at the same moment: one alone against the model, two with directories of their own, one that is broken and comes back, and histories of many.

mod alone;
mod broken;
mod histories;
mod offices;
mod two;
