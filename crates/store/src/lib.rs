//! Object stores: local directory, memory, and anything behind the crate object_store; metering, prices, retries, faults.
