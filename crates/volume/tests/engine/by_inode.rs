//! A volume that several members write at the same moment: one alone against the model, two with directories of their own, and histories of many.

mod alone;
mod histories;
mod offices;
mod two;
